"""Torch's compiler is loaded when something of it is wanted, not for every optimizer.

The first step of an optimizer imports `torch._dynamo`, and SymPy with it, which takes as long as
torch itself: in every launch of a tuning, and before the first step of a run. All that eager code
wants of it is to be left alone, as it is while the compiler is not there. So the module comes
without what it holds. Whoever asks for anything in it loads it, and from then on all is as usual.
"""

from __future__ import annotations

import sys
from functools import wraps
from threading import RLock
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from hasten.after_import import AfterImport, after_import

if TYPE_CHECKING:
    from collections.abc import Callable

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
        sys.meta_path.insert(0, AfterImport(_COMPILER, lambda: None, run=_wait))


def is_loaded() -> bool:
    """Return whether torch's compiler is loaded, so that something may be compiled."""
    module = sys.modules.get(_COMPILER)
    return module is not None and not isinstance(module, _WaitingCompiler)


def _wait(loader: Any, module: ModuleType) -> None:
    """Take the path from the module, so that an import of one beneath it asks, too."""
    del module.__path__
    module.__class__ = _WaitingCompiler


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
