"""inter_op_threads: how many asynchronous tasks of torch run at the same time on the CPU.

Helps: scripts that start tasks by `torch.jit.fork` on machines where torch counts cores that the
    job may not use: each task starts its own team of intra-op threads.
Hurts: tasks that wait for one another or for files, where fewer of them overlap.
Maths: exact. Every operation is computed as before; only how many run at once changes.
Source: https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.errors import PlanError
from hasten.lever import Lever, at_least, is_asked_by_script, undo_all
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training


def settings(context: ScriptContext) -> tuple[int, ...]:
    """Return the budget and one task at a time, where more tasks than cores may run."""
    cores, count = context.machine.budget.core_count, context.traits.interop_thread_count
    started = context.traits.interop_started_count
    if count is None or started == 0 or count <= cores:
        return ()
    return tuple(dict.fromkeys((cores, 1)))


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try."""
    cores, count = context.machine.budget.core_count, context.traits.interop_thread_count
    if count is None:
        return "the inter-op threads of the script are not known"
    if count <= cores:
        return f"torch has {count} inter-op threads, no more than the {cores} cores of the job"
    return f"the script starts no asynchronous task: none of {count} inter-op threads runs"


def _refuse(error: object) -> PlanError:
    return PlanError(
        f"The inter-op threads are set already: {str(error).splitlines()[0]}",
        remedy="Leave inter_op_threads out of the plan.",
    )


def apply(training: Training, count: int) -> Callable[[], None]:
    """Set the count, which torch accepts once and only before the first task.

    The script's own call would be the second one and raise, so it is answered here.

    Raises:
        PlanError: it is too late.
    """
    import torch

    own = torch.get_num_interop_threads()
    if own != count:
        try:
            torch.set_num_interop_threads(count)
        except RuntimeError as error:
            raise _refuse(error) from error
    answered: list[int] = []

    def answer(original: Callable[..., Any], *args: Any) -> Any:
        once = not answered and len(args) == 1 and isinstance(args[0], int) and args[0] > 0
        if not once:  # what is wrong without us stays wrong
            return original(*args)
        answered.append(args[0])
        return None

    def told(original: Callable[..., Any]) -> Any:
        return (*answered, own)[0] if is_asked_by_script() else original()

    return undo_all([
        training.on_function(torch, "set_num_interop_threads", answer),
        training.on_function(torch, "get_num_interop_threads", told),
    ])  # fmt: skip


LEVER = Lever(
    name="inter_op_threads",
    phases=frozenset({Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OTHER}),
    effect=Effect.EXACT,
    scope=Scope.LAUNCH,
    kind=int,
    validate=at_least(1),
    settings=settings,
    gain_ratio=2.0,
    why_not=why_not,
    snippet=lambda count: f"torch.set_num_interop_threads({count})",
    promising=lambda context: False,
    apply=apply,
    edit="process.inter_op_threads",
)
