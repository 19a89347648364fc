"""phase_threads: another number of intra-op threads in one phase of the step.

Helps: steps whose phases differ in kind: an update of many small tensors is fastest in one
    thread, while the products of the backward pass want every core.
Hurts: short phases. Between one thread and n a change takes less than a microsecond; between two
    counts above one OpenMP ends threads and starts others, milliseconds on busy cores.
Maths: rounding. Sums are split between threads, so their order changes.
Source: https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hasten.errors import PlanError
from hasten.lever import Lever, is_asked_by_script, undo_all
from hasten.records import Effect, Phase, Scope
from hasten.units import percent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.lever import ScriptContext, Training
    from hasten.records import Setting

_PHASES = (Phase.OPTIMIZER, Phase.BACKWARD, Phase.FORWARD)
_FORM = "backward=4,optimizer=1"
_LEAST_SHARE_RATIO = 0.10


def settings(context: ScriptContext) -> tuple[str, ...]:
    """Return one thread for a large update, half of them or all cores for a large pass."""
    if (
        context.baseline is None
        or "threads" not in context.traits
        or context.traits.get("compiled")
    ):
        return ()
    threads = int(context.traits["threads"])
    cores, found = context.machine.budget.core_count, []
    for phase in _PHASES:
        if context.baseline.share_ratio(phase) >= _LEAST_SHARE_RATIO:
            fewer = 1 if phase is Phase.OPTIMIZER else max(1, min(threads, cores) // 2)
            counts = [n for n in (fewer, cores) if n < threads or threads < n <= cores]
            found += [f"{phase}={count}" for count in dict.fromkeys(counts)]
    return tuple(found)


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try."""
    if context.traits.get("compiled"):
        return "the script compiles: a graph is compiled again for every other thread count"
    if context.baseline is None or "threads" not in context.traits:
        return "neither the threads of the script nor the shares of its phases are known"
    seen = context.baseline
    if all(seen.share_ratio(phase) < _LEAST_SHARE_RATIO for phase in _PHASES):
        shares = ", ".join(f"{phase} {percent(seen.share_ratio(phase))}" for phase in _PHASES)
        return f"no phase takes {percent(_LEAST_SHARE_RATIO)} of the step: {shares}"
    return "the job has one core and torch uses one thread"


def _parse(setting: str) -> Mapping[str, int]:
    """Read `backward=4,optimizer=1`."""
    counts: dict[str, int] = {}
    for part in setting.split(","):
        phase, _, count = part.partition("=")
        if phase not in _PHASES or not count.isdecimal() or not int(count):
            raise PlanError(
                f"phase_threads cannot be {setting!r}.",
                remedy=f"Write it as {_FORM}.",
            )
        counts[phase] = int(count)
    return counts


def validate(setting: str) -> str:
    """Say what to give it instead of what cannot be read."""
    try:
        _parse(setting)
    except PlanError:
        return f"counts by phase, such as {_FORM}"
    return ""


def redundant_with(setting: str, traits: Mapping[str, Setting]) -> str:
    """Say that a phase would have the threads that it has under a plan anyhow."""
    around = traits.get("threads")
    same = all(count == around for count in _parse(setting).values())
    return f"all phases have threads={around} already" if same else ""


def _has_compiled() -> bool:
    """Return whether Dynamo has made a graph here: its guards hold the thread count."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return bool(getattr(dynamo, "counters", {}).get("stats", {}).get("unique_graphs"))


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Set the count of a phase on its way in, and the count around it on its way out."""
    import torch

    counts = _parse(setting)
    # Another lever may answer for the name in torch; what this one sets is not the script's wish.
    put = torch._C.set_num_threads
    inside: list[int] = []

    def enter(phase: Phase) -> Callable[[], None] | None:
        count, around = counts.get(phase), torch.get_num_threads()
        if count is None or count == around or _has_compiled():
            return None
        put(count)
        inside.append(around)

        def leave() -> None:
            inside.pop()
            put(around)

        return leave

    def told(original: Callable[..., Any]) -> Any:
        return inside[0] if inside and is_asked_by_script() else original()

    return undo_all([
        training.on_phase(enter),
        training.on_function(torch, "get_num_threads", told),
    ])  # fmt: skip


def snippet(setting: str) -> str:
    """Return what a user would write by hand."""
    told = []
    for phase, count in _parse(setting).items():
        told.append(f"torch.set_num_threads({count})  # before the {phase} phase")
        told.append("torch.set_num_threads(threads)  # after it, back to the count of the script")
    return "\n".join(told)


LEVER = Lever(
    name="phase_threads",
    phases=frozenset(_PHASES),
    effect=Effect.ROUNDING,
    scope=Scope.STEP,
    kind=str,
    validate=validate,
    settings=settings,
    gain_ratio=8.0,
    why_not=why_not,
    snippet=snippet,
    redundant_with=redundant_with,
    promising=lambda context: False,
    settle_count=1,
    apply=apply,
)
