"""Findings: named, measured reasons for lost time. Pure functions of records.

Each file in `families/` ends with `SYMPTOMS`, the symptoms of one family. A symptom names the
pattern that it looks for and requires a measurement: what looks slow but costs nothing is not
reported.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from typing import TYPE_CHECKING

from hasten.diagnose import families
from hasten.diagnose.case import Case, Symptom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hasten.records import Finding

__all__ = ["Case", "Symptom", "diagnose", "discover"]

_EXPLAINED_RATIO = 0.5


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
    symptoms = discover()
    seen = [_find(symptom, case) for symptom in symptoms.values()]
    found = [finding for finding in seen if finding is not None]
    found = [one for one in found if not _is_explained(one, symptoms[one.name], found)]
    return tuple(sorted(found, key=lambda one: one.share is None or -one.share.mid_ratio))


def _is_explained(finding: Finding, symptom: Symptom, found: Iterable[Finding]) -> bool:
    """Return whether another finding says more about the time that this one reports."""
    shares = [one.share for one in found if one.name in symptom.explained_by]
    least = _EXPLAINED_RATIO * finding.share.mid_ratio if finding.share else 0.0
    return any(share is not None and share.mid_ratio >= least for share in shares)


def _find(symptom: Symptom, case: Case) -> Finding | None:
    if symptom.on_host and case.profile.is_host_ahead:
        return None
    try:
        found = symptom.find(case)
        return found and replace(found, name=symptom.name)
    except Exception:
        return None
