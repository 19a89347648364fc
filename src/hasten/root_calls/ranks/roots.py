"""The root calls of a script, those that are shared among processes and the others."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from hasten.root_calls.calls import loosen, signature
from hasten.root_calls.fit import plain_surroundings, unfit, uninitialized
from hasten.root_calls.ranks.batch import batch_size
from hasten.root_calls.ranks.examine import examine
from hasten.root_calls.ranks.exchange import LostRankError
from hasten.root_calls.ranks.memory import NoRoomError
from hasten.root_calls.ranks.messages import Asked, Surroundings
from hasten.root_calls.ranks.served import SharedModel, whole
from hasten.root_calls.ranks.share import Share
from hasten.root_calls.twins import second_derivatives

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import Training
    from hasten.root_calls.ranks.batch import Join

_PATIENCE_COUNT = 4
_FREE_RESTART_COUNT, _CALLS_PER_RESTART_COUNT = 5, 50
_AGAIN_COUNTS = frozenset({1_000, 10_000, 100_000})


class _Kind:
    """Calls of one kind: the same structure and types, in the same surroundings.

    Attributes:
        joins: how outputs of the whole batch follow from those of shares.
        draws: they draw from torch's generator.
        call_count: how many were answered.
    """

    def __init__(self, joins: tuple[Join, ...], draws: bool) -> None:
        self.joins = joins
        self.draws = draws
        self.call_count = 1


class _Root:
    """One model.

    Attributes:
        served: it and its helpers, while there are any.
        kinds: its kinds of calls that were examined.
        room_bytes: what messages take.
        call_count: calls so far.
        restart_count: how often helpers were started.
        hook_serial: torch's count of hooks when the model was last looked at.
        why_not: why it stays in one process; empty if it need not.
        is_left: it stays there for good.
        excused: the reason has been reported.
    """

    def __init__(self) -> None:
        self.served: SharedModel | None = None
        self.kinds: dict[Any, _Kind] = {}
        self.room_bytes = 0
        self.call_count = 0
        self.restart_count = 0
        self.hook_serial = -1
        self.why_not = ""
        self.is_left = False
        self.excused = False

    def training(self, module: Any) -> tuple[bool, ...]:
        """Return whether each part of the model trains."""
        if self.served is not None:
            return self.served.held.training
        return tuple(part.training for part in module.modules())

    def close(self, why: str) -> None:
        """End the helpers."""
        if self.served is not None:
            self.served.close(why)
            self.served = None


class Ranks:
    """Answer root calls by several processes, where that gives what one gives.

    Args:
        training: where root calls are made.
        rank_count: processes, with that of the script.
    """

    def __init__(self, training: Training, rank_count: int) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._training = training
        self._rank_count = rank_count
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
                root.close("the lever was switched off")
            self._roots.clear()

        return detach

    def call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        """Make a root call."""
        root = self._roots.get(module)
        if root is None:
            root = self._roots[module] = _Root()
        root.call_count += 1
        if root.is_left:
            self._excuse(root)
            return call(args, kwargs)
        if not self._plain() or os.getpid() != self._owner:
            return call(args, kwargs)
        key = signature((args, kwargs))
        size = batch_size((args, kwargs)) if key is not None else 0
        self._look(root, module)
        if root.is_left or size < self._rank_count:
            return call(args, kwargs)
        asked = Asked(module, call, args, kwargs, size, self._surroundings())
        kind = (loosen(key), asked.surroundings, root.training(module))
        known = root.kinds.get(kind)
        if known is None or known.call_count in _AGAIN_COUNTS:
            return self._examine(root, kind, asked)
        known.call_count += 1
        return self._answer(root, known, asked)

    def _look(self, root: _Root, module: Any) -> None:
        """Look at a model, and again whenever a hook was registered."""
        from torch.utils.hooks import RemovableHandle

        serial = RemovableHandle.next_id
        if root.hook_serial == serial or uninitialized(module):
            return
        root.hook_serial = serial
        if next(module.parameters(), None) is None:
            root.is_left = root.excused = True  # a loss: nothing to speak of
            return
        if self._second_derivatives is None:
            self._second_derivatives = second_derivatives()
        devices = {tensor.device.type for tensor in (*module.parameters(), *module.buffers())}
        why = unfit(module)
        if devices != {"cpu"}:
            why = "the model is not on the CPU"
        if self._second_derivatives:
            why = f"helpers give no gradients of gradients, and {self._second_derivatives}"
        if why:
            self._leave(root, why)

    def _surroundings(self) -> Surroundings:
        import torch

        autocast = None
        if torch.is_autocast_enabled("cpu"):
            autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
        return Surroundings(
            torch.is_grad_enabled(), autocast, torch.get_num_threads(), generator=None,
            training=None,
        )  # fmt: skip

    def _examine(self, root: _Root, kind: Any, asked: Asked) -> Any:
        def start(one: Asked, room_bytes: int) -> SharedModel:
            if one.module is not asked.module:
                return SharedModel(one, self._rank_count, room_bytes, self._share)
            root.room_bytes = max(root.room_bytes, room_bytes)
            served = root.served
            is_fit = served is not None and served.room_bytes >= room_bytes and not served.lost
            if served is None or not is_fit or served.held.changed():
                served = self._start(root, asked)
            return served

        seen = examine(asked, start)
        if seen.why_not:
            self._leave(root, seen.why_not)
        else:
            count = root.kinds[kind].call_count if kind in root.kinds else 0
            known = root.kinds[kind] = _Kind(seen.joins, seen.draws)
            known.call_count += count
        return seen.result

    def _start(self, root: _Root, asked: Asked) -> SharedModel:
        """Fork helpers; those before end when the last graph is gone that goes through them."""
        root.restart_count += 1
        root.served = SharedModel(asked, self._rank_count, root.room_bytes, self._share)
        return root.served

    def _present(self, root: _Root, asked: Asked) -> SharedModel:
        """Return the model with helpers that have it as it is now.

        Raises:
            LostRankError: it changes too often.
        """
        served = root.served
        changed = "its size" if served is None else served.lost or served.held.changed()
        if served is not None and not changed:
            return served
        spent = root.restart_count - _FREE_RESTART_COUNT
        if spent * _CALLS_PER_RESTART_COUNT > root.call_count:
            raise LostRankError(f"the model is changed too often: {changed}")
        return self._start(root, asked)

    def _answer(self, root: _Root, known: _Kind, asked: Asked) -> Any:
        import torch

        state = torch.get_rng_state() if known.draws else None
        try:
            own, parts, shares = self._present(root, asked).answer(asked, state)
            return whole(own, parts, known.joins, shares)
        except NoRoomError:
            root.served = None  # its lines are out of step
            root.room_bytes *= 2
        except Exception as error:
            root.close(str(error))
            self._leave(root, str(error) or type(error).__name__)
        if state is not None:
            torch.set_rng_state(state)
        return asked.call(asked.args, asked.kwargs)

    def _leave(self, root: _Root, why: str) -> None:
        """Leave a model in one process from now on."""
        root.close(why)
        root.is_left, root.why_not = True, why

    def _excuse(self, root: _Root) -> None:
        """Say why a model stays in one process, once others have had time to be shared."""
        if root.excused or root.call_count <= _PATIENCE_COUNT:
            return
        root.excused = True
        if not any(other.served for other in self._roots.values()):
            self._training.excuse(RuntimeError(root.why_not))
