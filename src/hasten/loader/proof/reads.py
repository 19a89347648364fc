"""What the code of items reads, and what in it rules out a proof."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof.kinds import is_unwritten
from hasten.loader.proof.library import OPENING, is_read
from hasten.loader.proof.values import Value, all_atomic, is_atomic, live, new
from hasten.loader.proof.verdict import MissingReason, ProofReason

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable

_MOST_GAPS = 8
_IMMUTABLE = (tuple, frozenset)
_MANY = 64
_ROUTINES = ("ufunc", "_ArrayFunctionDispatcher", "cython_function_or_method")
_CODE = (FunctionType, MethodType, BuiltinFunctionType, type, ModuleType)


@dataclass
class Facts:
    """What must be known from the start, learned when the code was followed earlier.

    Attributes:
        mixes: whether something that outlives the batch was put into something that does not.
        stored: names of attributes that the items set on what they make.
        made: the script's own classes that items instantiate.
        copies: whether items copy objects of unknown classes.
    """

    mixes: bool = False
    stored: set[str] = field(default_factory=set)
    made: set[type] = field(default_factory=set)
    copies: bool = False

    @property
    def size(self) -> int:
        """How much is known; it only grows."""
        return self.mixes + self.copies + len(self.stored) + len(self.made)


class Reads:
    """What was found while the code of items was followed.

    Attributes:
        gaps: effects outside the batch, and code that could not be followed.
        draws: whether something draws from a global random generator.
        attributes: names that are read from live objects.
        variables: namespaces of modules, with the names that are read from them.
        enclosed: names that functions find in the functions around them.
        content: live objects that can be written in place, by their id.
        objects: live objects whose attributes are read, by their id.
        classes: of these objects.
        codes: functions that belong to the items.
        facts: what the next look at the code must know from the start.
        files: names of functions called that access files.
        asks: the names that are looked up on unknown objects, and where.
    """

    def __init__(self, facts: Facts) -> None:
        self.gaps: list[MissingReason] = []
        self.draws = False
        self.attributes: set[str] = set()
        self.variables: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self.enclosed: set[str] = set()
        self.content: dict[int, Any] = {}
        self.objects: dict[int, Any] = {}
        self.classes: set[type] = set()
        self.codes: set[CodeType] = set()
        self.files: set[str] = set()
        self.facts = facts
        self.asks: dict[tuple[str, bool], tuple[str, ast.AST | None]] = {}

    def gap(self, what: str, path: str = "", node: ast.AST | None = None) -> Value:
        """Note what rules out purity; return what is known about the result."""
        where = f"{path}:{getattr(node, 'lineno', '?')}" if path else ""
        found = MissingReason(ProofReason.PURE, what, where)
        if found not in self.gaps and len(self.gaps) < _MOST_GAPS:
            self.gaps.append(found)
        return Value()

    def ask(self, value: Value, name: str, path: str, node: ast.AST | None) -> None:
        """Note that a name is looked up on a value whose class is not known.

        A star stands for everything that a library may call on it implicitly.
        """
        if value.flat or value.objects is not None or value.made is not None:
            return
        if value.fresh and value.kind is not None:
            return
        self.asks.setdefault((name, value.fresh), (path, node))

    def asks_files(self, name: str, *, maps: bool = False) -> None:
        """Note a function that may access files; if it maps them, what the script maps is read.

        A write to what the script has mapped need not change the file's stamp.
        """
        if name in OPENING:
            self.files.add(name)
        if maps:
            kind = getattr(sys.modules.get("numpy"), "memmap", ())
            known = (one for one in gc.get_objects() if issubclass(type(one), kind))
            self.load(*(one for one in known if one.mode != "c" and one.flags.writeable))

    @property
    def has_modules(self) -> bool:
        """Whether networks, or their parameters, are read."""
        seen = (*self.objects.values(), *self.content.values())
        kinds = {
            kind for kind in set(map(type, seen))
            if not {"Module", "Parameter"}.isdisjoint(parent.__name__ for parent in kind.__mro__)
        }  # fmt: skip
        return bool(kinds) and any(
            type(one) in kinds and not _is_bare_transform(one) for one in seen
        )

    @property
    def has_maps(self) -> bool:
        """Whether arrays in a memory-mapped file are read."""
        return any("mmap" in type(one).__name__ or "memmap" in type(one).__name__ or
                   "memmap" in type(getattr(one, "base", None)).__name__
                   for one in self.content.values())  # fmt: skip

    def holds(self, value: Value) -> bool:
        """Return whether anything that a value holds may outlive the batch."""
        if value.shares or not value.fresh or value.made is not None:
            return True
        return self.facts.mixes and not value.flat

    def keeps(self, values: Iterable[Value]) -> bool:
        """Return whether what some values hold outlives the batch; numbers made for it do not."""
        return any(self.holds(one) and not (one.flat and one.fresh) for one in values)

    def load(self, *objects: Any) -> Value:
        """Note that code obtains references to live objects."""
        if len(objects) > _MANY and all_atomic(objects):
            return new(flat=True)
        for one in objects:
            if id(one) in self.content or id(one) in self.objects:
                continue
            kind = type(one)
            if kind in (list, dict):
                self.content[id(one)] = one
            elif is_atomic(one) or isinstance(one, _CODE) or kind.__name__ in _ROUTINES:
                continue
            elif is_read(kind):
                self.look_into(one)
            elif not isinstance(one, _IMMUTABLE) and not is_unwritten(one):
                self.content[id(one)] = one
        return live(*objects)

    def look_into(self, instance: Any) -> None:
        """Note an object whose attributes may be read."""
        self.objects[id(instance)] = instance
        self.classes.update(kind for kind in type(instance).__mro__ if kind is not object)
        if isinstance(instance, (list, dict, set)):  # a class of the script's may extend these
            self.content[id(instance)] = instance

    def variable(self, space: dict[str, Any], name: str) -> Value:
        """Note that a module's variable is read."""
        value = space[name]
        if not isinstance(value, ModuleType):
            self.variables.setdefault(id(space), (space, set()))[1].add(name)
        return self.load(value)


def _is_bare_transform(one: Any) -> bool:
    """Return whether an object is a transform of torchvision's that has no weights of its own."""
    if not type(one).__module__.startswith("torchvision.transforms."):
        return False
    own = getattr(one, "__dict__", {})
    return not (own.get("_parameters") or own.get("_buffers"))
