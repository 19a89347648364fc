"""Follow calls of a library's functions, by their names."""

from __future__ import annotations

import inspect
import pathlib
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import attributes, library, objects, operators
from hasten.loader.proof.frame import Given
from hasten.loader.proof.source import is_user_class, is_user_function
from hasten.loader.proof.values import MANY, Value, either, is_numeric, live, new, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.loader.proof.frame import Frame

GENERATORS = {"Generator", "RandomState", "Random"}
_UNBOUND = ("method_descriptor", "wrapper_descriptor")
_READ_MODES = {"r", "rb", "rt", "br", "tr", "r:gz", "c"}
_OPENING = {"open", "File", "memmap", "ZipFile"}
_COPYING = ("copy", "deepcopy")
_DRAWING = (
    "random", "numpy.random", "torch", "torch.nn.functional", "torchvision.transforms.transforms",
)  # fmt: skip
_TOLD = {"out", "inplace", "device", "generator", "dst"}


def _homes(one: Any, module: str | None) -> set[str]:
    """Return the names of the modules that a function is known to belong to."""
    own = getattr(one, "__module__", None)
    bound = getattr(one, "__self__", None)
    if type(one).__name__ == "ufunc":
        own = "numpy"
    elif isinstance(bound, ModuleType):
        own = bound.__name__
    elif "VariableFunctions" in getattr(bound, "__name__", type(bound).__name__):
        own = "torch"
    elif isinstance(bound, type) or hasattr(one, "__objclass__"):
        own = (bound if isinstance(bound, type) else one.__objclass__).__module__
    found = {own or module or ""}
    name = getattr(one, "__name__", "")
    if module and vars(sys.modules.get(module, sys)).get(name) is one:
        found.add(module)
    return found


def library_call(
    body: Frame, one: Any, given: Given, module: str | None, *, made: type | None = None
) -> Value:
    """Follow a call of a library's function, by its name."""
    name, node = getattr(one, "__name__", ""), given.node
    homes = _homes(one, module)
    given = given._replace(args=[value for value in given.args if value is not MANY])
    special = _special(body, one, name, homes, given)
    if special is not None:
        return special
    body.reads.asks_files(name, maps="mmap_mode" in given.named)
    returned = follow_functions(body, name, given)
    told = {**by_signature(one, given.args), **given.named}
    if why := writes_an_argument(name, homes, given.args, told):
        return body.gap(why, node)
    if any(library.draws(home, name) for home in homes):
        return drawn(body, name, given)
    unbound = type(one).__name__ in _UNBOUND and name not in library.PURE_METHODS
    if unbound or not _is_known(one, homes):
        if body.follower.in_worker and name == "initial_seed":
            return new(flat=True)
        home = next(iter(sorted(homes, key=len, reverse=True)))
        shown = f"{home}.{name}".strip(".")
        return body.gap(f"it calls {shown}, which is not known to be free of effects", node)
    for value in given.values:
        operators.implied(body, value, node, but=_spared(name), deep=not _spared(name))
    if "copy" in given.named and given.named["copy"].only is not True:
        name = "asarray"
    typed = is_numeric(given.named.get("dtype"))
    return _result(body, name, homes, [*given.values, *returned], made, typed=typed)


def _is_known(one: Any, homes: set[str]) -> bool:
    """Return whether a library's function is known to have no effects, and calls what it should.

    A script may have put its own function where the library's finds one of its own.
    """
    if isinstance(one, FunctionType):
        names = one.__code__.co_names
        if any(is_user_function(one.__globals__.get(name)) for name in names):
            return False
    return any(library.is_pure(home, getattr(one, "__name__", "")) for home in homes)


def by_signature(one: Any, args: Sequence[Value]) -> dict[str, Value]:
    """Return positional arguments by their parameter names in the function."""
    try:
        names = list(inspect.signature(one).parameters)
    except (TypeError, ValueError):
        numpys = _is_numpys(_homes(one, None)) and len(args) > 2 and not args[2].fresh
        return {"out": args[2]} if numpys else {}
    return {name: value for name, value in zip(names, args, strict=False) if name in _TOLD}


def _spared(name: str) -> str:
    """Return the special methods that a well-known builtin does not call."""
    if name in ("len", "bool", "range"):
        return "__getitem__ __iter__ __next__ __str__ __repr__ __eq__ __hash__"
    if name in ("isinstance", "type", "callable", "issubclass", "hasattr", "getattr"):
        return " ".join(n for n in dir(object)) + " __getitem__ __len__ __iter__ __next__ __add__"
    return ""


def _special(body: Frame, one: Any, name: str, homes: set[str], given: Given) -> Value | None:
    """Follow functions whose effects depend on their arguments."""
    known = homes & {"io", "_io", "builtins", "numpy", "zipfile", "gzip", "rasterio"}
    if name in _OPENING and (known or any(home.startswith("h5py") for home in homes)):
        return _open(body, name, given)
    if name in _COPYING and "copy" in homes:
        return _copied(body, name, given)
    if isinstance(one, type) and name in GENERATORS:
        return _generator(body, one, given)
    if name == "default_rng":
        kind = getattr(sys.modules.get("numpy.random"), "Generator", None)
        return _generator(body, kind, given)
    if one is pathlib.Path or one is pathlib.PosixPath:
        body.reads.facts.made.add(pathlib.Path)
        for value in given.args:
            operators.implied(body, value, given.node)
        return new(flat=True, kind=pathlib.Path)
    return _asked(body, name, given) if homes == {"builtins"} else None


