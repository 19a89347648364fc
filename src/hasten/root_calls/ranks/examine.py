"""Whether several processes give for a root call what one does: both are tried, from one state."""

from __future__ import annotations

import copy
import io
import zlib
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.modules import weights_of
from hasten.root_calls.calls import leaves_among, nodes_behind
from hasten.root_calls.own_code import partial_gradients
from hasten.root_calls.ranks.batch import Join, check_scalar, find_join, is_near, wide
from hasten.root_calls.ranks.batch_sums import scaled_by_sums
from hasten.root_calls.ranks.held_state import HeldState
from hasten.root_calls.ranks.helper import gradients
from hasten.root_calls.ranks.memory import room_bytes
from hasten.root_calls.snapshot import Snapshot, states, went_on
from hasten.root_calls.values import tensors_in, with_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.root_calls.ranks.messages import RootCall
    from hasten.root_calls.ranks.served import SharingModel

    Start = Callable[[RootCall, int], SharingModel]  # given the bytes that messages take

_SPARE_BYTES = 2**20
_LARGEST_COPY_BYTES = 2**28
_ROUNDING_COUNT = 100  # rounding errors in a result, relative to its norm
_PROOF_TOLERANCE = 1e-10  # in double precision, of deep models too
_PROVED_TOLERANCE = 1e-2  # once that has shown that there is only rounding
_ALIKE = (bool, int, str, type(None))  # a share has the same, where they do not count samples


class SharingCheck(NamedTuple):
    """What an examined call showed."""

    result: Any  # what the script gets
    joins: tuple[Join, ...] = ()  # how its outputs follow from those of the shares
    draws: bool = False  # from torch's generator
    why_not: str = ""  # why the shares give something else
    is_final: bool = False  # it is no use to examine other calls of the model
    may_settle: bool = False  # unless only the first call changes the model


class _DiffersError(Exception):
    """The shares give something else; the message says what."""


class _PlainCall(NamedTuple):
    """A call that was made in one process, and the generator and buffers before and after it."""

    result: Any
    before: Snapshot
    after: Snapshot


def examine(root_call: RootCall, start: Start) -> SharingCheck:
    """Make a root call in one process, and again in several; compare.

    Outputs, gradients, buffers and the state of the random generator have to agree. They are first
    compared for a copy of the model in double precision: in single precision a rounding error that
    decides the sign of what enters a ReLU lets gradients jump. Whatever comes out, generator and
    buffers of the model are left as after one call.
    """
    import torch

    effects = SideEffects(root_call)
    plain = _call_plainly(root_call)
    if why := effects.found(plain.result) or _unfit(root_call, plain.result):
        return SharingCheck(
            plain.result, why_not=why, is_final=True, may_settle=effects.has_changed
        )
    draws = not torch.equal(plain.before.generator, plain.after.generator)
    try:
        with redirect_stdout(io.StringIO()):  # a model that prints has done so
            # A copy that is made under inference_mode could not be watched.
            with (
                torch.inference_mode(False),
                torch.set_grad_enabled(root_call.surroundings.with_grad),
            ):
                is_proved = _prove(root_call, plain, start)
            tolerance = _PROVED_TOLERANCE if is_proved else _tolerance(root_call)
            ours, joins = _compare(root_call, plain, start, tolerance)
            _check_scale(root_call, plain, joins)
    except Exception as error:
        why = f"a batch cannot be shared among processes: {str(error) or type(error).__name__}"
        plain.after.restore()
        return SharingCheck(plain.result, draws=draws, why_not=why)
    plain.after.restore()
    return SharingCheck(ours, joins, draws)


def messages_bytes(root_call: RootCall, result: Any = ()) -> int:
    """Return the bytes to reserve for the messages of a call, given what it returns."""
    return _SPARE_BYTES + 2 * room_bytes([*root_call.tensors, *tensors_in(result)])


def _call_plainly(root_call: RootCall) -> _PlainCall:
    before = Snapshot(root_call.module)
    result = root_call.call(root_call.args, root_call.kwargs)
    return _PlainCall(result, before, Snapshot(root_call.module))


def _prove(root_call: RootCall, plain: _PlainCall, start: Start) -> bool:
    """Return whether a copy in double precision gives the same; False if there can be none."""
    import torch

    if room_bytes(weights_of(root_call.module)) > _LARGEST_COPY_BYTES:
        return False

    def wider(tensor: Any) -> Any:
        if not tensor.is_floating_point():
            return tensor
        return tensor.detach().double().requires_grad_(tensor.requires_grad)

    plain.before.restore()
    try:
        args, kwargs = with_tensors((root_call.args, root_call.kwargs), wider)
        twin = _of_a_copy(root_call)._replace(
            args=args, kwargs=kwargs, tensors=tensors_in((args, kwargs)),
            surroundings=root_call.surroundings._replace(autocast=None),
        )  # fmt: skip
        twin.module.double()
        with torch.autocast("cpu", enabled=False):
            found = _call_plainly(twin)
    except Exception:
        return False  # its code is for its own precision
    tensors = [tensor for tensor in tensors_in(found.result) if tensor.is_floating_point()]
    if any(tensor.dtype != torch.float64 for tensor in tensors):
        return False
    with torch.autocast("cpu", enabled=False):
        _compare(twin, found, start, _PROOF_TOLERANCE, _tolerance(twin))
    return True


