"""What a tuning knows of a script before it races anything: how it runs, and what may be tried."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hasten import search
from hasten.errors import UsageError
from hasten.lever import ScriptContext
from hasten.records import CONTENDED, Diagnosis
from hasten.search.costs import LOOK_S, refuse_too_short, refuse_too_slow
from hasten.session.candidates import advice, find_candidates
from hasten.session.examine import examine
from hasten.session.journals import open_journal
from hasten.session.measured_costs import costs_of, first_costs
from hasten.session.observe import begin, idle_note, observe, others_note, step_note, where
from hasten.units import percent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.records import LeverReport, Machine, Profile, Traits, Workload
    from hasten.session.options import Options, Watcher
    from hasten.session.setup import MachineSurvey
    from hasten.trials.runner import TrialRunner

_SHOWN_COUNT = 3
_BUSY_RATIO = 0.25
_ALONE = (
    "Only one trial at a time can live here, for want of memory or of a port: each turn starts "
    "the script anew, which takes longer."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A script as it is.

    Attributes:
        machine: where it runs.
        baseline: its profile.
        diagnosis: what makes it slow.
        context: what levers are asked about.
        candidates: what may be tried.
        left_out: a row for each lever that may not.
        journal: the races so far, from an earlier start of the same search.
    """

    machine: Machine
    baseline: Profile
    diagnosis: Diagnosis
    context: ScriptContext
    candidates: Sequence[search.Candidate]
    left_out: tuple[LeverReport, ...]
    journal: search.Journal

    @property
    def notes(self) -> list[str]:
        """What levers have to say about the script, and whether none can help."""
        nothing = "No lever that may be tried here can reach 2%: see why each was left out."
        traits = self.context.traits
        idle = idle_note(self.baseline, self.machine.torch, traits)
        own = (*step_note(traits), *idle, *advice(self.context))
        return [*own, *(() if self.candidates else (nothing,))]


def notes_of(runner: TrialRunner, baseline: Profile) -> tuple[str, ...]:
    """Return what the user should know of how trials run here."""
    alone = (_ALONE,) if runner.pace.single_process else ()
    return (*runner.children.notes, *alone, *others_note(baseline))


def context_of(
    machine: Machine, baseline: Profile, traits: Traits, *, assumed: frozenset[str]
) -> ScriptContext:
    """Return what levers are asked about: one rank's share where several train together."""
    count = traits.local_rank_count
    if count > 1:
        budget, free_bytes = machine.budget, machine.memory.available_bytes
        machine = replace(
            machine,
            budget=replace(budget, core_count=budget.cores_per_rank(count)),
            memory=replace(machine.memory, available_bytes=free_bytes and free_bytes // count),
        )
        busy = baseline.cores_ratio
        baseline = replace(baseline, cores_ratio=busy and busy / count)
    return ScriptContext(machine=machine, baseline=baseline, traits=traits, assumed=assumed)


def with_findings(refused: UsageError, diagnosis: Diagnosis, machine: Machine) -> UsageError:
    """Return the error of a budget that is refused, with what the look at the script has found.

    Args:
        refused: names a budget that is enough.
        diagnosis: its costliest findings follow the remedy, each in a line with its lever; empty
            where there was no time for a look.
        machine: as it was before the script was started.
    """
    lines, pressure = [refused.remedy], machine.pressure
    was_busy = (pressure.cpu_some_ratio or 0.0) >= _BUSY_RATIO or (pressure.load_ratio or 0.0) >= 1
    if diagnosis.is_contended or (was_busy and not diagnosis.findings):
        lines.append(
            "Other processes keep the CPUs busy now: without them, less may be enough. Beside "
            f"them: `hasten findings {CONTENDED}`."
        )
    for finding in diagnosis.findings[:_SHOWN_COUNT]:
        cost = "" if finding.share is None else f" costs {percent(finding.share.mid_ratio)}"
        cure = "" if finding.lever is None else f" The lever {finding.lever} is a cure."
        lines.append(f"{finding.name}{cost}: {finding.message}{cure}")
    return UsageError(refused.problem, remedy="\n".join(lines))


def refuse_other_machines(traits: Traits) -> None:
    """Raise where a command trains on several machines.

    Raises:
        UsageError: it does.
    """
    if traits.rank_count > traits.local_rank_count:
        raise UsageError(
            f"The command trains in {traits.rank_count} processes, {traits.local_rank_count} of "
            "them on this machine, and a plan is found on one machine.",
            remedy="Tune it with the ranks of one machine.",
        )


def watch(
    workload: Workload, options: Options, view: Watcher, runner: TrialRunner, survey: MachineSurvey,
    *, spent_s: Callable[[], float],
) -> Watched:  # fmt: skip
    """Watch a script as it is, and find what may be tried on it.

    Raises:
        UsageError: the budget is too short, or the command trains on several machines.
        OutOfTime: the budget has ended.
    """
    applied = options.applied
    view.stage("baseline", "starting the script as it is")
    begin(runner, applied)
    machine = survey.complete()
    refuse_too_short(options.budget_s, spent_s(), first_costs(runner, spent_s()))

    def paced(step_s: float) -> None:
        costs = replace(first_costs(runner, spent_s()), step_s=step_s, pair_s=2 * step_s)
        try:
            refuse_too_slow(options.budget_s, spent_s(), costs)
        except UsageError as refused:
            raise with_findings(refused, Diagnosis(), machine) from None

    baseline = observe(runner, applied, paced=paced)
    view.profiled(baseline)
    view.known(where(baseline))
    for note in notes_of(runner, baseline):
        view.note(note)
    diagnosis = examine(runner, applied, baseline, machine, seconds=LOOK_S, assumed=options.assumed)
    view.found(diagnosis)
    costs = costs_of(runner, baseline, machine, baseline=applied, candidate=applied)
    try:
        refuse_too_short(options.budget_s, spent_s(), costs, is_watched=True)
    except UsageError as refused:
        raise with_findings(refused, diagnosis, machine) from None
    traits = replace(runner.facts(applied).traits, has_team=diagnosis.has_team)
    refuse_other_machines(traits)
    context = context_of(machine, baseline, traits, assumed=options.assumed)
    journal = open_journal(workload, options, machine, torch=traits.torch)
    candidates, left_out = find_candidates(
        context, options, begun=journal.begun, diagnosis=diagnosis
    )
    # A closer look leaves marks: a large block that a probe frees makes glibc keep what the
    # script frees, and this child would be faster than any run of the script.
    runner.children.clear()
    journal.settle(
        search.SearchStarted(
            settings={candidate.lever: candidate.settings for candidate in candidates},
            named={k.lever: k.named_ratio for k in candidates if k.named_ratio},
            slower={k.lever: k.slower for k in candidates if k.slower},
        )
    )
    return Watched(
        machine=machine, baseline=baseline, diagnosis=diagnosis, context=context,
        candidates=candidates, left_out=left_out, journal=journal,
    )  # fmt: skip
