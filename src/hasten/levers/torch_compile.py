"""torch_compile: run training calls of the model as compiled code (torch.compile).

Helps: models that spend their time on many small or elementwise operations, which get fused.
Hurts: runs that end before compiling has paid for itself; models with large matrix products and
    convolutions, which stay library calls. Calls that differ each time are not compiled. A run
    after a tuning finds what its trials have compiled, and still loads the compiler and traces
    the model.
Maths: rounding. Fused operations keep intermediate values that plain torch rounds, and sum in
    another order. Random numbers are drawn as by plain torch. Evaluation, odd last batches,
    modules with hooks, models that torch cannot compile as one graph, models with weights behind
    outputs that no loss asks for, and all models of a script whose code asks for second
    derivatives run as plain torch. The module itself stays as it is: its class, keys, pickles and
    copies.
Source: https://dev-discuss.pytorch.org/t/torchinductor-update-5-cpu-backend-backend-performance-update-and-deep-dive-on-key-optimizations/1117
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hasten.lever import Lever, one_of, unless
from hasten.records import Effect, Phase, Scope
from hasten.root_calls.graph import inductor
from hasten.root_calls.twins import PATIENCE_COUNT, Twins

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training

_MODES = one_of("default", "max-autotune-no-cudagraphs")


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    traits = context.traits
    if traits.compiler.is_used:
        return "the script uses torch.compile itself"
    if not traits.model.parameter_count:
        return "the loop calls no module with parameters"
    if traits.compiler.refused:
        return traits.compiler.refused
    if traits.model.device == "cuda":
        return "" if traits.compiler.has_triton else "Triton is not installed"
    return "" if traits.compiler.cxx else "no C++ compiler is found (g++ or clang++)"


def validate(mode: str) -> str:
    """Say which modes it takes: those without CUDA graphs."""
    wanted = _MODES(mode)
    return f"{wanted} (CUDA graphs overwrite what the script keeps of a step)" if wanted else ""


def promising(context: ScriptContext) -> bool:
    """Return whether the model is on a GPU; on a CPU as many models lose as win."""
    return context.traits.model.device == "cuda"


def apply(training: Training, mode: str) -> Callable[[], None]:
    """Answer training calls of root modules with compiled code."""
    return Twins(training, inductor(mode)).attach()


def snippet(mode: str) -> str:
    """Return the nearest equivalent by hand."""
    chosen = "" if mode == "default" else f', mode="{mode}"'
    return (
        "torch._inductor.config.fallback_random = True  # draws as plain torch does\n"
        f"compiled = torch.compile(model, fullgraph=True{chosen})\n"
        "# call compiled(...) to train, and model(...) to evaluate; save model.state_dict()"
    )


LEVER = Lever(
    name="torch_compile",
    phases=frozenset({Phase.FORWARD, Phase.BACKWARD}),
    effect=Effect.ROUNDING,
    scope=Scope.PROCESS,  # switching back forgets what took long to compile
    kind=str,
    validate=validate,
    settings=unless(why_not, "default"),
    gain_ratio=2.0,
    why_not=why_not,
    snippet=snippet,
    promising=promising,
    provides=lambda _, traits: replace(traits, compiler=replace(traits.compiler, is_used=True)),
    redundant_with=lambda _, traits: (
        "each helper would have to compile its share" if traits.helper_count else ""
    ),
    settle_count=PATIENCE_COUNT + 4,
    patience_s=600.0,
    start_ratio=5.0,
    apply=apply,
    edit="models.torch_compile",
)