def _of_a_copy(root_call: RootCall) -> RootCall:
    """Return a call of a copy of its model."""
    module = copy.deepcopy(root_call.module, _kept(root_call.module))
    return root_call._replace(module=module, call=lambda args, kwargs: module(*args, **kwargs))


def _kept(module: Any) -> dict[int, Any]:
    """Return what a copy of a model shares with it: objects that are no part of its values."""
    import torch

    copied = (torch.nn.Module, torch.Tensor, dict, list, tuple, set)
    values = (value for part in module.modules() for value in vars(part).values())
    return {id(value): value for value in values if not isinstance(value, copied)}


def _compare(
    root_call: RootCall,
    plain: _PlainCall,
    start: Start,
    tolerance: float,
    scalar_tolerance: float | None = None,
) -> tuple[Any, tuple[Join, ...]]:
    """Make a call in several processes; return what it gave, and how that follows from shares.

    Scalars may be given a tolerance of their own: what is divided by a count to which somebody
    added 1e-8 is nearly a mean, and none.
    """
    import torch

    outputs = tensors_in(plain.result)
    plain.before.restore()
    served = start(root_call, messages_bytes(root_call, plain.result))
    found = served.answer(root_call, plain.before.generator)
    with served.agreeing():  # what follows may differ from share to share
        if not torch.equal(torch.get_rng_state(), plain.after.generator):
            raise _DiffersError("it draws random numbers that cannot be drawn in parts")
        _compare_forms(plain.result, found.own)
        if not _are_near(plain, root_call.module, tolerance):
            raise _DiffersError("its buffers differ from those of one process")
    pairs = zip(outputs, found.tensors, strict=True)
    of_scalars = tolerance if scalar_tolerance is None else scalar_tolerance
    joins = tuple(
        find_join(output, each, found.spans, tolerance if output.dim() else of_scalars)
        for output, each in pairs
    )
    ours = found.joined(joins)
    _compare_numbers(_numbers(root_call, plain.result), _numbers(root_call, ours), tolerance)
    return ours, joins


def _check_scale(root_call: RootCall, plain: _PlainCall, joins: tuple[Join, ...]) -> None:
    """Make a call once more, to see how it computes; scalars with a graph, in evaluation too.

    What a model does only with gradients is then done by a copy, as the script did not ask for it.
    """
    import torch

    plain.before.restore()
    has_scalars = any(join is not Join.CONCATENATED for join in joins)
    infers = torch.is_inference_mode_enabled()
    has_graph = root_call.surroundings.with_grad and not infers
    is_small = room_bytes(weights_of(root_call.module)) <= _LARGEST_COPY_BYTES
    is_copied = has_scalars and not has_graph and is_small
    with (
        torch.inference_mode(infers and not is_copied),
        torch.set_grad_enabled(has_graph or is_copied),
    ):
        if is_copied:
            root_call = _of_a_copy(root_call)
        name, result = scaled_by_sums(root_call, has_scalars=has_scalars)
    if name:
        raise _DiffersError(f"it may divide by what it counts in the batch ({name})")
    for output, join in zip(tensors_in(result), joins, strict=True):
        if join is not Join.CONCATENATED:
            check_scalar(output, join, root_call.size)


def _are_near(plain: _PlainCall, module: Any, tolerance: float) -> bool:
    """Return whether buffers are what they were after one call in one process, but for rounding.

    A running mean that is zero may be only rounding: it is judged by the deviation beside it.
    """
    import torch

    buffers = dict(module.named_buffers())
    pairs = zip(buffers, plain.after.buffers, strict=False)
    after = {name: value for name, value in pairs if value is not None}
    for name, value in after.items():
        variance = after.get(f"{name.removesuffix('running_mean')}running_var")
        floor = 0.0 if variance is None else tolerance * float(variance.double().sum().sqrt())
        if not (
            torch.equal(buffers[name], value) or is_near(buffers[name], value, tolerance, floor)
        ):
            return False
    return True


def _compare_numbers(expected: list[Any], found: list[Any], tolerance: float) -> None:
    if [one is None for one in expected] != [one is None for one in found]:
        raise _DiffersError("other weights get gradients")
    known = [(one, other) for one, other in zip(expected, found, strict=True) if one is not None]
    norm = max((float(wide(one).norm()) for one, _ in known), default=0.0)
    for one, other in known:
        if not is_near(other, one, tolerance, tolerance * norm):
            raise _DiffersError("its outputs or gradients differ from those of one process")


