"""How a batch is cut into shares, and how the outputs of its shares are joined."""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.root_calls.calls import nodes_behind

if TYPE_CHECKING:
    from collections.abc import Sequence


_NEGATIVE = 1 << 63  # what autograd shows as an unsigned number is below zero from here on
_SELECTING = ("IndexBackward", "MaskedSelect", "Topk", "Sort", "Kthvalue", "NanToNum", "Unique")
_BENDING = (
    "Abs", "Amax", "Amin", "Celu", "Clamp", "Elu", "Fmax", "Fmin", "Hard", "Huber", "Kthvalue",
    "LeakyRelu", "LinalgVectorNorm", "MaskedFill", "Max", "Median", "Min", "NormBackward", "Prelu",
    "Relu", "Rrelu", "SmoothL1", "Softplus", "Softshrink", "Sort", "Threshold", "Topk", "Where",
)  # fmt: skip
_MEAN = 1  # torch's number of this reduction
_ADDING = ("MeanBackward", "NansumBackward", "SumBackward")


class Span(NamedTuple):
    """The samples of one share: from `low` to `high` of `size`."""

    low: int
    high: int
    size: int

    @property
    def sample_count(self) -> int:
        """Samples in this share."""
        return self.high - self.low


class Join(Enum):
    """How one output of the whole batch follows from those of its shares."""

    CONCATENATED = "concatenated"
    MEAN = "mean"
    SUM = "sum"


def split(size: int, count: int) -> list[Span]:
    """Cut a batch into shares of nearly equal size.

    >>> [(span.low, span.high) for span in split(5, 2)]
    [(0, 2), (2, 5)]
    """
    ends = [size * place // count for place in range(count + 1)]
    return [Span(low, high, size) for low, high in pairwise(ends)]


def cut(tensor: Any, span: Span) -> Any:
    """Return one share of a tensor, or all of it where its first dimension is not the batch's."""
    is_batch = tensor.dim() and len(tensor) == span.size
    return tensor[span.low : span.high] if is_batch else tensor


def find_join(whole: Any, shares: Sequence[Any], spans: Sequence[Span], tolerance: float) -> Join:
    """Find how an output of the whole batch follows from those of its shares.

    Raises:
        ValueError: in no way that is known; the message says what the output is like.
    """
    if whole.dim():
        each, rest = divmod(len(whole), spans[0].size)  # rows of a sample
        sizes = [each * span.sample_count for span in spans]
        if each and not rest and [len(share) if share.dim() else 0 for share in shares] == sizes:
            return Join.CONCATENATED
    elif whole.is_floating_point():
        scalars = Join.MEAN, Join.SUM
        fits = [join for join in scalars if is_near(joined(join, shares, spans), whole, tolerance)]
        if len(fits) > 1:
            raise ValueError("an output of 0 does not tell a mean from a sum")
        if fits:
            check_scalar(whole, fits[0], spans[0].size)
            return fits[0]
    shape = tuple(whole.shape)
    raise ValueError(f"an output of shape {shape} does not follow from those of the shares")


def check_scalar(output: Any, join: Join, size: int) -> None:
    """Check that what is behind an output, if it has a graph, leaves it the mean or sum it seems.

    Raises:
        ValueError: values of another batch may make it something else.
    """
    if join is Join.MEAN and (name := selecting(output)):
        raise ValueError(f"an output may be a mean of what values select ({name})")
    if name := bending(output, size):
        raise ValueError(f"an output bends a sum or a mean over the batch ({name})")


def selecting(output: Any) -> str:
    """Return the operation behind an output that keeps some of its values; empty for none.

    The mean of what is kept is no mean of those of the shares, though it may begin as one: until
    a threshold leaves something out, or a label is the one that is to be ignored.
    """
    names = (
        str(node.name()) for node in nodes_behind([output])
        if node.name().startswith(_SELECTING)
        or getattr(node, "_saved_ignore_index", _NEGATIVE) < _NEGATIVE
        or (getattr(node, "_saved_reduction", 0) == _MEAN and _has_class_weights(node))
    )  # fmt: skip
    return min(names, default="")


def _has_class_weights(node: Any) -> bool:
    return node.name().startswith("NllLoss") and node._saved_weight is not None


def bending(output: Any, size: int) -> str:
    """Return the operation behind an output that bends a sum over the batch; empty for none.

    Where it is straight, as a clamp is above its bound, shares are joined as if it were not there;
    beyond they are not, and one batch does not show both.
    """
    nodes = nodes_behind([output])
    users: dict[Any, list[Any]] = {}
    for node in nodes:
        for before, _ in node.next_functions:
            users.setdefault(before, []).append(node)
    waiting, later = [node for node in nodes if _adds_up(node, size)], set[Any]()
    while waiting:
        fresh = [user for user in users.get(waiting.pop(), ()) if user not in later]
        later.update(fresh)
        waiting += fresh
    names = (str(node.name()) for node in later)
    return min((name for name in names if name.startswith(_BENDING)), default="")


def _adds_up(node: Any, size: int) -> bool:
    """Return whether an operation sums or averages over the samples of a batch."""
    if getattr(node, "_saved_reduction", 0):  # one of torch's own losses
        return True
    sizes = getattr(node, "_saved_self_sym_sizes", ()) if node.name().startswith(_ADDING) else ()
    place = next((index for index, count in enumerate(sizes) if count % size == 0), None)
    if place is None:
        return False
    dims = getattr(node, "_saved_dim", None) or range(len(sizes))
    return place in {(dim - (dim >= _NEGATIVE) * 2 * _NEGATIVE) % len(sizes) for dim in dims}


def joined(join: Join, shares: Sequence[Any], spans: Sequence[Span]) -> Any:
    """Return the output of the whole batch from those of its shares, with their gradients."""
    import torch

    if join is Join.CONCATENATED:
        return torch.cat(list(shares))
    if join is Join.MEAN:
        pairs = zip(shares, spans, strict=True)
        shares = [share * (span.sample_count / span.size) for share, span in pairs]
    return sum(shares[1:], shares[0])


def wide(tensor: Any) -> Any:
    """Return a tensor in double precision."""
    import torch

    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def is_near(found: Any, expected: Any, tolerance: float, floor: float = 0.0) -> bool:
    """Return whether two tensors differ by a small norm: relative to that expected, or a floor."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    found, expected = found.detach(), expected.detach()
    if not (found.is_floating_point() or found.is_complex()):
        return bool((found == expected).all())
    if not found.numel():
        return True
    found, expected = wide(found), wide(expected)
    return bool((found - expected).norm() <= tolerance * expected.norm() + floor)
