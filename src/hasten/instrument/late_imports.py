"""Functions of modules that the script may import late, or never."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from functools import partial, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from hasten.instrument.stand_ins import put

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Answer = Callable[..., Any]
    Undo = Callable[[], None]


def stand_in_later(home: str, name: str, answer: Answer) -> Undo:
    """Replace a function by `answer(original, *args, **kwargs)` once its module is imported.

    This does not import the module. If the module has no such function, nothing is done.

    Args:
        home: the name of the module.
        name: of the function in it, dotted for a method of a class.
        answer: asked in every thread.
    """
    placed: list[Undo] = []

    def place() -> None:
        placed.append(_replace(sys.modules[home], name, answer))

    if _has(home, name) or _is_complete(home):
        place()
        return placed[0]
    arrival = _Arrival(home, place)
    sys.meta_path.insert(0, arrival)

    def undo() -> None:
        arrival.stay_away()
        for one in placed:
            one()

    return undo


def _is_complete(home: str) -> bool:
    """Return whether a module is there and its import is over."""
    module = sys.modules.get(home)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _has(home: str, name: str) -> bool:
    """Return whether a function is there already.

    Levers act as soon as torch has run, when the import system still counts it as importing.
    """
    try:
        attrgetter(name)(sys.modules[home])
    except (KeyError, AttributeError):
        return False
    return True


def _replace(module: ModuleType, name: str, answer: Answer) -> Undo:
    inside, _, last = name.rpartition(".")
    owner: Any = attrgetter(inside)(module) if inside else module
    original = vars(owner).get(last)
    if original is None:
        return lambda: None

    @wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return partial(answer, original)(*args, **kwargs)

    return put(owner, last, stand_in)


class _Arrival(importlib.abc.MetaPathFinder):
    """Calls `then` right after the module `home` has run for the first time.

    A module that is being imported already is found complete at a later import.
    """

    def __init__(self, home: str, then: Callable[[], None]) -> None:
        self._home = home
        self._then = then
        self._looking = False

    def stay_away(self) -> None:
        """Look no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as usual, and hook its loader; merely asking imports nothing."""
        if self._looking:
            return None
        if _is_complete(self._home):
            self._arrived()
        if name != self._home:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            run(module)
            if module.__name__ == self._home:
                self._arrived()

        loader.exec_module = exec_module

    def _arrived(self) -> None:
        if self in sys.meta_path:
            self.stay_away()
            self._then()