def _numbers(root_call: RootCall, value: Any) -> list[Any]:
    import torch

    outputs = tensors_in(value)
    plain = [output.detach() for output in outputs]
    requiring = [output for output in outputs if output.requires_grad]
    if not requiring:
        return plain
    tensors = (*weights_of(root_call.module), *root_call.tensors)
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
        for output in requiring
    ]
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    return [*plain, *gradients(requiring, given, wanted, keeps_graph=True)]


def _unfit(root_call: RootCall, result: Any) -> str:
    import torch

    if not tensors_in(result):
        return "the model returns no tensor"
    requiring = [output for output in tensors_in(result) if output.requires_grad]
    normalizes = any(
        isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.training
        for part in root_call.module.modules()
    )
    if normalizes and len(requiring) > 1:
        # Ranks meet in each such layer, and go back through them in an order that may differ.
        return "the model has batch normalization and several differentiable outputs"
    if (normalizes or are_joined(result)) and (where := partial_gradients()):
        return f"a gradient may be asked for part of the model: {where}"
    return ""


def _compare_forms(expected: Any, found: Any) -> None:
    import torch

    if type(expected) is not type(found):
        raise _DiffersError("a share returns something else")
    if isinstance(expected, torch.Tensor):
        return
    if (parts := _parts(expected)) is None:
        if not isinstance(expected, _ALIKE) or expected != found:
            raise _DiffersError(f"it returns an object of class {type(expected).__name__}")
        return
    others = _parts(found) or {}
    if list(parts) != list(others):
        raise _DiffersError("a share returns something else")
    for name, part in parts.items():
        _compare_forms(part, others[name])


def _parts(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    return None


def _tolerance(root_call: RootCall) -> float:
    """Return by how much results may differ, relative to their norm: some rounding errors."""
    import torch

    weights = weights_of(root_call.module)
    dtypes = {weight.dtype for weight in weights if weight.is_floating_point()}
    if root_call.surroundings.autocast is not None:
        dtypes.add(root_call.surroundings.autocast[0])
    worst = max((torch.finfo(dtype).eps for dtype in dtypes), default=2.0**-23)
    return _ROUNDING_COUNT * worst if worst < 1e-6 else 4 * worst


# ---- what a call did beside returning something, and what it learns beside its parameters


class SideEffects:
    """Looks at a model and its inputs before a call in one process, and again after it."""

    def __init__(self, root_call: RootCall) -> None:
        self._module = root_call.module
        self._inputs = root_call.tensors
        self._held = HeldState(self._module)
        self._buffers = {id(buffer) for buffer in self._module.buffers()}
        self._generators = states()
        self._before, self._arrays = self._written_to(), self._checksums()
        self.has_changed = False  # attributes, or variables that its code reads

    def found(self, result: Any) -> str:
        """Say what helpers could not do in the script's place; empty for nothing."""
        if went_on(self._generators):
            return "the model draws random numbers from Python or NumPy"
        if why := self._held.unwatchable:
            return why
        if changed := self._held.changed():
            self.has_changed = True
            return f"a call of the model changes {changed}"
        if self._checksums() != self._arrays:
            return "a call of the model changes an array"
        if self._written_to() != self._before:
            return "a call of the model writes to its weights, their gradients or its inputs"
        if _leaves_behind(result, self._inputs) - set(map(id, weights_of(self._module))):
            return "the model learns weights that are not among its parameters"
        return ""

    def _written_to(self) -> list[Any]:
        """Return where the tensors lie that a call may read only, and how often they were written.

        Buffers are left out: they are compared by value.
        """
        tensors = [*self._held.tensors, *self._inputs]
        tensors = [tensor for tensor in tensors if id(tensor) not in self._buffers]
        found = [(id(tensor), tensor.data_ptr(), tensor._version) for tensor in tensors]
        grads = [weight.grad for weight in weights_of(self._module) if weight.grad is not None]
        return found + [(id(grad), grad.data_ptr(), grad._version) for grad in grads]

    def _checksums(self) -> list[int]:
        """Return one for each array of NumPy, which counts no writes."""
        return [zlib.crc32(array.tobytes()) for array in self._held.arrays]


def are_joined(result: Any) -> bool:
    """Return whether the gradient of one output goes through another."""
    outputs = [output for output in tensors_in(result) if output.grad_fn is not None]
    nodes = {output.grad_fn for output in outputs}
    if len(outputs) < 2:
        return False
    return len(nodes) < len(outputs) or any(
        (nodes - {output.grad_fn}) & nodes_behind([output]) for output in outputs
    )


def _leaves_behind(result: Any, inputs: list[Any]) -> set[int]:
    """Return the ids of the tensors that get gradients from a result, not by way of its inputs."""
    return set(map(id, leaves_among(nodes_behind(tensors_in(result), inputs))))
