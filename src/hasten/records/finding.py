"""What makes a step slow, and where in the user's code."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  msgspec reads the fields
from dataclasses import dataclass, field

from hasten.records.enums import Phase, Setting  # noqa: TC001  the same
from hasten.records.measurements import Interval, Step  # noqa: TC001  the same

CONTENDED = "contended-machine"
"""The finding that other processes are on the CPUs of the loop."""
_CONTENDED_SHARE_RATIO, _CONTENDED_CPUS_RATIO = 0.1, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of source.

    Attributes:
        path: the file, absolute.
        line: counted from 1.
        source: its text without indentation, empty where it cannot be read.
    """

    path: str
    line: int
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotLine:
    """A line of the user's own code on which the loop spends time.

    Attributes:
        share_ratio: share of the samples of the loop's thread that stood on it, or below it in
            code that is not the user's.
        phase: the phase that most of these samples fell into, empty outside of all.
        calls: the call that it was in most often, such as `PIL.Image.Image.resize`; empty where it
            was the line itself.
    """

    place: Place
    share_ratio: float
    phase: str = ""
    calls: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A named, measured reason for lost time.

    Attributes:
        name: its id, that of its symptom, such as `few-workers`; never renamed.
        share: share of the step that it costs (0.2 is 20%) with its 95% interval; None where it
            costs something that no share can express, such as memory or trust.
        is_of_all: the share is of all time, evaluations and checkpoints included, not of the steps.
        message: what was measured, in one sentence with its figures.
        remedy: what to do, in one imperative sentence.
        phase: the phase that it is about, where its cure depends on that.
        lever: the lever that applies the remedy without an edit, None where only the user can.
        places: the lines in question, most important first.
    """

    message: str
    remedy: str
    name: str = ""
    share: Interval | None = None
    is_of_all: bool = False
    phase: Phase | None = None
    lever: str | None = None
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a look at the running script found, beside its profile.

    Attributes:
        findings: costliest first.
        hot_lines: lines of the user's code that cost more than 2% of the loop, costliest first.
        steps: the steps that were watched, in order.
        fault_s: seconds that a page fault adds to a step; None where that is unknown.
        others_ratio: CPUs that other processes kept busy of those that the loop may use, as an
            average number; None where that is unknown.
        has_team: whether threads beside the loop's own computed; None where that is unknown.
        slower: for each lever with a setting that slowed the steps down, or would by what their
            operations took, that setting and how many times faster they were, below 1.
    """

    findings: tuple[Finding, ...] = ()
    hot_lines: tuple[HotLine, ...] = ()
    steps: tuple[Step, ...] = ()
    fault_s: float | None = None
    others_ratio: float | None = None
    has_team: bool | None = None
    slower: Mapping[str, tuple[Setting, float]] = field(default_factory=dict)

    @property
    def is_contended(self) -> bool:
        """Whether other processes kept the loop from its CPUs enough to change the answer.

        Something is always awake; nobody can tell when that will be gone.
        """
        for finding in self.findings:
            if finding.name == CONTENDED and finding.share is not None:
                waits = finding.share.mid_ratio >= _CONTENDED_SHARE_RATIO
                return waits or (self.others_ratio or 0.0) >= _CONTENDED_CPUS_RATIO
        return False
