"""What a symptom is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.diagnose.case import Case
    from hasten.records import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One cause of lost time that can be recognized from what was measured.

    Attributes:
        name: the id of its findings; that of their page, whose title says what users notice.
        find: returns the finding, or None if the case does not show it or a fact is unknown.
        on_host: host work inside a step, which costs nothing while an accelerator is
            still busy with work queued earlier.
        explained_by: names of symptoms that say more about the same time: it is left out where
            one of them accounts for half of its share.
    """

    name: str
    find: Callable[[Case], Finding | None]
    on_host: bool = False
    explained_by: frozenset[str] = frozenset()
