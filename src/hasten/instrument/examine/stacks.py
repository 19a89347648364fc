"""Which lines of the user's code the loop spends its time on."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from hasten.instrument import kept_graph, stack_sampler, step_scheduler, watch
from hasten.instrument.ledger import PHASES
from hasten.instrument.source_lines import OWN, is_own_file, line_of
from hasten.records import LEAST_RATIO, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

    from hasten.instrument.watch import Watch

_PERIOD_S = 0.005
_MODULE_CALLS = {"Module._call_impl", "Module._wrapped_call_impl"}
_COMPILER = tuple(
    os.path.join(os.sep, "torch", folder, "") for folder in ("_dynamo", "_functorch", "_inductor")
)
_RESUMED = "torch_dynamo_resume_in_"
_PHASED = {"root_call", "backward", "loader_next", "loader_iter"}

# A sample: path and line, the phase, the function of a library that was called there, and the
# library at work in it, other than torch; the path is empty where no line is to be reported.
Sample = tuple[str, int, str, str, str]


class Stacks:
    """Look every few milliseconds at where the loop is (see `stack_sampler`).

    The phases tell the time of a call of a root module, a backward pass, an optimizer's step
    or the wait for a batch; a line of the loop that does no more than that is left out, and
    the line of the user's code inside is named where there is one. Code that runs in worker
    processes is not seen.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._samples: Counter[Sample] = Counter()
        self._waiting: Counter[Sample] = Counter()
        self._after_forward = False
        self._compiler_count = self._break_count = 0
        self._is_disturbed = False
        self._pulse = stack_sampler.begin(self._look, watch.thread, shortest_s=_PERIOD_S)

    def _look(self, frame: FrameType | None, count: int) -> None:
        phase = PHASES[self._watch.ledger.current]
        sample, in_compiler = _read(frame), _in_compiler(frame)
        if sample is None or self._is_disturbed:
            return
        self._compiler_count += in_compiler * count
        self._break_count += (in_compiler and _is_resumed(frame)) * count
        if phase is Phase.OTHER and self._watch.tracker.evaluating:
            phase = Phase.EVALUATION
        path, line, calls = sample
        seen = self._waiting if phase is Phase.OTHER else self._samples
        seen[path, line, phase, calls, _library(frame, calls)] += count

    # ---- what ran after the forward pass turns out to be the loss when gradients are asked for

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Note a forward pass."""
        self._settle(Phase.OTHER)
        self._after_forward = True

    def backward(self, tensors: Any) -> None:
        """Name what ran since the forward pass."""
        self._settle(Phase.LOSS if self._after_forward else Phase.OTHER)

    def loading(self) -> None:
        """Note that what ran before was no loss."""
        self._settle(Phase.OTHER)

    def ended(self) -> None:
        """Note that what ran before was no loss; look away while operations are timed."""
        self._settle(Phase.OTHER)
        self._is_disturbed = _times_operations()

    def _settle(self, phase: Phase) -> None:
        waited, self._waiting = self._waiting, Counter()
        for (path, line, _, calls, library), count in waited.items():
            self._samples[path, line, phase, calls, library] += count
        self._after_forward = False

    def end(self) -> dict[str, Any]:
        """Stop looking; return the lines that cost time, costliest first, and counts of samples."""
        if self._pulse is not None:
            self._pulse.end()
        self._settle(Phase.OTHER)
        return {
            "lines": list(summarised(self._samples)),
            "sample_count": self._samples.total(),
            "compiler_sample_count": self._compiler_count,
            "break_sample_count": self._break_count,
            "training_sample_count": sum(
                count for (_, _, phase, *_), count in self._samples.items() if Phase(phase).in_step
            ),
            "libraries": libraries(self._samples),
        }


def summarised(samples: Counter[Sample]) -> Iterator[dict[str, Any]]:
    """Yield each line with at least 2% of the samples, costliest first.

    Args:
        samples: how often each was seen; one without a path counts only towards the total.
    """
    lines: dict[tuple[str, int], Counter[tuple[str, str]]] = {}
    for (path, line, phase, calls, _), count in samples.items():
        if path:
            lines.setdefault((path, line), Counter())[phase, calls] += count
    for (path, line), seen in sorted(lines.items(), key=lambda item: -item[1].total()):
        share_ratio = seen.total() / samples.total()
        if share_ratio < LEAST_RATIO:
            break
        phases: Counter[str] = Counter()
        names: Counter[str] = Counter()
        for (phase, calls), count in seen.items():
            phases[phase] += count
            names[calls] += count
        yield {
            "path": path, "line": line, "share_ratio": share_ratio,
            "phase": phases.most_common(1)[0][0], "calls": names.most_common(1)[0][0],
        }  # fmt: skip


def libraries(samples: Counter[Sample]) -> dict[str, int]:
    """Return how many samples of no phase each library other than torch was at work in."""
    found: Counter[str] = Counter()
    for (_, _, phase, _, library), count in samples.items():
        if library and phase == Phase.OTHER:
            found[library] += count
    return dict(found)


def _library(frame: FrameType | None, calls: str) -> str:
    """Return the package of a call in which torch, as the innermost, is not at work; or empty."""
    if frame is None or not calls:
        return ""
    called, inner = (
        name.partition(".")[0] for name in (calls, str(frame.f_globals.get("__name__", "")))
    )
    if inner in _OURS:
        return ""
    return inner if called in _OURS else called


def _read(frame: FrameType | None) -> tuple[str, int, str] | None:
    """Return the innermost line of the user's code and what it called, empty if a phase covers it.

    None where the loop is ours: parked, asked for something by the parent, or looking at its graph.
    """
    called: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        if is_own_file(code.co_filename):
            return os.path.abspath(code.co_filename), line_of(frame), _name(called)
        if code.co_filename in _ASIDE:
            return None
        if _tells_phase(code):
            break
        if not _is_passed_over(code.co_filename) and code.co_qualname not in _MODULE_CALLS:
            called = frame
        frame = frame.f_back
    return "", 0, ""


def _name(frame: FrameType | None) -> str:
    """Return the name of a library's function, empty for none and for generated code."""
    if frame is None or "__name__" not in frame.f_globals:
        return ""
    return f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"


def _times_operations() -> bool:
    """Return whether another examiner times each operation, which inflates lines with many."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return type(_get_current_dispatch_mode()).__name__ == "OperationMode"


def _in_compiler(frame: FrameType | None) -> bool:
    """Return whether the loop checks guards, or enters or leaves a compiled graph."""
    if frame is None:
        return False
    code = frame.f_code
    return code.co_name.startswith(_RESUMED) or any(part in code.co_filename for part in _COMPILER)


def _is_resumed(frame: FrameType | None) -> bool:
    """Return whether the loop has resumed after a graph break."""
    while frame is not None:
        if frame.f_code.co_name.startswith(_RESUMED):
            return True
        frame = frame.f_back
    return False


def _tells_phase(code: CodeType) -> bool:
    """Return whether a frame is one whose time the phases tell."""
    if code.co_filename == watch.__file__:
        return code.co_name in _PHASED
    return code.co_filename.endswith(_OPTIMIZER)


@cache
def _is_passed_over(path: str) -> bool:
    """Return whether a file is ours or torch's way into compiled code."""
    return path.startswith(OWN) or _COMPILER[0] in path


_OPTIMIZER = os.path.join("torch", "optim", "optimizer.py")
_OURS = {"torch", "hasten"}
_ASIDE = frozenset({step_scheduler.__file__, kept_graph.__file__})

EXAMINER = Stacks
