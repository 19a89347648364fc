"""The root calls of a script, those that are shared among processes and the others."""

from __future__ import annotations

import importlib
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.cgroup import available_bytes
from hasten.modules import weights_of
from hasten.root_calls.calls import loosen, signature
from hasten.root_calls.fit import plain_surroundings, uninitialized
from hasten.root_calls.ranks.batch import Join
from hasten.root_calls.ranks.examine import examine, messages_bytes
from hasten.root_calls.ranks.held_signals import signals_held
from hasten.root_calls.ranks.memory import room_bytes
from hasten.root_calls.ranks.messages import RootCall, Surroundings
from hasten.root_calls.ranks.refusals import differentiates_twice, unshareable
from hasten.root_calls.ranks.served import SharedModel
from hasten.root_calls.ranks.share import Share
from hasten.root_calls.ranks.weights import others_in
from hasten.root_calls.values import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hasten.lever import Training
    from hasten.root_calls.ranks.served import SharingModel

    Start = Callable[[RootCall, Share], SharingModel]

_PATIENCE_COUNT = 4
_FREE_START_COUNT, _CALLS_PER_START_COUNT = 5, 50
_MOST_MODELS_COUNT = 8
_MOST_MEMORY_RATIO = 0.5
_MOST_KINDS_COUNT = 16
_AGAIN_COUNTS = frozenset({10, 100, 1_000, 10_000, 100_000})


@dataclass(slots=True)
class _Kind:
    """Calls of one kind: the same structure and types, in the same surroundings.

    Where they draw, also the same sizes: what is drawn for the whole batch is told by its shape.
    """

    joins: tuple[Join, ...] = ()
    why_not: str = ""  # why they are made in one process
    message_ratio: float = 1.0  # bytes of inputs and outputs over those of the inputs
    call_count: int = 0
    marked: frozenset[tuple[int, bool]] = frozenset()  # see `_marked`


_NOT_SHARED = _Kind(why_not="there are too many kinds of calls")


@dataclass(slots=True)
class _Root:
    """One model, and its helpers while there are any."""

    served: SharingModel | None = None
    kinds: dict[Any, _Kind] = field(default_factory=dict)  # those that were examined
    drawing: set[Any] = field(default_factory=set)  # those that draw, without their sizes
    call_count: int = 0
    start_count: int = 0  # how often helpers were forked
    hook_serial: int = -1  # torch's count of hooks when the model was last looked at
    why_not: str = ""  # why it stays in one process
    is_loss: bool = False  # it has no weights
    has_settled: bool = False  # its first call has set attributes, and others may not

    @property
    def why_unshared(self) -> str:
        """Why none of its calls was shared, as far as that is known."""
        return self.why_not or next((kind.why_not for kind in self.kinds.values()), "")

    @property
    def is_shared(self) -> bool:
        """Whether some of its calls are made in several processes."""
        return not self.why_not and any(not kind.why_not for kind in self.kinds.values())

    def training(self, module: Any) -> tuple[bool, ...]:
        """Return whether each submodule is in training mode."""
        if self.served is not None:
            return self.served.held.training
        return tuple(part.training for part in module.modules())


