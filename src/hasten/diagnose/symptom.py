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
    """One reason for lost time that can be told from what was measured.

    Attributes:
        name: the id of its findings.
        title: what users say, in a few words.
        find: the finding, or None where the case does not show it or a fact is unknown.
        on_host: it is work of the host inside a step, which costs nothing where an accelerator is
            still busy with what it was given before.
    """

    name: str
    title: str
    find: Callable[[Case], Finding | None]
    on_host: bool = False
