"""Functions of modules that the script may import late, or never."""

from __future__ import annotations

import sys
from functools import partial, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from hasten.after_import import AfterImport, is_complete
from hasten.instrument.stand_ins import put

if TYPE_CHECKING:
    from collections.abc import Callable
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

    if _has(home, name) or is_complete(home):
        place()
        return placed[0]
    arrival = AfterImport(home, place)
    sys.meta_path.insert(0, arrival)

    def undo() -> None:
        arrival.stay_away()
        for one in placed:
            one()

    return undo


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
