"""Torch's compiler is loaded when something of it is wanted, not for every optimizer.

The first step of an optimizer imports `torch._dynamo`, and SymPy with it, which takes as long as
torch itself: in every launch of a tuning, and before the first step of a run. All that eager code
wants of it is to be left alone, as it is while the compiler is not there. So the module comes
without what it holds. Whoever asks for anything in it loads it, and from then on all is as usual.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from functools import wraps
from threading import RLock
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from hasten.after_import import after_import

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec

_COMPILER, _DECORATING = "torch._dynamo", "torch._compile"
_OPTIMIZERS, _BREAK = "torch.optim.optimizer", "graph_break"
_KNOWN = "__dynamo_disable"
"""Where torch keeps, for a function that its compiler must not look into, what is called instead.

Torch loads the compiler to make that. While there is no compiler, it is the function itself.
"""
_LOADING = RLock()
_ALONE: WeakSet[FunctionType] = WeakSet()


def install() -> None:
    """Let the compiler wait; called once, before the script."""
    if _COMPILER not in sys.modules:
        after_import(_DECORATING, _leave_alone)
        sys.meta_path.insert(0, _CompilerFinder())


def is_loaded() -> bool:
    """Return whether torch's compiler is loaded, so that something may be compiled."""
    module = sys.modules.get(_COMPILER)
    return module is not None and not isinstance(module, _WaitingCompiler)


def _leave_alone() -> None:
    """Let functions that the compiler must not look into be called as they are without it."""
    module: Any = sys.modules[_DECORATING]
    stock: Callable[..., Any] = module._disable_dynamo

    @wraps(stock)
    def decorated(fn: Any = None, recursive: bool = True) -> Any:
        made = stock(fn, recursive)
        if isinstance(fn, FunctionType) and not is_loaded():
            fn.__dict__.setdefault(_KNOWN, fn)
            _ALONE.add(fn)
        return made

    module._disable_dynamo = decorated


def _nothing(*_: Any, **__: Any) -> None:
    """Break no graph: none is being made."""


class _CompilerFinder(importlib.abc.MetaPathFinder):
    """Finds the compiler as usual, and lets it wait."""

    def __init__(self) -> None:
        self._looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module, whose loader is wrapped; the finder stays until it is imported."""
        if self._looking or name != _COMPILER or name in sys.modules:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _CompilerLoader(spec.loader)
        return spec


class _CompilerLoader(importlib.abc.Loader):
    """Makes the module, and leaves it to the first who asks to run it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the real loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Take the path from the module, so that an import of one beneath it asks, too."""
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._loader
        del module.__path__
        module.__class__ = _WaitingCompiler


class _WaitingCompiler(ModuleType):
    """The compiler before anybody has asked for anything in it."""

    def __getattr__(self, name: str) -> Any:
        """Load the module, unless an optimizer wants to break a graph of which there is none."""
        asker = sys._getframe(1).f_globals.get("__name__")
        if name == _BREAK and asker == _OPTIMIZERS and "__path__" not in vars(self):
            return _nothing
        with _LOADING:
            if "__path__" not in vars(self):
                self._load()
        return ModuleType.__getattribute__(self, name)  # it is no longer of this class

    def _load(self) -> None:
        module: Any = self
        spec = module.__spec__
        module.__path__ = spec.submodule_search_locations
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(_COMPILER, None)
            raise
        finally:
            module.__class__ = ModuleType
            for function in _ALONE:
                vars(function).pop(_KNOWN, None)
            _ALONE.clear()
