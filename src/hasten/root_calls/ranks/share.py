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
    from hasten.root_calls.ranks.exchange import Exchange

    Draw = Callable[[tuple[int, ...]], Any]

_LAYERS = "torch.nn.functional"
# The parameters of torch's functions, in order, and their defaults.
_DROPOUT: dict[str, Any] = {"input": None, "p": 0.5, "training": True, "inplace": False}
_BATCH_NORM: dict[str, Any] = {
    "input": None, "running_mean": None, "running_var": None, "weight": None, "bias": None,
    "training": False, "momentum": 0.1, "eps": 1e-5,
}  # fmt: skip


class Share:
    """The share that this process computes now."""

    def __init__(self) -> None:
        self._span: Span | None = None
        self._exchange: Exchange | None = None

    @contextmanager
    def of(self, span: Span, exchange: Exchange) -> Iterator[None]:
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
        shape, layout = tuple(x.shape), _format_of(x)
        if channel_dimension_count:
            shape, layout = (*shape[:2], *[1] * channel_dimension_count), torch.contiguous_format

        def draw(shape: tuple[int, ...]) -> Any:
            noise = torch.empty(shape, dtype=x.dtype, memory_format=layout)
            return noise.bernoulli_(1.0 - p).div_(1.0 - p)

        noise = self._whole(shape, draw)
        return x.mul_(noise) if given["inplace"] else x * noise

    def _drawn_like(self, original: Any, *args: Any, **options: Any) -> Any:
        import torch

        like = args[0] if args else options.pop("input")

        def draw(shape: tuple[int, ...]) -> Any:
            whole = torch.empty(shape, dtype=like.dtype, memory_format=_format_of(like))
            return original(whole, **options)

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


def _format_of(tensor: Any) -> Any:
    import torch

    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if last is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=last):
        return last
    return torch.contiguous_format
