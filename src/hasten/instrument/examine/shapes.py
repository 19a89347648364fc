"""How much of the tokens that a model is called with is padding."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from hasten.instrument.operation_timing import is_compiled
from hasten.instrument.source_lines import own_place
from hasten.instrument.stand_ins import StandIns

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.instrument.watch import Watch

_LEAST_LENGTH, _LEAST_ROWS = 8, 2
_AMONG_RATIO = 1.5
_NESTED = ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "narrow")


class Shapes:
    """Count the tokens of each step that are padding.

    Padding is the run of one value at the end (or start) of the rows of a 2-D integer
    tensor that goes to a model with an embedding, whose length differs between rows; or
    what an `attention_mask` leaves out. A model that packs its rows computes none of it.
    """

    def __init__(self, watch: Watch) -> None:
        import torch

        self._embeds: dict[int, bool] = {}
        self._now = [0, 0, 0]
        self._counts: list[list[int]] = []
        self._place: tuple[str, int] | None = None
        self._packed = False
        self._undos = ExitStack()
        if is_compiled():  # torch's compiler knows these functions by their identity
            return
        owners: list[tuple[Any, str]] = [(torch._VF, "_pack_padded_sequence")]
        owners += [(torch.nested, name) for name in _NESTED if hasattr(torch.nested, name)]
        stand_ins = StandIns(lambda: True)
        for owner, name in owners:
            self._undos.callback(stand_ins.add(owner, name, self._pack))

    def _pack(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._packed = True
        return original(*args, **kwargs)

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Look at the tokens of a root call."""
        import torch

        if id(module) not in self._embeds:
            kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
            self._embeds[id(module)] = any(isinstance(part, kinds) for part in module.modules())
        if not self._embeds[id(module)]:
            return
        mask = kwargs.get("attention_mask")
        inputs = (value for value in (*args, *kwargs.values()) if value is not mask)
        tokens = next(filter(_is_tokens, inputs), None)
        if tokens is None:
            return
        with torch.no_grad():
            given = isinstance(mask, torch.Tensor) and mask.shape == tokens.shape
            is_padding = mask == 0 if given else padding(tokens)
            for i, count in enumerate(count_padding(is_padding)):
                self._now[i] += count
        self._place = self._place or own_place(sys._getframe(1))

    def ended(self) -> None:
        """Note the counts of a step."""
        self._counts.append(self._now)
        self._now = [0, 0, 0]

    def end(self) -> dict[str, Any]:
        """Return tokens, padding, and padding that every row of a batch has, by step."""
        self._undos.close()
        if not any(total for total, _, _ in self._counts):
            return {}
        return {"padding": self._counts, "place": self._place, "packed": self._packed}


def _is_tokens(value: Any) -> bool:
    import torch

    if not isinstance(value, torch.Tensor) or value.dim() != 2 or value.is_cuda:
        return False
    whole = value.dtype in (torch.int64, torch.int32)
    return whole and value.shape[0] >= _LEAST_ROWS and value.shape[1] >= _LEAST_LENGTH


def padding(tokens: Any) -> Any:
    """Return which tokens are padding, at whichever end there is more of it."""
    ends = (_tail(tokens), _tail(tokens.flip(1)).flip(1))
    return max(ends, key=lambda found: int(found.sum()))


def _tail(tokens: Any) -> Any:
    """Return the runs at the ends of rows, for the value that most of the longer runs have."""
    last = tokens[:, -1:]
    run = (tokens == last).flip(1).cumprod(1).flip(1).bool()
    longer = run.sum(1) > 1
    if not bool(longer.any()):
        return run & False
    value = last[longer].mode(0).values
    run &= last == value
    # A value that also occurs elsewhere in the rows is a category, not padding.
    if int((tokens == value).sum()) > _AMONG_RATIO * int(run.sum()):
        return run & False
    return run


def count_padding(is_padding: Any) -> tuple[int, int, int]:
    """Return the counts of tokens, of padding, and of padding in columns of nothing else."""
    columns = int(is_padding.all(0).sum()) * is_padding.shape[0]
    return is_padding.numel(), int(is_padding.sum()), columns


EXAMINER = Shapes
