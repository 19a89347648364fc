"""Where a module leaves Python: TorchScript, `torch.export`, ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from upshift.lever import Training

# Each is asked for in its module where it is needed, also by a script that imported
# `torch.jit.script` by name. The older way to ONNX goes
# through none of them.
_EXPORTS = (
    ("torch.jit._recursive", "create_script_module"),
    ("torch.export._trace", "_export"),
    ("torch.export._trace", "_export_for_training"),
    ("torch.onnx", "export"),
)


def before_exports(training: Training, prepare: Callable[[Any], None]) -> list[Callable[[], None]]:
    """Call `prepare(module)` right before a module is exported; the results end that.

    What is exported is read by other programs: it can neither be answered for nor put back later.
    """

    def answer(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("is_tracing"):  # a script may draw its model's graph as it trains
            prepare(model)
        return original(model, *args, **kwargs)

    return [training.on_function(owner, name, answer) for owner, name in _EXPORTS]
