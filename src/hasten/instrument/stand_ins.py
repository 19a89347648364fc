"""Functions of torch that levers replace, and of modules that the script may import late."""

from __future__ import annotations

import sys
from functools import partial, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from hasten.after_import import AfterImport, is_complete

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    Answer = Callable[..., Any]
    Undo = Callable[[], None]

_NOTHING = object()


def put(owner: Any, name: str, placed: Any) -> Undo:
    """Set an attribute; the result puts back what was there, unless ours was replaced in turn."""
    before = vars(owner).get(name, _NOTHING)

    def undo() -> None:
        if vars(owner).get(name) is not placed:
            return
        if before is _NOTHING:  # it was inherited
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    setattr(owner, name, placed)
    return undo


class StandIns:
    """One replaced attribute for each function, and the levers that answer its calls."""

    def __init__(self, in_loop: Callable[[], bool]) -> None:
        self._in_loop = in_loop
        self._answers: dict[tuple[int, str], list[Answer]] = {}
        self._placed: dict[tuple[int, str], tuple[Any, Undo]] = {}

    def add(self, owner: Any, name: str, answer: Answer) -> Undo:
        """Let `answer(original, *args, **kwargs)` stand in, until the result is called.

        Of several, the one that was added last is asked first; its original is the one before.
        """
        key = (id(owner), name)
        if key not in self._answers:
            self._answers[key] = []
            placed = self._stand_in(getattr(owner, name), self._answers[key])
            self._placed[key] = placed, put(owner, name, placed)
        answers = self._answers[key]
        answers.append(answer)

        def undo() -> None:
            answers.remove(answer)
            if answers or self._answers.pop(key, None) is None:
                return
            stand_in, take_out = self._placed.pop(key)
            _forget(stand_in)
            take_out()

        return undo

    def _stand_in(self, original: Any, answers: list[Answer]) -> Any:
        from torch.compiler import is_compiling

        @wraps(original)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            # Asked first: torch's compiler cannot look through what follows.
            if is_compiling() or not self._in_loop():
                return original(*args, **kwargs)
            ask = original
            for answer in answers:
                ask = partial(answer, ask)
            return ask(*args, **kwargs)

        # torch.jit.script asks this of what a model calls, and compiles what it returns.
        vars(stand_in)["__prepare_scriptable__"] = lambda: original
        _pass_for(stand_in, original)
        return stand_in


def _pass_for(one: Any, other: Any) -> None:
    """Let torch.jit.script treat one function as another that it knows only by its id.

    It knows functions without source that way. Its table is made when it is first asked for.
    """
    from torch.jit import _builtins

    table: Any = _builtins._builtin_table
    if table is not None and id(other) in table:
        table[id(one)] = table[id(other)]


def _forget(stand_in: Any) -> None:
    """Let torch.jit.script know the original again; its table may be newer than the stand-in."""
    from torch.jit import _builtins

    _pass_for(stand_in.__wrapped__, stand_in)
    table: Any = _builtins._builtin_table
    if table is not None:
        table.pop(id(stand_in), None)


def stand_in_later(home: str, name: str, answer: Answer) -> Undo:
    """Replace a function by `answer(original, *args, **kwargs)` once its module is imported.

    This does not import the module. If the module has no such function, nothing is done. The name
    of a method is dotted; `answer` is asked in every thread.
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
    from torch.compiler import is_compiling

    @wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        return answer(original, *args, **kwargs)

    return put(owner, last, stand_in)
