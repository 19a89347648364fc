"""What torch's functions do in one share of a batch, so that the batch as a whole is the same.

Random numbers are drawn for the whole batch, by each rank from the same state of the generator,
and cut. Normalization by batch takes the statistics of all shares.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.root_calls.ranks.batch_norm import normalize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hasten.root_calls.ranks.batch import Span
    from hasten.root_calls.ranks.exchange import Meets

    Draw = Callable[[tuple[int, ...]], Any]

_LAYERS = "torch.nn.functional"
# The parameters of torch's functions, in order, and their defaults.
_DROPOUT: dict[str, Any] = {"input": None, "p": 0.5, "training": True, "inplace": False}
_ATTENTION: dict[str, Any] = {
    "query": None, "key": None, "value": None, "attn_mask": None, "dropout_p": 0.0,
    "is_causal": False, "scale": None, "enable_gqa": False,
}  # fmt: skip
_BATCH_NORM: dict[str, Any] = {
    "input": None, "running_mean": None, "running_var": None, "weight": None, "bias": None,
    "training": False, "momentum": 0.1, "eps": 1e-5,
}  # fmt: skip


class Share:
    """The share that this process computes now."""

    def __init__(self) -> None:
        self._span: Span | None = None
        self._exchange: Meets | None = None

    @contextmanager
    def of(self, span: Span, exchange: Meets) -> Iterator[None]:
        """Compute a share; the ranks meet at `exchange`."""
        self._span, self._exchange = span, exchange
        exchange.begin()
        try:
            yield
        finally:
            self._span = self._exchange = None

    def answers(self) -> Iterator[tuple[str, str, Callable[..., Any]]]:
        """Yield the functions to replace: the module, the name, and what answers in its place.

        An answer takes the original function before its arguments.
        """
        for count, name in enumerate(("dropout", "dropout1d", "dropout2d", "dropout3d")):
            yield _LAYERS, name, partial(self._within, partial(self._dropout, count))
        yield _LAYERS, "scaled_dot_product_attention", partial(self._within, self._attention)
        yield _LAYERS, "batch_norm", partial(self._within, self._batch_norm)
        for name in ("randn_like", "rand_like"):
            yield "torch", name, partial(self._within, self._drawn_like)
        for name in ("randn", "rand"):
            yield "torch", name, partial(self._within, self._drawn_of_size)

    def _within(self, answer: Any, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        return (
            original(*args, **kwargs) if self._span is None else answer(original, *args, **kwargs)
        )

    def _whole(self, shape: tuple[int, ...], draw: Draw) -> Any:
        """Draw for the whole batch, and return this share's part of it.

        A shape that no multiple of the share's samples begins is drawn as it is, by all alike.
        """
        span = self._span
        if span is None or not shape or shape[0] % span.sample_count:
            return draw(shape)
        each = shape[0] // span.sample_count
        whole = draw((each * span.size, *shape[1:]))
        return whole[each * span.low : each * span.high]

    def _dropout(
        self, channel_dimension_count: int, original: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Drop as torch does, elements or, with dimensions behind the channels, whole channels."""
        import torch

        given = _DROPOUT | dict(zip(_DROPOUT, args, strict=False)) | kwargs
        x, p = given["input"], given["p"]
        is_batch = not channel_dimension_count or x.dim() == 2 + channel_dimension_count
        if not (given["training"] and 0.0 < p < 1.0 and x.numel() and is_batch):
            return original(*args, **kwargs)
        like, dims = x, channel_dimension_count
        if dims:
            like = torch.empty((*x.shape[:2], *[1] * dims), dtype=x.dtype, device="meta")

        def draw(shape: tuple[int, ...]) -> Any:
            noise = _laid_out_as(like, shape)
            return noise.bernoulli_(1.0 - p).div_(1.0 - p)

        noise = self._whole(tuple(like.shape), draw)
        return x.mul_(noise) if given["inplace"] else x * noise

    def _attention(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Attend as torch does on the CPU where attention is dropped, operation by operation."""
        import torch

        given = _ATTENTION | dict(zip(_ATTENTION, args, strict=False)) | kwargs
        p, mask, query = given["dropout_p"], given["attn_mask"], given["query"]
        if not p or given["enable_gqa"]:
            return original(*args, **kwargs)
        if given["is_causal"]:
            sizes = query.shape[-2], given["key"].shape[-2]
            mask = torch.ones(sizes, dtype=torch.bool).tril()
        if mask is not None and mask.dtype is torch.bool:
            mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
        scale = (given["scale"] or query.shape[-1] ** -0.5) ** 0.5
        weights = (query * scale) @ (given["key"] * scale).transpose(-2, -1)
        softmax = getattr(torch, "_safe_softmax", torch.softmax)  # zeros where all is masked
        weights = softmax(weights if mask is None else weights + mask, -1)
        return torch.nn.functional.dropout(weights, p) @ given["value"]

    def _drawn_like(self, original: Any, *args: Any, **options: Any) -> Any:
        like = args[0] if args else options.pop("input")

        def draw(shape: tuple[int, ...]) -> Any:
            return original(_laid_out_as(like, shape), **options)

        return self._whole(tuple(like.shape), draw)

    def _drawn_of_size(self, original: Any, *size: Any, **options: Any) -> Any:
        shape = options.pop("size", size)
        if len(shape) == 1 and not isinstance(shape[0], int):
            shape = shape[0]
        return self._whole(tuple(shape), lambda shape: original(shape, **options))

    def _batch_norm(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        given = _BATCH_NORM | dict(zip(_BATCH_NORM, args, strict=False)) | kwargs
        if not given["training"] or self._exchange is None:
            return original(*args, **kwargs)
        core: Any = torch._C
        if core._len_torch_function_stack():  # who follows operations is asked first, as by torch
            known = torch.nn.functional.batch_norm
            asked = (given["input"],)
            return torch.overrides.handle_torch_function(known, asked, *args, **kwargs)
        return normalize(**given, exchange=self._exchange)


def _laid_out_as(like: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor with its dimensions in memory in the order of another's: so torch draws."""
    import torch

    order = sorted(range(len(shape)), key=lambda place: -like.stride(place))
    dense = torch.empty([shape[place] for place in order], dtype=like.dtype)
    return dense.permute([order.index(place) for place in range(len(shape))])