def _generator(body: Frame, kind: Any, given: Given) -> Value:
    """Follow the making of a random generator: its seed must be given."""
    values = given.values
    if getattr(kind, "__module__", "").startswith("torch"):
        return new(kind=kind)
    seeded = bool(values) and all(one.is_plain for one in values)
    if not seeded or any(None in (one.objects or ()) for one in values if one.objects):
        return body.gap(f"a {getattr(kind, '__name__', 'generator')} without a seed", given.node)
    return new(kind=kind)


def _copied(body: Frame, name: str, given: Given) -> Value:
    """Follow `copy.copy` and `copy.deepcopy`."""
    value, node = given.args[0] if given.args else unknown(), given.node
    if value.flat:
        return new(flat=True, kind=value.kind)
    body.reads.facts.copies = True
    for asked in ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__setstate__"):
        body.ask(value, f"!{asked}", node)
        body.ask(unknown(), f"!{asked}", node)
    for one in value.objects or ():
        if is_user_class(type(one)):
            return body.gap(f"a {type(one).__name__} is copied", node)
    operators.implied(body, value, node)
    return new(shares=name == "copy" or body.reads.holds(value), kind=value.kind)


def _result(
    body: Frame, name: str, homes: set[str], values: Sequence[Value], made: type | None,
    *, typed: bool,
) -> Value:  # fmt: skip
    holds = body.reads.keeps(values)
    if any(library.is_figure(home, name) for home in homes):
        return new(flat=True)
    inside = any(body.reads.holds(one) and not one.flat for one in values)
    if any(library.copies(home, name) for home in homes):
        whole = typed or all(one.flat for one in values) or not _is_numpys(homes)
        return new(shares=inside and not whole, flat=whole)
    if name in library.HOLDING:
        return new(shares=holds, kind=made)
    arrays = any(home.startswith(library.ARRAYS) for home in homes) and name not in library.NOT_FLAT
    flat = arrays and (typed or not _is_numpys(homes) or all(one.flat for one in values))
    return Value(None, fresh=not holds, shares=holds, flat=flat, kind=made if not holds else None)


def _is_numpys(homes: set[str]) -> bool:
    return any(home.startswith("numpy") for home in homes)


def writes_an_argument(
    name: str, homes: set[str], args: Sequence[Value], named: Mapping[str, Value]
) -> str:
    """Return how a function writes into something that outlives the batch; empty if it does not."""
    for key in ("out", "dst", "output"):
        out = named.get(key)
        if out is not None and not out.fresh:
            return f"it writes into what outlives the batch ({key}=)"
    targets = args[library.CV2_TARGETS.get(name, len(args)) :] if "cv2" in homes else ()
    if any(not one.fresh for one in targets):
        return "it writes into what outlives the batch (dst)"
    if any("ufunc" in home or home == "numpy" for home in homes) and _is_ufunc(name):
        count = getattr(sys.modules.get("numpy"), name).nin
        if any(not one.fresh for one in args[count:]):
            return "it writes into what outlives the batch (out)"
    mapped = named.get("mmap_mode", args[1] if name == "load" and len(args) > 1 else None)
    if mapped is not None and "numpy" in homes and mapped.only not in ("r", "c", None):
        return "it may write into a mapped file"
    return _in_place(name, homes, args, named) or _by_keyword(args, named)


def _in_place(name: str, homes: set[str], args: Sequence[Value], named: Mapping[str, Value]) -> str:
    own = bool(args) and args[0].fresh
    if any(key.startswith("overwrite_") and one.only is not False and not own
           for key, one in named.items()):  # fmt: skip
        return "it writes into what outlives the batch (overwrite_)"
    if name == "nan_to_num" and not own:
        told = named.get("copy", args[1] if len(args) > 1 else None)
        if "numpy" in homes and told is not None and told.only is not True:
            return "it writes into what outlives the batch (copy=False)"
    return ""


def _is_ufunc(name: str) -> bool:
    return hasattr(getattr(sys.modules.get("numpy"), name, None), "nin")


def _by_keyword(args: Sequence[Value], named: Mapping[str, Value]) -> str:
    if "**" in named and not named["**"].fresh:
        return "it is given keywords that nobody can know"
    inplace = named.get("inplace")
    if inplace is not None and inplace.only is not False and not (args and args[0].fresh):
        return "it writes into what outlives the batch (inplace=)"
    device = named.get("device")
    if device is not None and not _is_processor(device):
        return "it may use an accelerator"
    own = named.get("generator")
    if own is not None and not own.fresh and own.only is not None:
        return "it draws from a generator of its own"
    return ""


