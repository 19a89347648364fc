"""Follow methods of library objects, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader.proof import functions, kinds, library, operators
from hasten.loader.proof.source import is_user_class
from hasten.loader.proof.values import MANY, Value, derived, either, is_numeric, live, new
from hasten.loader.proof.word_list import words

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

    from hasten.loader.proof.frame import Frame, Given

_READING = {"read", "readline", "readlines", "readinto", "tell", "seek"}
_DRAWS_OF_ITS_OWN = words(
    "random uniform randint choice choices sample randrange gauss shuffle integers normal "
    "standard_normal permutation permuted rand randn beta binomial poisson exponential "
    "manual_seed laplace gamma lognormal multivariate_normal getrandbits"
)
_WITH_OUT = words(
    "clip mean sum std var cumsum cumprod prod take dot argmax argmin choose compress ptp "
    "round max min all any diagonal trace"
)
_VIEWS = ("keys", "values", "items")
_OF_ARRAYS = words(
    "reshape transpose permute squeeze unsqueeze ravel swapaxes movedim flatten unflatten view "
    "expand view_as expand_as reshape_as contiguous"
)
"""Methods that only arrays have, whose result is a view or a copy of the array's memory."""
_OF_TEXTS = {"lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith"}
_FRESH = {"clone", "tolist", "to_list", "to_dict"}


def by_name(body: Frame, owner: Value, name: str, given: Given) -> Value:
    """Follow a method of an object of a library, or of one that was made for the batch."""
    given = given._replace(args=[value for value in given.args if value is not MANY])
    args, named, node = given
    body.reads.asks_files(name)
    if why := _refused(body, owner, name, args):
        return body.gap(why, node)
    if owner.kind is not None and owner.kind.__name__ in functions.GENERATORS:
        return _drawn(body, owner, name, given)
    returned = functions.follow_functions(body, name, given)
    if why := functions.writes_an_argument(name, set(), [owner, *args], named):
        return body.gap(why, node)
    body.ask(owner, name, node)
    for value in given.values:
        operators.implied(body, value, node)
    body.reads.draws |= name in library.DRAWN_IN_PLACE
    harmless = name in library.PURE_METHODS and owner.flat and owner.fresh
    if library.writes_itself(name) and not harmless:
        return _write(body, owner, name, given.values, node)
    if name not in library.PURE_METHODS and name not in library.DRAWN_IN_PLACE:
        return body.gap(f"it calls .{name}(), which is not known to be free of effects", node)
    found = _of_texts(owner, name, given.values)
    found = found or _of_dictionaries(body, owner.objects or (), name, args)
    return found or _result(body, owner, name, args, [*given.values, *returned])


def is_of_texts(objects: Sequence[Any], name: str) -> bool:
    """Return whether this is a method that only strings have, and these are strings."""
    return name in _OF_TEXTS and bool(objects) and all(type(one) is str for one in objects)


def _of_texts(owner: Value, name: str, values: Sequence[Value]) -> Value | None:
    """Return what a method makes of known strings, such as `self.mode.lower()`."""
    texts = owner.objects or ()
    if not is_of_texts(texts, name):
        return None
    given = [value.only for value in values]
    if any(type(one) is not str for one in given):
        return None
    return live(*{getattr(one, name)(*given) for one in texts})


def _of_dictionaries(
    body: Frame, objects: Sequence[Any], name: str, args: Sequence[Value]
) -> Value | None:
    """Return what a method gets from live dictionaries, if that is known."""
    if not objects or any(type(one) is not dict for one in objects):
        return None
    if name in _VIEWS:
        return live(*(tuple(getattr(one, name)()) for one in objects))
    if name == "get":
        held = [value for one in objects for value in one.values()]
        return either(body.reads.load(*held), *args[1:], live(None))
    return None


def _refused(body: Frame, owner: Value, name: str, args: Sequence[Value]) -> str:
    for one in owner.objects or ():
        if type(one).__name__ in functions.GENERATORS:
            return "it draws from a generator of its own"
        if not kinds.is_known(one) and not is_user_class(type(one)):
            return f"it calls .{name}() of {kinds.shown(one)}"
    if kinds.is_patched(name):
        return f"it calls .{name}(), which the script replaced in a library"
    return _does_more(owner, name, args)