class Ranks:
    """Answer root calls by several processes, where that gives what one gives.

    `idle` is called when it turns out that no model can be shared. `start` makes a model shared
    among ranks that are there already; otherwise helpers are forked.

    Attributes:
        has_shared: a call was made by several processes.
    """

    def __init__(
        self,
        training: Training,
        rank_count: int,
        idle: Callable[[], None],
        *,
        start: Start | None = None,
    ) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._training = training
        self._rank_count = rank_count
        self._idle = idle
        self._start = start
        self._is_excused = self.has_shared = False
        self._share = Share()
        # Helpers call a model through the levers of their fork. Modules may be equal.
        self._roots: Any = WeakIdKeyDictionary()
        self._plain = plain_surroundings()
        self._owner = os.getpid()
        self._differentiates_twice: str | None = None

    def attach(self) -> Callable[[], None]:
        """Start answering; calling the result stops it, and ends the helpers."""
        training = self._training
        undos = [training.on_call(self.call, innermost=-1)]
        for owner, name, answer in self._share.answers():
            undos.append(training.on_function(importlib.import_module(owner), name, answer))

        def detach() -> None:
            for undo in undos:
                undo()
            self._roots.clear()  # helpers end when the last graph is gone that goes through them

        return detach

    def call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        """Make a root call."""
        root = self._roots.setdefault(module, {}).setdefault(tuple(_levers(call)), _Root())
        root.call_count += 1
        if root.is_loss or not self._plain() or os.getpid() != self._owner:
            return call(args, kwargs)
        self._look(root, module)
        key = None if root.is_loss or root.why_not else signature((args, kwargs))
        tensors = [] if key is None else tensors_in((args, kwargs))
        size = next((len(tensor) for tensor in tensors if tensor.dim()), 0)
        if size < self._rank_count:
            self._excuse(root)
            return call(args, kwargs)
        root_call = RootCall(module, call, args, kwargs, tensors, size, self._surroundings())
        with nullcontext() if self._start is None else signals_held():
            return self._share_out(root, root_call, key)

    def _known(self) -> list[_Root]:
        return [root for each in self._roots.values() for root in each.values()]

    def _share_out(self, root: _Root, root_call: RootCall, key: Any) -> Any:
        """Make a call in several processes, unless its kind is known to be another in parts."""
        self._refresh(root)
        tensors = root_call.tensors
        cuts = tuple(tensor.dim() > 0 and len(tensor) == root_call.size for tensor in tensors)
        rest = cuts, root_call.surroundings, root.training(root_call.module)
        loose, exact = (loosen(key), tuple(numbers(key)), *rest), (key, *rest)
        known = root.kinds.get(exact if loose in root.drawing else loose)
        if root.why_not or (known is None and len(root.kinds) >= _MOST_KINDS_COUNT):
            known = _NOT_SHARED
        if known is None or (known.call_count in _AGAIN_COUNTS and not self._training.trial):
            return self._examine(root, root_call, loose, exact)
        is_mean = Join.MEAN in known.joins
        if known.why_not or (is_mean and _leaves_some_out(tensors)):
            self._excuse(root)
            return root_call.call(root_call.args, root_call.kwargs)
        if is_mean and not _marked(tensors) <= known.marked:  # a mask that nobody has seen act
            return self._examine(root, root_call, loose, exact)
        known.call_count += 1
        return self._answer(root, known, root_call)

    def _refresh(self, root: _Root) -> None:
        """Forget helpers that are lost or have another model, and what was known of the model."""
        served = root.served
        if served is None:
            return
        if changed := served.held.changed():
            root.kinds.clear()
            root.drawing.clear()
        elif not (changed := served.why_lost):
            return
        root.served = None
        if (root.start_count - _FREE_START_COUNT) * _CALLS_PER_START_COUNT > root.call_count:
            root.why_not = f"the model changes too often: {changed}"

    def _look(self, root: _Root, module: Any) -> None:
        from torch.utils.hooks import RemovableHandle

        serial = RemovableHandle.next_id
        if root.hook_serial == serial or uninitialized(module):
            return
        root.hook_serial = serial
        root.is_loss = next(weights_of(module), None) is None
        if root.is_loss:
            return
        if self._differentiates_twice is None:
            self._differentiates_twice = differentiates_twice()
        root.why_not = root.why_not or unshareable(module)
        if not root.why_not and self._start is None:
            root.why_not = self._without_room(module)
        root.why_not = self._differentiates_twice or root.why_not

    def _without_room(self, module: Any) -> str:
        tensors = [*weights_of(module), *others_in(module)]
        if sum(one.is_shared for one in self._known()) >= _MOST_MODELS_COUNT:
            return "the script has too many models"
        needed_bytes = 2 * self._rank_count * room_bytes(tensors)
        if needed_bytes > _MOST_MEMORY_RATIO * (available_bytes(Path("/")) or 0):
            return "the memory is too small for the gradients of helpers"
        return ""

    def _surroundings(self) -> Surroundings:
        import torch

        autocast = None
        if torch.is_autocast_enabled("cpu"):
            autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
        return Surroundings(torch.is_grad_enabled(), autocast, torch.get_num_threads())

    def _examine(self, root: _Root, root_call: RootCall, loose: Any, exact: Any) -> Any:
        def start(one: RootCall, room_bytes: int) -> SharingModel:
            if one.module is not root_call.module:
                return self._forked(one, room_bytes)
            return self._present(root, one, room_bytes)

        before, begun_s = root.kinds.get(exact) or root.kinds.get(loose), time.perf_counter()
        seen = examine(root_call, start)
        self._training.compiled(time.perf_counter() - begun_s)  # paid once, too
        if seen.may_settle and not root.has_settled:
            root.has_settled = True
            return seen.result
        if seen.draws:
            root.drawing.add(loose)
        if seen.is_final:
            root.why_not = seen.why_not
        ratio = messages_bytes(root_call, seen.result) / messages_bytes(root_call)
        count, marked = (before.call_count, before.marked) if before else (0, frozenset())
        marked |= _marked(root_call.tensors)
        self.has_shared = self.has_shared or not seen.why_not
        known = _Kind(seen.joins, seen.why_not, ratio, count + 1, marked)
        root.kinds[exact if seen.draws else loose] = known
        return seen.result

    def _forked(self, root_call: RootCall, room_bytes: int) -> SharingModel:
        import torch

        with torch.inference_mode(False):
            if self._start is not None:
                return self._start(root_call, self._share)
            return SharedModel(root_call, self._rank_count, room_bytes, self._share)

    def _present(self, root: _Root, root_call: RootCall, needed_bytes: int) -> SharingModel:
        """Return the model with helpers, and with room for messages of a size.

        Helpers that had too little room end when the last graph is gone that goes through them.
        """
        if root.served is None or root.served.room_bytes < needed_bytes:
            root.start_count += 1
            root.served = self._forked(root_call, needed_bytes + needed_bytes // 2)
        return root.served

    def _answer(self, root: _Root, known: _Kind, root_call: RootCall) -> Any:
        import torch

        state = torch.get_rng_state()
        needed_bytes = int(known.message_ratio * messages_bytes(root_call))
        served = None
        try:
            served = self._present(root, root_call, needed_bytes)
            found = served.answer(root_call, state)
        except Exception as error:
            root.served = None
            root.why_not = str(error) or type(error).__name__
            if served is not None:
                served.close(str(error))
        else:
            try:
                return found.joined(known.joins)
            except Exception as error:  # its outputs do not fit together
                known.why_not = str(error)
        if served is not None:
            served.restore_buffers()
        torch.set_rng_state(state)
        return root_call.call(root_call.args, root_call.kwargs)

    def _excuse(self, root: _Root) -> None:
        """Say why no model is shared, once others have had time to be."""
        import torch

        if self._is_excused or root.call_count <= _PATIENCE_COUNT:
            return
        if any(one.is_shared for one in self._known()):
            return
        if self._start is not None and not torch.is_grad_enabled():
            return  # what is evaluated is not what the ranks are there for
        if why := root.why_unshared:
            self._is_excused = True
            self._idle()
            self._training.excuse(RuntimeError(why))


def _levers(call: Any) -> Iterator[tuple[str, str]]:
    """Yield which other levers make a call; in a trial they come and go between two steps."""
    while isinstance(call, partial):
        yield call.func.__module__, call.func.__qualname__
        call = call.args[-1]


def numbers(key: Any) -> Iterator[float]:
    """Yield the numbers in a signature: what a model does may depend on an epoch or a factor.

    >>> list(numbers((list, (), (int, 3), (float, 0.0), (str, "mean"))))
    [3, 0.0]
    """
    if isinstance(key, tuple) and key and key[0] in (int, float):
        yield key[1]
    elif isinstance(key, tuple):
        for part in key:
            yield from numbers(part)


def _leaves_some_out(tensors: list[Any]) -> bool:
    """Return whether integers below zero mark what a mean leaves out, as `ignore_index` does."""
    integers = (tensor for tensor in tensors if not tensor.is_floating_point() and tensor.numel())
    return any(tensor.dtype.is_signed and bool((tensor < 0).any()) for tensor in integers)


def _marked(tensors: list[Any]) -> frozenset[tuple[int, bool]]:
    """Return which tensors have zeros, and which NaN: they may mark what is left out."""
    zeros = {(at, False) for at, tensor in enumerate(tensors) if not bool(tensor.all())}
    floats = ((at, tensor) for at, tensor in enumerate(tensors) if tensor.is_floating_point())
    return frozenset(zeros | {(at, True) for at, tensor in floats if bool(tensor.isnan().any())})
