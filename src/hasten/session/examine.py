"""A closer look at the running script, and what it says."""

from __future__ import annotations

import linecache
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hasten import diagnose
from hasten.diagnose.waits import read_rivals
from hasten.errors import HastenError
from hasten.lever import ScriptContext, cure_of, discover
from hasten.records import Diagnosis, HotLine, Place
from hasten.search.costs import LOOK_LEAST_COUNT
from hasten.session.pair_probes import CLEAR_RATIO, probe_levers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.records import Finding, Machine, Plan, Profile, Setting, Step
    from hasten.trials.runner import TrialRunner

_MOST_COUNT = 200
_TEAM_RATIO = 0.01
_SLOWER_RATIO = 3.0  # steps that are looked at take longer
_PROBES_RATIO = 0.4  # of the time for looking, for pairs of steps under levers


def examine(
    runner: TrialRunner,
    plan: Plan,
    seen: Profile,
    machine: Machine,
    *,
    seconds: float,
    assumed: frozenset[str] = frozenset(),
) -> Diagnosis:
    """Look closely at the script for about so many seconds, and say what makes its steps slow.

    It takes eight steps at least. A script that fails meanwhile gets an empty diagnosis.
    """
    least_count = max(LOOK_LEAST_COUNT, runner.pace.repeat_count(plan))
    count = min(_MOST_COUNT, max(least_count, int(seconds / max(1e-6, seen.step_s))))
    try:
        steps, found = _look(runner, plan, count, least_count, _SLOWER_RATIO * seconds)
        traits = replace(runner.facts(plan).traits, has_team=_has_team(found))
    except HastenError:
        runner.children.clear()  # one has died, or is an answer behind
        return Diagnosis()
    context = ScriptContext(machine=machine, baseline=seen, traits=traits, assumed=assumed)
    probed = probe_levers(runner, plan, context, seconds=_PROBES_RATIO * seconds)
    found |= probed.found
    hot_lines = read_lines(found.pop("stacks.lines", ()))
    case = diagnose.Case(
        machine=machine,
        profile=seen,
        traits=traits,
        found=found,
        steps=tuple(steps),
        hot_lines=hot_lines,
    )
    findings = tuple(
        replace(with_sources(finding), lever=cure_of(finding, context))
        for finding in diagnose.diagnose(case)
    )
    rivals = read_rivals(case)
    return Diagnosis(
        findings=findings,
        hot_lines=hot_lines,
        steps=tuple(steps),
        fault_s=_fault_s(found),
        others_ratio=None if rivals is None else rivals.others_ratio,
        has_team=traits.has_team,
        slower=_costly(found, seen) | probed.slower,
    )


def _costly(found: Mapping[str, Any], seen: Profile) -> dict[str, tuple[Setting, float]]:
    """Return the levers that would lengthen steps by what operations took, see `saved_fact`."""
    costly: dict[str, tuple[Setting, float]] = {}
    for name, lever in discover().items():
        if saved_s := found.get(lever.saved_fact):
            longer_s = seen.mean_step_s - fmean(saved_s)
            if seen.mean_step_s < CLEAR_RATIO * longer_s:
                costly[name] = True, seen.mean_step_s / longer_s
    return costly


def _look(
    runner: TrialRunner, plan: Plan, count: int, least_count: int, most_s: float
) -> tuple[list[Step], dict[str, Any]]:
    """Look closely at steps, as many as the script has room for; `least_count` after `most_s`."""

    def look() -> tuple[list[Step], dict[str, Any]]:
        room = runner.pace.room(count)
        trial = runner.children.with_life((plan,), 0, room)
        timeout_s = runner.pace.timeout_s(room)
        return trial.examine(room, timeout_s=timeout_s, least_count=least_count, most_s=most_s)

    return runner.repeat(look)


def _has_team(found: Mapping[str, Any]) -> bool | None:
    """Return whether operations were shared: a team of threads is started for the first that is."""
    run_s, wall_s = found.get("processors.team_run_s"), found.get("processors.wall_s")
    return None if run_s is None or not wall_s else run_s >= _TEAM_RATIO * wall_s


def _fault_s(found: Mapping[str, Any]) -> float | None:
    """Return what a page fault adds to a step: the mean of its cost and its share per thread."""
    one_s, threads_count = found.get("faults.fault_s"), found.get("faults.threads_count") or 1
    return None if one_s is None else one_s * (1.0 + 1.0 / threads_count) / 2.0


def read_lines(lines: Sequence[Mapping[str, Any]]) -> tuple[HotLine, ...]:
    """Return sampled lines with their source."""
    return tuple(
        HotLine(
            place=read_place(line["path"], line["line"]),
            share_ratio=line["share_ratio"],
            phase=line.get("phase", ""),
            calls=line.get("calls", ""),
        )
        for line in lines
    )


def with_sources(finding: Finding) -> Finding:
    """Return a finding whose places have their text."""
    places = tuple(p if p.source else read_place(p.path, p.line) for p in finding.places)
    return replace(finding, places=places)


def read_place(path: str, line: int) -> Place:
    """Return a line of a file with its text; without it where the file cannot be read."""
    return Place(path=path, line=line, source=linecache.getline(path, line).strip())
