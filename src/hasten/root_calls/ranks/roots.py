"""The root calls of a script, those that are shared among processes and the others."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hasten.root_calls.calls import loosen, signature
from hasten.root_calls.fit import plain_surroundings, unfit, uninitialized
from hasten.root_calls.ranks.batch import batch_size, tensors_in
from hasten.root_calls.ranks.examine import examine, messages_bytes
from hasten.root_calls.ranks.exchange import LostRankError
from hasten.root_calls.ranks.memory import NoRoomError
from hasten.root_calls.ranks.messages import RootCall, Surroundings
from hasten.root_calls.ranks.served import SharedModel
from hasten.root_calls.ranks.share import Share
from hasten.root_calls.twins import second_derivatives

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import Training
    from hasten.root_calls.ranks.batch import Join

_PATIENCE_COUNT = 4
_FREE_RESTART_COUNT, _CALLS_PER_RESTART_COUNT = 5, 50
_MOST_KINDS_COUNT = 16
_AGAIN_COUNTS = frozenset({1_000, 10_000, 100_000})


@dataclass(slots=True)
class _Kind:
    """Calls of one kind: the same structure and types, in the same surroundings.

    Where they draw, also the same sizes: what is drawn for the whole batch is told by its shape.

    Attributes:
        joins: how outputs of the whole batch follow from those of the shares.
        draws: they draw from torch's generator.
        why_not: why they are made in one process; empty if they are not.
        message_ratio: bytes of inputs and outputs over those of the inputs.
        call_count: how many were answered.
    """

    joins: tuple[Join, ...]
    draws: bool
    why_not: str
    message_ratio: float
    call_count: int


@dataclass(slots=True)
class _Root:
    """One model.

    Attributes:
        served: it and its helpers, while there are any.
        kinds: its kinds of calls that were examined.
        drawing: those that draw, without their sizes.
        room_bytes: what messages take.
        call_count: calls so far.
        restart_count: how often helpers were started.
        hook_serial: torch's count of hooks when the model was last looked at.
        why_not: why it stays in one process; empty if it need not.
        is_loss: it has no weights.
    """

    served: SharedModel | None = None
    kinds: dict[Any, _Kind] = field(default_factory=dict)
    drawing: set[Any] = field(default_factory=set)
    room_bytes: int = 0
    call_count: int = 0
    restart_count: int = 0
    hook_serial: int = -1
    why_not: str = ""
    is_loss: bool = False

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

    Args:
        training: where root calls are made.
        rank_count: processes, with that of the script.
        idle: called when it turns out that no model can be shared.
    """

    def __init__(self, training: Training, rank_count: int, idle: Callable[[], None]) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._training = training
        self._rank_count = rank_count
        self._idle = idle
        self._is_excused = False
        self._share = Share()
        self._roots: Any = WeakIdKeyDictionary()  # modules may be equal
        self._plain = plain_surroundings()
        self._owner = os.getpid()
        self._second_derivatives: str | None = None

    def attach(self) -> Callable[[], None]:
        """Start answering; calling the result stops it, and ends the helpers."""
        training = self._training
        undos = [training.on_call(self.call, innermost=-1)]
        for owner, name, answer in self._share.answers():
            undos.append(training.on_function(importlib.import_module(owner), name, answer))

        def detach() -> None:
            for undo in undos:
                undo()
            for root in list(self._roots.values()):
                if root.served is not None:
                    root.served.close("the lever was switched off")
            self._roots.clear()

        return detach

    def call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        """Make a root call."""
        root = self._roots.get(module)
        if root is None:
            root = self._roots[module] = _Root()
        root.call_count += 1
        if root.is_loss or not self._plain() or os.getpid() != self._owner:
            return call(args, kwargs)
        self._look(root, module)
        key = None if root.is_loss or root.why_not else signature((args, kwargs))
        size = 0 if key is None else batch_size((args, kwargs))
        if size < self._rank_count:
            self._excuse(root)
            return call(args, kwargs)
        root_call = RootCall(module, call, args, kwargs, size, self._surroundings())
        return self._share_out(root, root_call, key)

    def _share_out(self, root: _Root, root_call: RootCall, key: Any) -> Any:
        """Make a call in several processes, unless its kind is known to be another in parts."""
        tensors = tensors_in((root_call.args, root_call.kwargs))
        cuts = tuple(tensor.dim() > 0 and len(tensor) == root_call.size for tensor in tensors)
        loose = loosen(key), cuts, root_call.surroundings, root.training(root_call.module)
        kind = (key, *loose[1:]) if loose in root.drawing else loose
        known = root.kinds.get(kind)
        if known is None and len(root.kinds) < _MOST_KINDS_COUNT:
            return self._examine(root, root_call, loose, (key, *loose[1:]))
        if known is None or known.why_not:
            self._excuse(root)
            return root_call.call(root_call.args, root_call.kwargs)
        if known.call_count in _AGAIN_COUNTS:
            return self._examine(root, root_call, loose, (key, *loose[1:]), known.call_count)
        known.call_count += 1
        return self._answer(root, known, root_call)

    def _look(self, root: _Root, module: Any) -> None:
        """Look at a model, and again whenever a hook was registered."""
        from torch.utils.hooks import RemovableHandle

        serial = RemovableHandle.next_id
        if root.hook_serial == serial or uninitialized(module):
            return
        root.hook_serial = serial
        root.is_loss = next(module.parameters(), None) is None
        if self._second_derivatives is None:
            self._second_derivatives = second_derivatives()
        devices = {tensor.device.type for tensor in (*module.parameters(), *module.buffers())}
        root.why_not = root.why_not or unfit(module)
        if devices != {"cpu"}:
            root.why_not = "the model is not on the CPU"
        if where := self._second_derivatives:
            root.why_not = f"helpers give no gradients of gradients, and {where}"

    def _surroundings(self) -> Surroundings:
        import torch

        autocast = None
        if torch.is_autocast_enabled("cpu"):
            autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
        return Surroundings(
            torch.is_grad_enabled(), autocast, torch.get_num_threads(), generator=None,
            training=None,
        )  # fmt: skip

    def _examine(
        self, root: _Root, root_call: RootCall, loose: Any, exact: Any, count: int = 0
    ) -> Any:
        def start(one: RootCall, room_bytes: int) -> SharedModel:
            if one.module is not root_call.module:
                return SharedModel(one, self._rank_count, room_bytes, self._share)
            root.room_bytes = max(root.room_bytes, room_bytes)
            served = root.served
            if served is None or served.lost or served.room_bytes < room_bytes:
                return self._start(root, root_call)
            return self._start(root, root_call) if served.held.changed() else served

        seen = examine(root_call, start)
        if seen.draws:
            root.drawing.add(loose)
        if seen.is_final:
            root.why_not = seen.why_not
        ratio = messages_bytes(root_call, seen.result) / messages_bytes(root_call)
        known = _Kind(seen.joins, seen.draws, seen.why_not, ratio, count + 1)
        root.kinds[exact if seen.draws else loose] = known
        return seen.result

    def _start(self, root: _Root, root_call: RootCall) -> SharedModel:
        """Fork helpers; those before end when the last graph is gone that goes through them."""
        root.restart_count += 1
        root.served = SharedModel(root_call, self._rank_count, root.room_bytes, self._share)
        return root.served

    def _present(self, root: _Root, known: _Kind, root_call: RootCall) -> SharedModel:
        """Return the model with helpers that have it as it is now.

        Raises:
            LostRankError: it changes too often.
        """
        served = root.served
        needed_bytes = int(known.message_ratio * messages_bytes(root_call))
        root.room_bytes = max(root.room_bytes, needed_bytes)
        if served is None or served.room_bytes < needed_bytes:
            changed = "batches grow"
            root.room_bytes += root.room_bytes // 2
        else:
            changed = served.lost or served.held.changed()
        if served is not None and not changed:
            return served
        spent = root.restart_count - _FREE_RESTART_COUNT
        if spent * _CALLS_PER_RESTART_COUNT > root.call_count:
            raise LostRankError(f"helpers would have to be forked again too often: {changed}")
        return self._start(root, root_call)

    def _answer(self, root: _Root, known: _Kind, root_call: RootCall) -> Any:
        import torch

        state = torch.get_rng_state()
        served = None
        try:
            served = self._present(root, known, root_call)
            found = served.answer(root_call, state if known.draws else None)
            return found.joined(known.joins)
        except NoRoomError:
            root.served = None  # its helpers are out of step
            root.room_bytes *= 2
        except Exception as error:
            root.served = None
            root.why_not = str(error) or type(error).__name__
        if served is not None:
            served.close("a call failed")
            served.restore_buffers()
        torch.set_rng_state(state)
        return root_call.call(root_call.args, root_call.kwargs)

    def _excuse(self, root: _Root) -> None:
        """Say why no model is shared, once others have had time to be."""
        if self._is_excused or root.call_count <= _PATIENCE_COUNT:
            return
        if any(one.is_shared for one in self._roots.values()):
            return
        if why := root.why_not or next((kind.why_not for kind in root.kinds.values()), ""):
            self._is_excused = True
            self._idle()
            self._training.excuse(RuntimeError(why))
