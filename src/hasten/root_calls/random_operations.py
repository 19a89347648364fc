"""Where compiled code would draw random numbers other than plain torch's."""

from __future__ import annotations

from typing import Any

REFUSALS = 3
"""The version of this list of refusals; what an earlier one let through is recompiled."""
_IN_ORDER = (2, 13)
"""The release since which torch's compiler keeps draws in the script's order."""


def refuse_draws(graph: Any) -> None:
    """Look at a graph of torch's own operations before it is compiled.

    Raises:
        RuntimeError: its draws could come in another order or too late, or fill other places in
            memory.
    """
    drawn = [node for node in graph.graph.nodes if _draws(node)]
    if any(_draws_in_place(node) for node in drawn):
        raise RuntimeError("torch's compiler may read what the model draws before it is drawn")
    if len(drawn) > 1 and not _keeps_order():
        raise RuntimeError("this torch may draw the model's random numbers in another order")
    images = any(_dimension_count(node) in (4, 5) for node in drawn)
    if images and any(node.op == "placeholder" and _is_last(node) for node in graph.graph.nodes):
        raise RuntimeError("the model draws for feature maps that have their channels last")


def _draws(node: Any) -> bool:
    import torch

    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _draws_in_place(node: Any) -> bool:
    """Return whether a draw fills memory that was made before, as feature dropout does.

    Torch 2.13 fuses what reads such memory with what makes it, and draws after both.
    """
    name = str(node.target).removeprefix("aten.")
    return name.startswith("bernoulli") and name not in ("bernoulli.default", "bernoulli.out")


def _keeps_order() -> bool:
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= _IN_ORDER


def _value(node: Any) -> Any:
    """Return what a node gives, or the first of its results."""
    value = node.meta.get("val")
    return value[0] if isinstance(value, (list, tuple)) and value else value


def _dimension_count(node: Any) -> int:
    import torch

    value = _value(node)
    return value.dim() if isinstance(value, torch.Tensor) else 0


def _is_last(node: Any) -> bool:
    """Return whether an input is channels-last and not also channels-first."""
    if _dimension_count(node) not in (4, 5):
        return False
    shape, strides = _value(node).shape, _value(node).stride()
    # Tested this way, changing sizes stay symbolic: they are known to be neither 0 nor 1.
    return shape[1] != 1 and strides[1] == 1 and any(size != 1 for size in shape[2:])
