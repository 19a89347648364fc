"""Methods that are called without being named: by Python, or by a library."""

from __future__ import annotations

import gc
import sys
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, ModuleType

from hasten.loader.proof.source import is_user_class
from hasten.loader.proof.word_list import words

_PRINTING = ("write", "flush")
_METHODS = (FunctionType, staticmethod, classmethod, property)
_KINDS = (
    object, type, int, float, complex, str, bytes, list, dict, set, tuple, memoryview, property,
    BaseException, FunctionType, ModuleType, GeneratorType, CoroutineType, AsyncGeneratorType,
)  # fmt: skip
_SPECIAL = {name for kind in _KINDS for name in dir(kind)} | words(
    "__getattr__ __del__ __enter__ __exit__ __aenter__ __aexit__ __missing__ __instancecheck__ "
    "__subclasscheck__ __set_name__ __class_getitem__ __prepare__ __mro_entries__ __fspath__ "
    "__length_hint__ __copy__ __deepcopy__ __setstate__ __getnewargs__ __getnewargs_ex__ "
    "__buffer__ __release_buffer__ __bytes__ __matmul__ __rmatmul__ __imatmul__ __iadd__ __isub__ "
    "__imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ __ilshift__ "
    "__irshift__ __getitems__ __post_init__ __match_args__ __conform__ __adapt__"
)
"""Methods that Python or torch calls without being told."""


def overriding_methods() -> set[tuple[str, str]]:
    """Return the methods that stand in place of one of a library's, and of what prints."""
    found = set()
    kinds = [one for one in gc.get_objects() if issubclass(type(one), type)]
    for kind in filter(is_user_class, kinds):
        theirs = [one for one in kind.__mro__ if one is not object and not is_user_class(one)]
        found |= {
            (kind.__name__, name) for name, one in list(vars(kind).items())
            if isinstance(one, _METHODS) and not hasattr(object, name)
            and (name in _PRINTING or any(hasattr(base, name) for base in theirs))
        }  # fmt: skip
    return found


def is_special(name: str) -> bool:
    """Return whether a method may be called by nobody's name: by Python or by some library."""
    if not (name.startswith("__") and name.endswith("__")):
        return False
    torchs = getattr(sys.modules.get("torch"), "Tensor", object)
    numpys = getattr(sys.modules.get("numpy"), "ndarray", object)
    return (
        name in _SPECIAL
        or "_" not in name.strip("_")
        or hasattr(torchs, name)
        or (hasattr(numpys, name) or name.startswith(("__array", "__torch", "__cuda", "__dlpack")))
    )
