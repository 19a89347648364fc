"""Whether a script may use what it moved to a device on another stream than its current one."""

from __future__ import annotations

import gc
from functools import wraps
from inspect import unwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_OWN: list[Any] = []  # of all devices; they are few, and a stream is never given back


def own_stream(module: Any, target: Any) -> Any:
    """Return a new stream for hasten's copies, which no `ScriptStreams` counts."""
    new = unwrap(module.Stream.__new__)  # past those that watch other devices
    _OWN.append(new(module.Stream, target))
    return _OWN[-1]


class ScriptStreams:
    """Looks for streams beside the default one: those that live, then each new one.

    `torch.Stream` itself is a class of C: nobody can list or count its instances, and only the
    code that names it shows that there may be some.

    Args:
        mentioned: says where the script's code names streams.
        on_another: called once, before the first new stream is there.

    Attributes:
        are_several: there may be such a stream.
    """

    def __init__(
        self, module: Any, mentioned: Callable[[], str], on_another: Callable[[], None]
    ) -> None:
        self._kind = module.Stream
        self._original = self._kind.__dict__.get("__new__")
        self._on_another = on_another
        self.are_several = bool(mentioned()) or self._has_living(module)
        if self._is_watchable and not self.are_several:
            self._watch(self._original.__func__)

    @property
    def _is_watchable(self) -> bool:
        return isinstance(self._original, staticmethod)

    def _has_living(self, module: Any) -> bool:
        return self._is_watchable and any(
            issubclass(type(each), self._kind)
            and each not in _OWN
            and each != module.default_stream(each.device)
            for each in gc.get_objects()
        )

    def _watch(self, new: Callable[..., Any]) -> None:
        @wraps(new)
        def noted(kind: Any, *args: Any, **kwargs: Any) -> Any:
            # With `stream_id` a stream that is there already gets another Python object.
            if "stream_id" not in kwargs and not self.are_several:
                self.are_several = True
                self._on_another()
            return new(kind, *args, **kwargs)

        self._kind.__new__ = staticmethod(noted)

    def close(self) -> None:
        """Look no more; of several that watch one class, the last first."""
        if self._is_watchable:
            self._kind.__new__ = self._original