def _does_more(owner: Value, name: str, args: Sequence[Value]) -> str:
    """Return what a method does beyond reading, for some that only do so at times."""
    if name == "replace" and len(args) < 2:
        return "it calls .replace(), which may rename a file"
    if name == "rename" and args:
        return "it calls .rename(), which may rename a file"
    if name in ("resize", "rotate") and not owner.fresh and not _are_pictures(owner):
        return f"it writes into what outlives the batch: .{name}()"
    first_out = 2 if name == "clip" else 1
    if name in _WITH_OUT and any(not one.fresh and one.flat for one in args[first_out:]):
        return f"it may write into what outlives the batch: .{name}(out)"
    if name == "to" and any(not _stays(one) for one in args):
        return "it may use an accelerator"
    is_read = not args or args[0].only in ("r", "rb", "rt")
    return "it calls .open()" if name == "open" and not (owner.flat and is_read) else ""


def _are_pictures(owner: Value) -> bool:
    return bool(owner.objects) and all(hasattr(one, "getbbox") for one in owner.objects or ())


def _stays(value: Value) -> bool:
    """Return whether an argument of `.to()` names no accelerator."""
    return bool(value.objects) and all(
        type(one).__name__ == "dtype" or type(one) is bool or str(one).startswith("cpu")
        for one in value.objects or ()
    )


def _drawn(body: Frame, owner: Value, name: str, given: Given) -> Value:
    """Follow a method of a generator that was made for the batch."""
    args, named, node = given
    if name not in _DRAWS_OF_ITS_OWN:
        return body.gap(f"it calls .{name}() of a random generator", node)
    if name in ("shuffle", "permuted") and args and not args[0].fresh:
        return body.gap("it shuffles what outlives the batch", node)
    if why := functions.writes_an_argument(name, set(), args, named):
        return body.gap(why, node)
    for value in args:
        operators.implied(body, value, node)
    if name == "manual_seed":
        return owner
    found = derived(*args)
    found.flat = all(one.flat for one in args)
    return found


def _result(
    body: Frame, owner: Value, name: str, args: Sequence[Value], values: Sequence[Value]
) -> Value:
    parts = [owner, *values]
    holds = body.reads.keeps(parts)
    if name == "astype" and len(values) == 1 and is_numeric(args[0] if args else None):
        return new(flat=True)
    if owner.flat and name not in library.NOT_FLAT:
        copies = name in library.COPYING_METHODS and not (name == "copy" and values)
        return Value(None, fresh=owner.fresh or copies, shares=not (owner.fresh or copies),
                     flat=name != "astype")  # fmt: skip
    if name in _OF_ARRAYS and owner.objects is None and is_of_library(body, owner, name):
        return Value(None, fresh=owner.fresh, shares=holds)
    lists = owner.flat and name in library.LISTING_METHODS
    if lists and (owner.fresh or name in _FRESH):
        return new()
    if name in _FRESH or (name == "copy" and not values):
        inside = any(body.reads.holds(one) and not one.flat for one in parts)
        return new(shares=inside)
    if name == "join":
        return new(flat=True)
    return Value(None, fresh=not holds, shares=holds)


def is_of_library(body: Frame, owner: Value, name: str) -> bool:
    """Return whether a method of something made for the batch cannot be the script's own."""
    facts = body.reads.facts
    users = (kind for kind in facts.made if is_user_class(kind))
    return owner.kind is None and not facts.copies and not any(hasattr(one, name) for one in users)


def _write(body: Frame, owner: Value, name: str, values: Sequence[Value], node: ast.AST) -> Value:
    if not owner.fresh:
        return body.gap(f"it writes into what outlives the batch: .{name}()", node)
    if name in ("sort", "reverse", "clear"):
        values = ()
    if not owner.flat and body.reads.keeps(values):
        owner.shares = body.reads.facts.mixes = True
    if owner.flat:
        return Value(None, fresh=True, shares=False, flat=True)
    return new() if name in _READING else derived(owner, *values)
