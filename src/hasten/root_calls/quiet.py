"""Silence while torch compiles, after which the script's own warnings are as they were."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def quiet() -> Iterator[None]:
    """Show no warnings, and leave no trace of those that torch itself handles.

    Python forgets which warnings it has shown once filters change, even if they change back: a
    script that warns in every step would do so a second time.
    """
    before = _version()
    found = ((registry, dict(registry)) for registry in _registries())
    known = [(registry, shown) for registry, shown in found if shown.get("version") == before]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        now = _version()
        for registry, shown in known:
            registry.clear()  # it may have been used meanwhile
            registry.update(shown, version=now)


def _registries() -> list[dict[Any, Any]]:
    spaces = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]
    found = [space.get("__warningregistry__") for space in spaces]
    return [registry for registry in found if isinstance(registry, dict)]


def _version() -> object:
    """Return how often filters have changed, which Python notes with the warnings it has shown."""
    registry: dict[Any, Any] = {}
    shown = warnings.showwarning
    warnings.showwarning = lambda *_, **__: None
    try:
        warnings.warn_explicit("asked", _Asked, "hasten", 1, registry=registry)
    except _Asked:  # a filter turns warnings into errors
        pass
    finally:
        warnings.showwarning = shown
    return registry.get("version")


class _Asked(Warning):
    """A warning that nobody sees."""
