"""A closer look at the loop for a few steps, which are never timed ones.

Each file here ends with `EXAMINER`, a class that takes the watch and looks from then on. It may
have any of the methods that the watch calls on its observers (`called`, `loading`, `loaded`,
`backward`, `steps`, `ended`), and must have `end`, which stops everything and returns what was
found, by key: numbers, strings, lists and dicts of them.
Its cost may show in these steps, but it must not change anything: no random number is drawn,
nothing of the script is kept alive, and `end` puts everything back.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.instrument.eager import stay_eager

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.instrument.watch import Watch

_EVENTS = ("called", "loading", "loaded", "backward", "steps", "ended")


def discover() -> dict[str, Callable[[Watch], Any]]:
    """Return the examiners by the name of their file."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = {name: importlib.import_module(f"{__name__}.{name}").EXAMINER for name in names}
    stay_eager()  # these files are imported after the seams are in place
    return found


class Examination:
    """All examiners at once, as one observer of the watch.

    An examiner that raises is left out from then on; the script goes on without it.

    Args:
        watch: whose loop is looked at.
        examiners: by name; they begin at once.
    """

    def __init__(self, watch: Watch, examiners: dict[str, Callable[[Watch], Any]]) -> None:
        self._watch = watch
        self._broken: dict[str, str] = {}
        self._parts: dict[str, Any] = {}
        for name, examiner in examiners.items():
            if (part := self._try(name, examiner, watch)) is not None:
                self._parts[name] = part
        for event in _EVENTS:  # under these names the watch calls it
            setattr(self, event, partial(self._tell, event))
        watch.observers.append(self)

    def _try(self, name: str, act: Callable[..., Any], *details: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return act(*details)
        except Exception as error:
            self._broken.setdefault(name, f"{type(error).__name__}: {error}")
            return None
        finally:
            self._watch.starts.leave_out(time.perf_counter() - began_s)

    def _tell(self, event: str, *details: Any) -> None:
        for name, part in self._parts.items():
            if name not in self._broken and hasattr(part, event):
                self._try(name, getattr(part, event), *details)

    def end(self) -> dict[str, Any]:
        """Stop looking; return the results by `file.key`, and failed examiners under `broken`."""
        self._watch.observers.remove(self)
        found: dict[str, Any] = {}
        for name, part in self._parts.items():
            seen = self._try(name, part.end) or {}
            found |= {f"{name}.{key}": value for key, value in seen.items() if value is not None}
        self._parts = {}  # it refers to itself, and they to the script's objects
        return {**found, "broken": self._broken}
