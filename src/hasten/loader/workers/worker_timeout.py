"""How long to wait for a worker, and who is affected by its death."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from typing import Any

_LOOK_S = 0.5
_CHECKS_S = 10.0
_CHECKS_RATIO = 3.0
_STOPPED_RATIO = 2.0


class WorkersLost(Exception):
    """Workers that the script never asked for died, or hang."""


class WorkerTimeout:
    """Wait for the answers of workers, as long as the script would, and no longer.

    If the script has workers itself, deaths and time-outs are handled as torch does. Torch
    raises when a worker dies, whatever the main process is doing then. So torch knows about
    workers that the script never asked for only while somebody waits for them.

    Args:
        added: the script has no workers itself.
        timeout_s: how long it lets its loader wait for a batch; 0 is for ever.
        patience_s: how long to wait for workers that it never asked for.
    """

    def __init__(self, *, added: bool, timeout_s: float, patience_s: float) -> None:
        self._added = added
        self._timeout_s = timeout_s
        self._patience_s = patience_s

    @property
    def timeout_s(self) -> float:
        """The time-out that torch's own iterator is given."""
        return _LOOK_S if self._added else self._timeout_s

    @property
    def start_method(self) -> dict[str, Any]:
        """How workers that the script never asked for start, so that its file is not run again."""
        return (
            {"multiprocessing_context": multiprocessing.get_context("fork")} if self._added else {}
        )

    def begin(self, iterator: Any) -> None:
        """Begin a pass: during it, torch reports deaths of the script's own workers."""
        if self._added:
            _stop_watching(iterator)
        else:
            _watch(iterator)

    def end(self, iterator: Any) -> None:
        """End a pass: workers that stay die when the process ends, and that is no error."""
        _stop_watching(iterator)

    def next_answer(self, iterator: Any, *, checked: bool) -> Any:
        """Return the next answer.

        Args:
            iterator: torch's iterator.
            checked: batches are made more than once, which the script's time-out does not expect.

        Raises:
            WorkersLost: the script never asked for them, and can do without.
            RuntimeError: one of the script's own died, or the time-out passed (torch's words).
        """
        if not self._added:
            more_s = _CHECKS_S + (_CHECKS_RATIO - 1) * self._timeout_s if checked else 0.0
            return _patient(iterator, more_s)
        try:
            _watch(iterator)
            return _patient(iterator, self._patience_s)
        except Exception as error:
            raise WorkersLost(self._said(error)) from error
        finally:
            _stop_watching(iterator)

    def _said(self, error: Exception) -> str:
        if _timed_out(error):
            return f"none gave a batch for {self._patience_s:.0f} s"
        return said(error)


def said(error: Exception) -> str:
    """Return the first line of what an exception says."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _patient(iterator: Any, patience_s: float) -> Any:
    """Wait for the next answer; keep waiting if the time-out passes before `patience_s`."""
    waited_s = 0.0
    while True:
        began_s = time.monotonic()
        try:
            return iterator._next_data()
        except RuntimeError as error:
            # All processes may have been stopped meanwhile, as by Ctrl-Z, and did not wait then.
            waited_s += min(time.monotonic() - began_s, _STOPPED_RATIO * iterator._timeout)
            if not _timed_out(error) or waited_s >= patience_s:
                raise


def _timed_out(error: Exception) -> bool:
    return str(error).startswith("DataLoader timed out")


def _watch(iterator: Any) -> None:
    """Let torch raise if one of these workers dies; raise at once if one already has."""
    from torch.utils.data._utils import signal_handling

    signals: Any = signal_handling
    _stop_watching(iterator)
    iterator._worker_pids_set = True
    signals._set_worker_pids(id(iterator), tuple(worker.pid for worker in iterator._workers))
    signals._error_if_any_worker_fails()


def _stop_watching(iterator: Any) -> None:
    from torch.utils.data._utils import signal_handling

    signals: Any = signal_handling
    with contextlib.suppress(ValueError):  # they are not watched
        signals._remove_worker_pids(id(iterator))
    iterator._worker_pids_set = False
