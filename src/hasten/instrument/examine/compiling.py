"""What torch's compiler did for a script that uses it, and what it still does in each step."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from hasten.instrument.operation_timing import is_compiled
from hasten.instrument.step_growth import StepGrowth

if TYPE_CHECKING:
    from hasten.instrument.watch import Watch

_COMPILING = ("_compile.compile_inner", "backward._backward_impl")
_PLACE_COUNT = 3


class Compiling:
    """Read the compiler's own notes at the end of each step."""

    def __init__(self, watch: Watch) -> None:
        self._growth = StepGrowth(_compile_s)
        self.ended = self._growth.ended

    def end(self) -> dict[str, Any]:
        """Return what was compiled, recompilations and their reasons, and where graphs break."""
        if not is_compiled():
            return {}
        return {"step_s": self._growth.seen, **_recompiles(), **_breaks()}


def _notes() -> Any:
    return sys.modules.get("torch._dynamo.utils")


def _compile_s() -> float:
    known = getattr(_notes(), "compilation_time_metrics", {})
    return float(sum(sum(known.get(name, ())) for name in _COMPILING))


def _recompiles() -> dict[str, Any]:
    """Return what was recompiled because a guard failed; torch keeps the last 64 notes."""
    read = getattr(_notes(), "get_compilation_metrics", list)
    again = [note for note in read() if getattr(note, "recompile_reason", None)]
    done = [note for note in again if note.co_name and not note.fail_type]
    places = Counter((os.path.abspath(note.co_filename), note.co_firstlineno) for note in done)
    reasons = Counter(_short(note.recompile_reason) for note in done)
    return {
        "recompile_count": len(done),
        "recompile_s": sum(note.entire_frame_compile_time_s or 0.0 for note in done),
        "recompile_places": [place for place, _ in places.most_common(_PLACE_COUNT)],
        "recompile_reason": reasons.most_common(1)[0][0] if reasons else "",
        "gave_up": any(note.fail_type for note in again),
    }


def _short(reason: Any) -> str:
    """Return a reason without its leading graph id and its trailing source and stack."""
    return str(reason).partition(": ")[2].partition("\n")[0].partition(" #")[0].strip()


def _breaks() -> dict[str, Any]:
    """Return the lines at which graphs break."""
    told = getattr(_notes(), "graph_break_reasons", ())
    lines: Counter[tuple[str, int]] = Counter()
    reasons: dict[tuple[str, int], str] = {}
    for why in told:
        if why.graph_break and why.user_stack:
            frame = why.user_stack[-1]
            place = os.path.abspath(frame.filename), int(frame.lineno or 0)
            lines[place] += 1
            reasons.setdefault(place, str(why.reason).splitlines()[0])
    most = [place for place, _ in lines.most_common(_PLACE_COUNT)]
    return {
        "break_count": len(lines),
        "break_places": most,
        "break_reason": reasons[most[0]] if most else "",
    }


EXAMINER = Compiling
