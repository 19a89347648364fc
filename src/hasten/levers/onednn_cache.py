"""onednn_cache: room for more shapes in oneDNN's cache of compiled operations.

Helps: scripts whose inputs come in many shapes (lengths, resolutions, last batches) and whose
    convolutions and LSTMs oneDNN runs: an operation that fell out of the cache is compiled again.
Hurts: memory, some tens of kilobytes for each operation that is kept.
Maths: exact. The same operations run, compiled once or again.
Source: https://uxlfoundation.github.io/oneDNN/dev_guide_primitive_cache.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.lever import Lever, at_least
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.lever import ScriptContext

_STOCK_COUNT, _MOST_COUNT = 1024, 65536
_FIRST_COUNT = 4096
# The layer itself, its two gradients, and as many changes of layout.
_PER_LAYER_COUNT = 6


def _need_count(context: ScriptContext) -> int | None:
    """Return about how many operations a pass over all shapes compiles; None if unknown."""
    shapes = context.traits.get("inputs.shape_count")
    layers = context.traits.get("model.onednn_layer_count")
    if shapes is None or layers is None:
        return None
    return int(shapes) * int(layers) * _PER_LAYER_COUNT


def settings(context: ScriptContext) -> tuple[int, ...]:
    """Return a size that holds what was seen, where the stock one does not."""
    need_count = _need_count(context)
    if (
        need_count is None
        or need_count <= _STOCK_COUNT
        or context.traits["inputs.shape_count"] == 1
    ):
        return ()
    size = _FIRST_COUNT
    while size < min(2 * need_count, _MOST_COUNT):
        size *= 2
    return (size,)


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try."""
    need_count = _need_count(context)
    if need_count is None:
        return "the loop calls no module of torch"
    shapes, layers = (
        context.traits["inputs.shape_count"],
        context.traits["model.onednn_layer_count"],
    )
    if shapes == 1:
        return "all inputs had one shape"
    return (
        f"inputs of {shapes} shapes through {layers} layers of oneDNN are at most {need_count} "
        f"operations, and the cache holds {_STOCK_COUNT}"
    )


def env(env: Mapping[str, str], size: int) -> Mapping[str, str]:
    """Set the size of oneDNN's cache and of torch's own in front of it; the user's stay."""
    return {
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(size),
        "LRU_CACHE_CAPACITY": str(size),
        **env,
    }


LEVER = Lever(
    name="onednn_cache",
    phases=frozenset({Phase.FORWARD, Phase.LOSS, Phase.BACKWARD}),
    effect=Effect.EXACT,
    scope=Scope.LAUNCH,
    kind=int,
    validate=at_least(1),
    settings=settings,
    gain_ratio=3.0,
    why_not=why_not,
    snippet=lambda size: (
        f"ONEDNN_PRIMITIVE_CACHE_CAPACITY={size} LRU_CACHE_CAPACITY={size} python ..."
        "  # in the shell"
    ),
    promising=lambda _: False,
    env=env,
)
