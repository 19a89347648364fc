"""The number of threads that share one operation, held whatever the script asks for."""

from __future__ import annotations

import multiprocessing
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from hasten import torch_threads
from hasten.lever import is_asked_by_script

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import Training

_WORKER = "torch.utils.data._utils.worker"
_held: list[Callable[[], None]] = []
"""What gives a forked process the script's own number of threads, while that is held."""


def _in_worker() -> bool:
    """Return whether this is called from torch's loop of a loader worker.

    One that was started by spawn has the levers from its start, and takes one thread in that loop.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") != _WORKER:
        frame = frame.f_back
    return frame.f_globals.get("__name__") == _WORKER


def _is_count(args: tuple[Any, ...]) -> bool:
    return len(args) == 1 and type(args[0]) is int and args[0] >= 1


def _tell(own: list[int], original: Callable[..., Any]) -> Any:
    """Tell the script its own count: it may start as many workers, or draw as often."""
    return own[0] if is_asked_by_script() and not _in_worker() else original()


def _forked() -> None:
    for give in _held:
        give()


os.register_at_fork(after_in_child=_forked)


def _give_back(own: list[int], chooses: list[bool]) -> None:
    torch_threads.put_back(own[0], chooses=chooses[0])


def hold_threads(training: Training, count: int) -> Callable[[], None]:
    """Set the count now and when training starts, and override what the script sets itself.

    The script's calls are answered and remembered: it is told its last request, which is also
    what undo restores. A loader worker gets what it asks for, and so does another process that
    `multiprocessing` started, until it trains. A forked process begins with what the script asked
    for: OpenMP's threads of this process are not there, and a script that forks asks for one.
    """
    import torch

    put = torch._C.set_num_threads
    own = [torch.get_num_threads()]
    chooses = [False]  # whether MKL did, before a count was put
    trains: list[int] = []

    def settle() -> None:
        trains.append(os.getpid())
        now = torch.get_num_threads()  # we are told the true count
        if now != count:  # it was set in another way than by torch's function
            own[0], chooses[0] = now, torch_threads.chooses_threads()
            put(count)

    def answer(original: Callable[..., Any], *args: Any) -> Any:
        if not _is_count(args) or _in_worker():
            return original(*args)  # which says what is wrong with them
        own[0], chooses[0] = args[0], False
        is_helper = multiprocessing.parent_process() is not None and os.getpid() not in trains
        return original(*args) if is_helper else None

    undos = [
        training.on_training(settle),
        training.on_function(torch, "get_num_threads", partial(_tell, own)),
        training.on_function(torch, "set_num_threads", answer),
    ]
    trains.clear()  # that was no start

    give = partial(_give_back, own, chooses)
    _held.append(give)

    def undo() -> None:
        _held.remove(give)
        for one in undos:
            one()
        if torch.get_num_threads() == count != own[0]:
            give()

    return undo
