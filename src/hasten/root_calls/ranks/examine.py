"""Whether several processes give for a root call what one does: both are tried, from one state."""

from __future__ import annotations

import copy
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.root_calls.random_state_use import states, went_on
from hasten.root_calls.ranks.batch import find_join, is_near, tensors_in
from hasten.root_calls.ranks.graph import gradients
from hasten.root_calls.ranks.held_state import HeldState
from hasten.root_calls.ranks.memory import NoRoomError, room_bytes
from hasten.root_calls.ranks.served import whole
from hasten.root_calls.twins import Snapshot
from hasten.root_calls.values import with_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.root_calls.ranks.batch import Join
    from hasten.root_calls.ranks.messages import Asked
    from hasten.root_calls.ranks.served import SharedModel

    Start = Callable[[Asked, int], SharedModel]

_SPARE_BYTES = 2**20
_LARGEST_COPY_BYTES = 2**28
_ROUNDING_COUNT = 100  # rounding errors in a result, relative to its norm
_PROVED_TOLERANCE = 1e-2


class SharingCheck(NamedTuple):
    """What an examined call showed.

    Attributes:
        result: what the script gets.
        joins: how its outputs follow from those of shares; empty if they do not.
        draws: the call draws from torch's generator.
        why_not: why shares give something else; empty if they do not.
    """

    result: Any
    joins: tuple[Join, ...] = ()
    draws: bool = False
    why_not: str = ""


class _DiffersError(Exception):
    """Shares give something else; the message says what."""


class _Plainly(NamedTuple):
    """A call that was made in one process, and the generator and buffers before and after it."""

    result: Any
    before: Snapshot
    after: Snapshot


def examine(asked: Asked, start: Start) -> SharingCheck:
    """Make a root call in one process, and again in several; compare.

    ShareOutputs, gradients, buffers and the state of the random generator have to agree. They are
    compared for a copy of the model in double precision first: in single precision a rounding
    error that decides the sign of what enters a ReLU lets gradients jump. Whatever comes out,
    generator and buffers of the model are left as after one call.

    Args:
        asked: the call.
        start: returns the model of a call with helpers, given the bytes that messages take.
    """
    inputs = tensors_in((asked.args, asked.kwargs))
    held, versions = HeldState(asked.module), [tensor._version for tensor in inputs]
    others = states()
    plain = _plainly(asked)
    why = _unfit(asked.module, plain.result, held, others)
    if versions != [tensor._version for tensor in inputs]:
        why = "the model writes to its inputs"
    if why:
        return SharingCheck(plain.result, why_not=why)
    draws = plain.before.drew(plain.after)
    try:
        with redirect_stdout(None):  # a model that prints has done so
            tolerance = _PROVED_TOLERANCE if _prove(asked, plain, start) else _tolerance(asked)
            ours, joins = _compare(asked, plain, start, tolerance)
    except (_DiffersError, ValueError, NoRoomError, RuntimeError, OSError) as error:
        why = f"a batch cannot be shared among processes: {error or type(error).__name__}"
        plain.after.restore()
        return SharingCheck(plain.result, why_not=why)
    plain.after.restore()
    return SharingCheck(ours, joins, draws)


def _plainly(asked: Asked) -> _Plainly:
    before = Snapshot(asked.module)
    result = asked.call(asked.args, asked.kwargs)
    return _Plainly(result, before, Snapshot(asked.module))


def _prove(asked: Asked, plain: _Plainly, start: Start) -> bool:
    """Return whether a copy in double precision gives the same; False if there can be none.

    Raises:
        _DiffersError: it gives something else.
    """
    import torch

    if room_bytes(asked.module.parameters()) > _LARGEST_COPY_BYTES:
        return False

    def wider(tensor: Any) -> Any:
        if not tensor.is_floating_point():
            return tensor
        return tensor.detach().double().requires_grad_(tensor.requires_grad)

    plain.before.restore()
    try:
        module = copy.deepcopy(asked.module).double()
        args, kwargs = with_tensors((asked.args, asked.kwargs), wider)
        twin = asked._replace(
            module=module, args=args, kwargs=kwargs,
            call=lambda args, kwargs: module(*args, **kwargs),
        )  # fmt: skip
        found = _plainly(twin)
    except Exception:
        return False  # its code is for its own precision
    tensors = [tensor for tensor in tensors_in(found.result) if tensor.is_floating_point()]
    if any(tensor.dtype != torch.float64 for tensor in tensors):
        return False
    _compare(twin, found, start, _tolerance(twin))
    return True


