"""Torch's compiler is loaded when somebody wants it, not for every optimizer.

The first step of an optimizer imports `torch._dynamo`, and SymPy with it, which takes as long as
torch itself: in every launch of a tuning, and before the first step of a run. All that an optimizer
wants of it is to be left alone, as it is while the compiler is not there. So an optimizer gets the
module without what it holds. Whoever else imports it, or asks for anything in it, loads it, and
from then on all is as usual.
"""

from __future__ import annotations

import sys
from _frozen_importlib import _ModuleLockManager  # type: ignore[attr-defined]
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from hasten.after_import import AfterImport, after_import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

_COMPILER, _DECORATING = "torch._dynamo", "torch._compile"
_OPTIMIZERS, _BREAK = "torch.optim.optimizer", "graph_break"
_KNOWN = "__dynamo_disable"
"""Where torch keeps, for a function that its compiler must not look into, what is called instead.

Torch loads the compiler to make that. While there is no compiler, it is the function itself.
"""
_WAITING = "__waiting_spec__"
"""Where the module keeps its spec while it waits: Python asks for `__spec__` at each import."""
_ALONE: WeakSet[FunctionType] = WeakSet()


def install() -> None:
    """Let the compiler wait; called once, before the script."""
    if _COMPILER not in sys.modules:
        after_import(_DECORATING, _leave_alone)
        sys.meta_path.insert(0, AfterImport(_COMPILER, lambda: None, run=_run_or_wait))


def is_loaded() -> bool:
    """Return whether torch's compiler is loaded, so that something may be compiled."""
    module = sys.modules.get(_COMPILER)
    return module is not None and not isinstance(module, _WaitingCompiler)


def _leave_alone() -> None:
    """Let functions of optimizers be called as they are without a compiler."""
    module: Any = sys.modules[_DECORATING]
    stock: Callable[..., Any] = module._disable_dynamo

    @wraps(stock)
    def decorated(fn: Any = None, recursive: bool = True) -> Any:
        made = stock(fn, recursive)
        is_plain = isinstance(fn, FunctionType) and str(fn.__module__).startswith("torch.optim.")
        if is_plain and not is_loaded():
            fn.__dict__.setdefault(_KNOWN, fn)
            _ALONE.add(fn)
        return made

    module._disable_dynamo = decorated


def _run_or_wait(loader: Any, module: ModuleType) -> None:
    """Run the compiler, unless it is an optimizer that imports it."""
    if _importer(sys._getframe(1)) != _OPTIMIZERS:
        _run(loader, module)
        return
    # Without these, whoever imports it or what is beneath it asks, too: for the path alone where
    # Python is an early 3.11.
    vars(module)[_WAITING] = vars(module).pop("__spec__")
    del module.__path__
    module.__class__ = _WaitingCompiler
    sys.meta_path.insert(0, _Beneath())


def _importer(frame: FrameType | None) -> str:
    """Return the module with the statement that imports."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name != AfterImport.__module__ and name.partition(".")[0] != "importlib":
            return name
        frame = frame.f_back
    return ""


def _run(loader: Any, module: ModuleType) -> None:
    try:
        loader.exec_module(module)
    finally:
        for function in _ALONE:
            vars(function).pop(_KNOWN, None)
        _ALONE.clear()


def _load(module: Any) -> None:
    """Load the compiler if it still waits; whoever asks meanwhile waits as for an import."""
    with _ModuleLockManager(_COMPILER):
        spec = vars(module).pop(_WAITING, None)
        if spec is None:
            return
        module.__spec__, module.__path__ = spec, spec.submodule_search_locations
        try:
            _run(spec.loader, module)
        except BaseException:
            sys.modules.pop(_COMPILER, None)
            vars(sys.modules["torch"]).pop("_dynamo", None)
            raise
        finally:
            module.__class__ = ModuleType


def _nothing(*_: Any, **__: Any) -> None:
    """Break no graph: none is being made."""


class _WaitingCompiler(ModuleType):
    """The compiler while only optimizers have asked for it."""

    def __getattr__(self, name: str) -> Any:
        """Load the module, unless an optimizer imports it, or breaks a graph of which is none."""
        spec = vars(self).get(_WAITING)
        asker = sys._getframe(1).f_globals.get("__name__")
        if spec is not None and asker == _OPTIMIZERS and name in ("__spec__", _BREAK):
            return spec if name == "__spec__" else _nothing
        _load(self)
        return ModuleType.__getattribute__(self, name)  # it is no longer of this class

    def __setattr__(self, name: str, value: Any) -> None:
        """Load the module before something in it is replaced."""
        if not name.startswith("__"):
            _load(self)
        ModuleType.__setattr__(self, name, value)

    def __dir__(self) -> Iterable[str]:
        """Load the module to list what it holds."""
        _load(self)
        return ModuleType.__dir__(self)


class _Beneath(MetaPathFinder):
    """Find a part of the compiler which came with the rest because an import asked for that part.

    Python has seen that it is missing before it asked where it is, and would run it once more.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec that gives the module that is there."""
        module = sys.modules.get(name)
        if module is None or target is not None or not name.startswith(f"{_COMPILER}."):
            return None
        return ModuleSpec(name, _Present(module))


class _Present(Loader):
    """Gives a module that has run, and leaves it as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back."""
        vars(module)["__spec__"] = self._spec  # modules of settings have a `__setattr__`