def _is_processor(device: Value) -> bool:
    return bool(device.objects) and all(
        one is None or str(one).startswith("cpu") for one in device.objects or ()
    )


def drawn(body: Frame, name: str, given: Given) -> Value:
    """Follow a draw from a global generator."""
    args, node = given.args, given.node
    if not any(library.draws(home, name) for home in _DRAWING):
        return body.gap(f"it calls {name} of the global random generator", node)
    if name == "seed" and not args:
        return body.gap("it seeds the global random generator with nothing known", node)
    if name == "shuffle" and args and not args[0].fresh:
        return body.gap("it shuffles what outlives the batch", node)
    if why := writes_an_argument(name, set(), args, given.named):
        return body.gap(why, node)
    follow_functions(body, name, given)
    for value in args:
        operators.implied(body, value, node)
    body.reads.draws = True
    if name in ("choice", "choices", "sample", "permutation") or "dropout" in name:
        flat = bool(args) and args[0].flat
        holds = body.reads.keeps(args)
        return Value(None, fresh=not holds, shares=holds, flat=flat and name == "choice")
    return new(flat=True)


def follow_functions(body: Frame, name: str, given: Given) -> list[Value]:
    """Follow functions that are passed to a library to call; return what they may return."""
    found: list[Value] = []
    for position, value in enumerate(given.args):
        called = position == 0 and name in library.FIRST_IS_CALLED
        called |= name == "sub" and position < 2
        found += _followed(body, value, given.node, called=called)
    for key, value in given.named.items():
        found += _followed(body, value, given.node, called=key in library.CALLED_BY_NAME)
    return found


def _followed(body: Frame, value: Value, node: Any, *, called: bool) -> list[Value]:
    if value.made is not None:
        many = [unknown()] * len(value.made[0].args.args)
        return [body.follower.inner(value, Given(many, {}, node))]
    if value.objects is None:
        if called and not value.flat:
            body.gap("a function that nobody can know is called", node)
        return []
    found = []
    for one in value.objects:
        is_python = isinstance(one, (FunctionType, MethodType))
        users = callable(one) and (not isinstance(one, type) or is_user_class(one))
        if is_python or isinstance(one, BuiltinFunctionType) or (called and users):
            many = [unknown()] * (objects.parameter_count(one) if is_python else 1)
            found.append(body.follower.live(body, one, Given(many, {}, node)))
    return found


def _open(body: Frame, name: str, given: Given) -> Value:
    args, named, node = given
    body.reads.asks_files(name, maps=name == "memmap")
    mode = args[1] if len(args) > 1 else named.get("mode")
    if name == "memmap":
        mode = named.get("mode")
    reads = mode is not None and bool(mode.objects) and set(mode.objects or ()) <= _READ_MODES
    if not reads and (mode is not None or name == "memmap"):
        return body.gap("it opens a file to write", node)
    if args and not args[0].flat and not args[0].is_plain:
        operators.implied(body, args[0], node)
    if "opener" in named:
        return body.gap("it opens a file by a function of its own", node)
    return new(flat=name == "memmap")


# ---- introspection


def _asked(body: Frame, name: str, given: Given) -> Value | None:
    """Answer `getattr`, `hasattr`, `isinstance`, `callable` and `type` of live objects."""
    args = given.args
    owners = args[0].objects if args else None
    if name == "callable" and owners:
        found = {callable(one) for one in owners}
        return live(found.pop()) if len(found) == 1 else new(flat=True)
    if name == "type" and len(args) == 1 and owners:
        return live(*{type(one) for one in owners})
    if name == "isinstance" and len(args) == 2:
        return _is_instance(owners, args[1].only)
    return _attribute(body, name, args, given.node) if name in ("getattr", "hasattr") else None


def _attribute(body: Frame, name: str, args: list[Value], node: Any) -> Value | None:
    """Answer `getattr` and `hasattr`."""
    if len(args) < 2:
        return None
    owners, given = args[0].objects, args[1].only
    if type(given) is not str:
        return None if name == "hasattr" else body.gap("getattr() of a name that varies", node)
    if owners is None:
        return attributes.attribute(body, args[0], given, node) if name == "getattr" else None
    body.reads.attributes.add(given)
    having = [one for one in owners if objects.has_attribute(one, given)]
    if name == "hasattr":
        same = len(having) in (0, len(owners))
        return live(bool(having)) if same else new(flat=True)
    found_all = [attributes.attribute(body, live(one), given, node) for one in having]
    if len(having) < len(owners):
        found_all.append(args[2] if len(args) > 2 else unknown())
    return either(*found_all)


def _is_instance(owners: tuple[Any, ...] | None, given: Any) -> Value:
    known = owners is not None and isinstance(given, (type, tuple))
    if not known or any(
        is_user_class(type(one)) for one in (given if isinstance(given, tuple) else (given,))
    ):
        return new(flat=True)
    found = {isinstance(one, given) for one in owners or ()}
    return live(found.pop()) if len(found) == 1 else new(flat=True)