def _compare(
    asked: Asked, plain: _Plainly, start: Start, tolerance: float
) -> tuple[Any, tuple[Join, ...]]:
    """Make a call in several processes, and compare it with one in a single process.

    Returns:
        What the call returned, and how it follows from what shares returned.

    Raises:
        _DiffersError: they differ by more than rounding.
    """
    outputs = tensors_in(plain.result)
    plain.before.restore()
    inputs = tensors_in((asked.args, asked.kwargs))
    served = start(asked, _SPARE_BYTES + 2 * room_bytes([*inputs, *outputs]))
    generator = plain.before.generator if plain.before.drew(plain.after) else None
    own, parts, shares = served.answer(asked, generator)
    if len(outputs) != len(parts):
        raise _DiffersError("it returns something else")
    pairs = zip(outputs, parts, strict=True)
    joins = tuple(find_join(output, part, shares, tolerance) for output, part in pairs)
    ours = whole(own, parts, joins, shares)
    if plain.after.drew(Snapshot(asked.module)):
        raise _DiffersError("it draws random numbers that cannot be drawn in parts")
    if not plain.after.is_near(tolerance):
        raise _DiffersError("its buffers become others")
    _compare_numbers(_numbers(asked, plain.result), _numbers(asked, ours), tolerance)
    return ours, joins


def _compare_numbers(expected: list[Any], found: list[Any], tolerance: float) -> None:
    if [one is None for one in expected] != [one is None for one in found]:
        raise _DiffersError("weights get gradients that had none")
    known = [(one, other) for one, other in zip(expected, found, strict=True) if one is not None]
    norm = max((float(one.double().norm()) for one, _ in known), default=0.0)
    for one, other in known:
        if not is_near(other, one, tolerance, tolerance * norm):
            raise _DiffersError("its outputs or gradients become others")


def _numbers(asked: Asked, value: Any) -> list[Any]:
    """Return the outputs of a call, and the gradients that they send to weights and inputs."""
    import torch

    outputs = tensors_in(value)
    plain = [output.detach() for output in outputs]
    learning = [output for output in outputs if output.requires_grad]
    if not learning:
        return plain
    tensors = (*asked.module.parameters(), *tensors_in((asked.args, asked.kwargs)))
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
        for output in learning
    ]
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    return [*plain, *gradients(learning, given, wanted, keeps_graph=True)]


def _unfit(module: Any, result: Any, held: HeldState, others: dict[str, Any]) -> str:
    """Say what a call did that helpers could not do in the script's place; empty for nothing."""
    import torch

    if went_on(others):
        return "the model draws random numbers otherwise than by torch"
    if changed := held.changed():
        return f"a call of the model changes {changed}"
    learning = [output for output in tensors_in(result) if output.requires_grad]
    normalizes = any(
        isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.training
        for part in module.modules()
    )
    if normalizes and len(learning) > 1:
        # Ranks meet in each such layer, and go back through them in an order that may differ.
        return "the model normalizes by batch and has several outputs"
    return ""


def _tolerance(asked: Asked) -> float:
    """Return by how much results may differ, relative to their norm: some rounding errors."""
    import torch

    weights = asked.module.parameters()
    dtypes = {weight.dtype for weight in weights if weight.is_floating_point()}
    if asked.surroundings.autocast is not None:
        dtypes.add(asked.surroundings.autocast[0])
    worst = max((torch.finfo(dtype).eps for dtype in dtypes), default=2.0**-23)
    return _ROUNDING_COUNT * worst if worst < 1e-6 else 4 * worst
