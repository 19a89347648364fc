"""All symptoms, and which of them a case shows."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from typing import TYPE_CHECKING

from hasten.diagnose import families

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.diagnose.case import Case
    from hasten.diagnose.symptom import Symptom
    from hasten.records import Finding


def discover() -> Mapping[str, Symptom]:
    """Import every file in `families/` and return its symptoms, keyed and ordered by name."""
    found: dict[str, Symptom] = {}
    for module in pkgutil.iter_modules(families.__path__):
        family = importlib.import_module(f"{families.__name__}.{module.name}")
        found |= {symptom.name: symptom for symptom in family.SYMPTOMS}
    return dict(sorted(found.items()))


def diagnose(case: Case) -> tuple[Finding, ...]:
    """Return the findings of a case, costliest first; those without a share come last.

    A symptom that raises is skipped; the others are still reported.
    """
    seen = [_find(symptom, case) for symptom in discover().values()]
    found = [finding for finding in seen if finding is not None]
    return tuple(sorted(found, key=lambda one: one.share is None or -one.share.mid_ratio))


def _find(symptom: Symptom, case: Case) -> Finding | None:
    if symptom.on_host and case.profile.is_host_ahead:
        return None
    try:
        found = symptom.find(case)
        return found and replace(found, name=symptom.name)
    except Exception:
        return None
