"""ranks: compute each batch in several processes of this machine, a share in each.

Helps: models whose operations do not use all cores: many small layers, normalization, work in
    Python between operations. The script runs once, with its data, its optimizer and its files.
Hurts: models that fill the cores already, small batches, and calls that take less than about a
    millisecond: inputs, outputs and gradients are copied between the processes. Helpers take
    memory for activations and gradients, and cores from loader workers.
Maths: rounding. Gradients of the shares are added. Normalization by batch takes the statistics of
    the whole batch; `dropout`, `rand`, `randn` and their kin draw for the whole batch. The first
    call of each kind, and now and then a later one, is made in one process, too; where outputs,
    gradients or buffers differ, as where samples of a batch depend on one another, such calls stay
    there. So do models that return a mean of what values select (hard examples, an ignored label)
    or one that is clamped, models with hooks, those that change attributes in a call after their
    first, those of whose own code a call may print, log or write files, and all models of a script
    that asks for second derivatives.
Source: https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hasten.lever import Lever, undo_all
from hasten.records import Effect, Phase, Scope
from hasten.root_calls.ranks.roots import Ranks
from hasten.root_calls.threads import hold_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training
    from hasten.records import Traits

_SETTING = re.compile(r"([2-9]|[1-9]\d+)x([1-9]\d*)")


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    traits = context.traits
    if not traits.model.parameter_count:
        return "the loop calls no module with parameters"
    if why := context.off_cpu():
        return why
    if traits.rank_count > 1:
        return "several processes train together already"
    if traits.compiler.is_used:
        return "the script uses torch.compile"
    if traits.model.unshared:
        return traits.model.unshared
    return "" if context.machine.budget.core_count > 1 else "the job has one core"


def settings(context: ScriptContext) -> tuple[str, ...]:
    """Return ranks by threads for all cores, or nearly all, the most even division first.

    >>> from hasten.testing import SERVER
    >>> from hasten.lever import ScriptContext
    >>> from hasten.records import ModelTraits, Traits
    >>> model = ModelTraits(parameter_count=1, device="cpu")
    >>> settings(ScriptContext(machine=SERVER, traits=Traits(model=model)))
    ('4x4', '8x2', '2x8', '16x1')
    """
    if why_not(context):
        return ()
    cores = context.machine.budget.core_count
    counts = [2**power for power in range(1, cores.bit_length())]
    counts.sort(key=lambda count: (abs(count - cores / count), -count))
    return tuple(f"{count}x{cores // count}" for count in counts)


def validate(setting: str) -> str:
    """Say what a setting looks like; empty for one that does."""
    return "" if _SETTING.fullmatch(setting) else "RANKSxTHREADS, such as 2x4"


def _parts(setting: str) -> tuple[int, int]:
    ranks, _, threads = setting.partition("x")
    return int(ranks), int(threads)


def provides(setting: str, traits: Traits) -> Traits:
    """Return the traits of a script whose model is computed by several processes."""
    ranks, threads = _parts(setting)
    return replace(traits, helper_count=ranks - 1, thread_count=threads)


def redundant_with(setting: str, traits: Traits) -> str:
    """Say which other lever leaves nothing to share; empty for none."""
    if traits.compiler.is_used:
        return "the model is compiled as a whole"
    return "no step is computed by the CPU" if traits.model.is_on_accelerator else ""


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Share root calls among processes, each with its threads.

    Where no model can be shared, the script has its own number of threads again.
    """
    ranks, threads = _parts(setting)
    held = [hold_threads(training, threads)]

    def free() -> None:
        while held:
            held.pop()()

    return undo_all([Ranks(training, ranks, idle=free).attach(), free])


LEVER = Lever(
    name="ranks",
    phases=frozenset({Phase.FORWARD, Phase.BACKWARD}),
    effect=Effect.ROUNDING,
    scope=Scope.PROCESS,
    kind=str,
    validate=validate,
    settings=settings,
    gain_ratio=4.0,
    shares_cpus=lambda _: True,
    why_not=why_not,
    snippet=lambda setting: (
        "torch.distributed.init_process_group('gloo')  # under torchrun, with a\n"
        "model = DistributedDataParallel(model)  # DistributedSampler, a share of the batch size\n"
        f"torch.set_num_threads({_parts(setting)[1]})"
    ),
    promising=lambda context: False,
    provides=provides,
    redundant_with=redundant_with,
    settle_count=2,
    patience_s=60.0,
    apply=apply,
    run_only="DistributedDataParallel needs a sampler, and changes what a batch and its loss are",
)
