"""Fetch a batch in this process and see what it changes: generators, the dataset, open files."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.loader import random_states
from hasten.loader.fingerprint import DEEP, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable


class Moves(NamedTuple):
    """What fetching a batch changed.

    Attributes:
        before: the states of the generators before it.
        after: their states after it.
        changed: dataset or collate function look different, or one of their generators advanced.
        seeked: the position in an open file changed: processes share that of a file that was
            open when they were forked, and would read from another's position.
    """

    before: random_states.States
    after: random_states.States
    changed: bool
    seeked: bool

    @property
    def drew(self) -> bool:
        """Whether a global generator has advanced."""
        return self.before != self.after


def observe(loader: Any, fetch: Callable[[], Any]) -> tuple[Any, Moves]:
    """Fetch; return the batch, or the exception that it raised, and what changed."""
    private = random_states.Private(loader.dataset, loader.collate_fn)
    looked, hidden, stood = _looks(loader), private.read(), _positions()
    before = random_states.read()
    try:
        found = fetch()
    except Exception as error:
        found = error
    after = random_states.read()
    changed = looked != _looks(loader) or hidden != private.read()
    stands = _positions()
    seeked = any(stands.get(name, place) != place for name, place in stood.items())
    return found, Moves(before, after, changed, seeked)


def let_go(error: Exception) -> Exception:
    """Return an exception that `observe` gave, held no more by frames that have handed it on.

    The frames where it arose lead back to them; a cycle would keep a pass and its samples alive.
    """
    frame = error.__traceback__ and error.__traceback__.tb_frame
    with suppress(RuntimeError):  # one that still runs
        while frame is not None:
            frame.clear()
            frame = frame.f_back
    return error


class LastGlance:
    """A look at what a loader's items are made with, cheap enough to compare at each batch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._seen: list[Any] | None = None

    def renew(self) -> None:
        """Keep how it looks now."""
        self._seen = self._look()

    @property
    def is_stale(self) -> bool:
        """Whether it looks different by now."""
        return self._seen != self._look()

    def _look(self) -> list[Any]:
        roots = self._loader.dataset, self._loader.collate_fn
        return [fingerprint(root, brief=True, deepest=DEEP) for root in roots]


def _looks(loader: Any) -> list[Any]:
    return [fingerprint(one) for one in (loader.dataset, loader.collate_fn)]


def _positions() -> dict[str, str]:
    """Return the position in each open file of this process."""
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fdinfo"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("/") and os.path.isfile(target):
                with open(f"/proc/self/fdinfo/{name}") as file:
                    found[name] = target + file.readline()
        except OSError:
            continue
    return found
