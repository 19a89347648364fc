"""The JSON document: the same structure for every command, versioned by `schema`.

Unknown values are null. No key is renamed or removed without a new schema number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import to_builtins

from hasten.report.files import write_atomically
from hasten.report.plan_state import state_of
from hasten.report.wording import utf8

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hasten.records import Diagnosis, Interval, Machine, Passes, Profile, Profiling, Tuning

SCHEMA = 1
KEYS = (
    "schema",
    "machine",
    "workload",
    "baseline",
    "findings",
    "plan",
    "speedup",
    "levers",
    "maths",
    "cost",
    "assumed",
    "passes",
    "state",
    "applied",
    "notes",
)


def machine_document(machine: Machine) -> dict[str, Any]:
    """Return what `doctor` knows."""
    return _document(machine=to_builtins(machine))


def profile_document(found: Profiling) -> dict[str, Any]:
    """Return what `profile` found."""
    return _document(
        machine=to_builtins(found.machine),
        workload=to_builtins(found.workload),
        baseline=baseline(found.profile),
        findings=findings(found.diagnosis),
        assumed=list(found.assumed),
    )


def tuning_document(tuning: Tuning) -> dict[str, Any]:
    """Return what `tune` found."""
    return _document(
        machine=to_builtins(tuning.machine),
        workload=to_builtins(tuning.workload),
        baseline=baseline(tuning.baseline),
        findings=findings(tuning.diagnosis),
        plan=dict(tuning.plan.settings),
        speedup=interval(tuning.speedup),
        levers=[
            {
                "lever": row.lever,
                "setting": row.setting,
                "verdict": row.outcome,
                "speedup": interval(row.speedup),
                "effect": row.effect.value,
                "why": row.why,
            }
            for row in tuning.levers
        ],
        maths={
            "effect": tuning.proof.effect.value,
            "gates": [to_builtins(gate) for gate in tuning.proof.gates],
        },
        passes=_passes(tuning.passes),
        cost={"wall_s": tuning.cost.wall_s, "launches": tuning.cost.launch_count},
        assumed=list(tuning.assumed),
        state=state_of(tuning).value,
        applied=dict(tuning.applied.settings),
        notes=list(tuning.notes),
    )


def _passes(passes: Passes | None) -> dict[str, Any] | None:
    if passes is None:
        return None
    return {
        "steps": passes.step_count,
        "longer_s": passes.longer_s,
        "outside_s": passes.outside_s,
        "outside_under_s": passes.outside_under_s,
        "count": passes.pass_count,
        "assumed": passes.is_assumed,
        "first": passes.first_ratio,
        "whole": interval(passes.whole),
    }


def encoded(content: object) -> bytes:
    """Return JSON; bytes that are not UTF-8 are escaped, since JSON cannot hold them."""
    return msgspec.json.encode(_spelt(to_builtins(content)))


def _spelt(content: Any) -> Any:
    if isinstance(content, str):
        return utf8(content)
    if isinstance(content, dict):
        return {_spelt(key): _spelt(value) for key, value in content.items()}
    return list(map(_spelt, content)) if isinstance(content, list | tuple) else content


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document as JSON, atomically.

    Raises:
        UsageError: it cannot be written.
    """
    # msgspec writes infinities and NaN as null, which is valid JSON; json would not.
    payload = msgspec.json.format(encoded(document), indent=2)
    write_atomically(path, payload.decode() + "\n")


def _document(**known: Any) -> dict[str, Any]:
    return {"schema": SCHEMA} | {key: known.get(key) for key in KEYS[1:]}


def findings(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return findings in the form of the document, costliest first."""
    return [
        {
            "id": finding.name,
            "share": interval(finding.share),
            "where": [to_builtins(place) for place in finding.places],
            "why": finding.message,
            "remedy": finding.remedy,
            "lever": finding.lever,
        }
        for finding in diagnosis.findings
    ]


def baseline(profile: Profile) -> dict[str, Any]:
    """Return a profile in the form of the document."""
    return {
        "step_s": profile.step_s,
        "samples_per_s": profile.samples_per_s,
        "phases": {str(phase): seconds for phase, seconds in profile.phase_s.items()},
    }


def interval(ratio: Interval | None) -> dict[str, float] | None:
    """Return a speed-up or share with its interval, in the form of the document."""
    if ratio is None:
        return None
    return {"low": ratio.low_ratio, "mid": ratio.mid_ratio, "high": ratio.high_ratio}
