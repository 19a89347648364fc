"""compiled_optimizer: the update of each large weight as one compiled loop over its memory.

Helps: classes without a fused kernel (RMSprop, Adadelta, RAdam, NAdam, Adamax, ASGD) with weights
    beyond the cache: they go five to ten times over all of their memory, compiled once. By class
    1.2 to 5 times, at a million elements each.
Hurts: runs that end before compiling has paid for itself, which takes seconds.
Maths: rounding. Bias corrections are taken in float32, not in Python's numbers. States, options
    and checkpoints stay the optimizer's own; weights of less than a million elements are updated
    as ever, and all of them where torch cannot compile the update.
Source: https://docs.pytorch.org/tutorials/recipes/compiling_optimizer.html
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hasten.compile.compiled_updates import LARGE_COUNT, Updates
from hasten.compile.graph import inductor
from hasten.lever import Lever, undo_all
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.lever import ScriptContext, Training
    from hasten.records import Setting

_NAMES = ("RMSprop", "Adadelta", "RAdam", "NAdam", "Adamax", "ASGD")
_LIKELY_RATIO = 4
_FUSABLE = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})


def settings(context: ScriptContext) -> tuple[bool, ...]:
    """Return the one setting there is, for an optimizer of torch that loops over its tensors."""
    return () if why_not(context) else (True,)


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    traits = context.traits
    name = traits.get("optimizer.name")
    if name is None:
        return "the script updates its weights by hand"
    if name in _FUSABLE:
        return f"torch has a fused {name}, which is compiled already"
    if name not in _NAMES:
        return f"{name} is not one of the classes whose update is compiled"
    if traits.get("optimizer.foreach"):
        return f"the script's {name} takes all tensors at once"
    if traits.get("model.device", "cpu") != "cpu":
        return "on an accelerator torch takes all tensors at once"
    if 0 < int(traits.get("model.parameter_count", 0)) < LARGE_COUNT:
        return f"the model has fewer than {LARGE_COUNT:,} weights: their update stays in the cache"
    if refused := traits.get("compile.refused"):
        return str(refused)
    return "" if traits.get("compile.cxx") else "no C++ compiler is found (g++ or clang++)"


def promising(context: ScriptContext) -> bool:
    """Return whether there are so many weights that most of them belong to large tensors."""
    return int(context.traits.get("model.parameter_count", 0)) >= _LIKELY_RATIO * LARGE_COUNT


def redundant_with(setting: bool, traits: Mapping[str, Setting]) -> str:
    """Say that torch takes all tensors at once under a plan, so that none is left to this."""
    taken = traits.get("optimizer.foreach")
    return "under this plan torch takes all tensors at once" if taken else ""


def apply(training: Training, setting: bool) -> Callable[[], None]:
    """Let compiled code update the large weights of every optimizer of these classes."""
    updates = Updates(training, inductor("default"))
    undos = []
    for name in _NAMES:
        module = importlib.import_module(f"torch.optim.{name.lower()}")
        seam = f"_single_tensor_{name.lower()}"
        if hasattr(module, seam):
            undos.append(training.on_function(module, seam, updates.answer))

    return undo_all(undos)


LEVER = Lever(
    name="compiled_optimizer",
    phases=frozenset({Phase.OPTIMIZER}),
    effect=Effect.ROUNDING,
    scope=Scope.PROCESS,  # switching back forgets what took long to compile
    settings=settings,
    gain_ratio=8.0,
    cures=frozenset({"per-parameter-loops"}),
    why_not=why_not,
    snippet=lambda _: (
        "step = torch.compile(optimizer.step)  # with lr=torch.tensor(...), or each new rate\n"
        "# compiles anew; call step() in place of optimizer.step()"
    ),
    promising=promising,
    redundant_with=redundant_with,
    settle_count=3,
    patience_s=300.0,
    start_ratio=2.5,
    apply=apply,
)
