"""Act right after a module has been imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def after_import(name: str, then: Callable[[], None]) -> None:
    """Call `then` once a module has been imported: now, where a `.pth` file has done that."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, AfterImport(name, then))


def is_complete(name: str) -> bool:
    """Return whether a module is there and its import is over."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


class AfterImport(importlib.abc.MetaPathFinder):
    """Call `then` right after the module `name` has been imported for the first time.

    A module that is being imported already is found complete at a later import. `run` is given the
    real loader and the module, and runs it; without it the loader does.
    """

    def __init__(
        self,
        name: str,
        then: Callable[[], None],
        run: Callable[[Any, ModuleType], None] = lambda loader, module: loader.exec_module(module),
    ) -> None:
        self._name = name
        self._then = then
        self._run = run
        self._looking = False

    def stay_away(self) -> None:
        """Look no longer."""
        # A new list: an import that goes through the old one at this moment would skip a finder.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as usual, and wrap its loader.

        Libraries look for a module without importing it (`importlib.util.find_spec("torch")`),
        so this finder stays until the module really runs.
        """
        if self._looking:
            return None
        if is_complete(self._name):
            self._follow()
        if name != self._name:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Following(spec.loader, self._run, self._follow)
        return spec

    def _follow(self) -> None:
        if self in sys.meta_path:
            self.stay_away()
            self._then()


class _Following(importlib.abc.Loader):
    """A loader that delegates to the real one, or to `run`, and calls `then` after it."""

    def __init__(
        self, loader: Any, run: Callable[[Any, ModuleType], None], then: Callable[[], None]
    ) -> None:
        self._loader = loader
        self._run = run
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the real loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then call `then`."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._run(self._loader, module)
        self._then()
