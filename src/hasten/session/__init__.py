"""The parent's side: facts, trials, races, the proof, the result.

The stages do not know one another; here they meet.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hasten.session import setup, shared_run
from hasten.session.options import Options, Watcher
from hasten.session.setup import doctor, glance
from hasten.session.shared_run import check_entry, fitting

if TYPE_CHECKING:
    from typing import NoReturn

    from hasten.records import LossEnvelope, Machine, Plan, Profiling, Tuning, Workload

__all__ = [
    "Options",
    "Watcher",
    "check_entry",
    "doctor",
    "fitting",
    "glance",
    "profile",
    "run",
    "tune",
]

_LOOK_S = 8.0


def profile(workload: Workload, options: Options, view: Watcher) -> Profiling:
    """Measure where the steps of the script go and why, in a trial that changes nothing."""
    from hasten.records import Profiling
    from hasten.session.examine import examine
    from hasten.session.observe import (
        begin,
        idle_note,
        measure_own_cost,
        observe,
        others_note,
        step_note,
    )

    notes = setup.protect(workload, options, view)
    view.stage("profile", "starting the script")
    with (
        setup.MachineSurvey(workload.python) as survey,
        setup.open_runner(workload, options, survey.machine) as runner,
    ):
        begin(runner, options.applied)
        facts = survey.complete()
        seen = observe(runner, options.applied, step_count=options.step_count)
        view.profiled(seen)
        view.stage("profile", "what watching costs")
        seen = measure_own_cost(runner, seen, options.applied)
        view.stage("profile", "a closer look at what makes it slow")
        diagnosis = examine(
            runner, options.applied, seen, facts, seconds=_LOOK_S, assumed=options.assumed
        )
        view.found(diagnosis)
        traits = runner.facts(options.applied).traits
        notes += (*runner.children.notes, *others_note(seen), *step_note(traits))
        notes += idle_note(seen, facts.torch, traits)
    return Profiling(
        machine=_of_what_trained(facts), workload=workload, profile=seen, diagnosis=diagnosis,
        notes=notes, assumed=tuple(sorted(options.assumed)),
    )  # fmt: skip


def tune(workload: Workload, options: Options, view: Watcher) -> Tuning:
    """Search, prove and confirm the fastest plan for the script on this machine."""
    from hasten.session.tuning_session import TuningSession

    notes = setup.protect(workload, options, view)
    found = TuningSession(workload, options, view).tune()
    machine = _of_what_trained(found.machine)
    return replace(found, machine=machine, notes=(*notes, *found.notes))


def _of_what_trained(machine: Machine) -> Machine:
    """Drop the caveat that torch is missing: a program may train with a Python we cannot ask."""
    kept = tuple(caveat for caveat in machine.caveats if caveat.name != "torch_missing")
    return replace(machine, caveats=kept)


def run(
    workload: Workload,
    plan: Plan,
    envelope: LossEnvelope | None = None,
    assumed: frozenset[str] = frozenset(),
    *,
    shares_batches: bool = False,
) -> NoReturn:
    """Replace this process with the script under `plan`; an empty plan is plain python.

    Its first steps are held against the envelope, if there is one. Where it shares batches, the
    first rank does this, and the others run the script aside.
    """
    from hasten.errors import UsageError
    from hasten.protocol import Mode
    from hasten.records import Entry
    from hasten.trials.blocks import patience_s
    from hasten.trials.child_environment import environment
    from hasten.trials.compiled_code import handed_out

    guarded: dict[str, Any] = {} if envelope is None else {"envelope": asdict(envelope)}
    env = dict(os.environ)
    if shares_batches and (team := shared_run.join(workload, plan, env)) is not None:
        guarded["team"] = team
        env = shared_run.of_team(env, team)
    # Another Python finds the notebook runner through its environment.
    elsewhere = workload.entry is Entry.NOTEBOOK and workload.python != sys.executable
    if plan.settings or elsewhere or "team" in guarded:
        env = environment(plan, mode=Mode.RUN, assumed=assumed, env=env, **guarded)
    if patience_s(plan) and (kept := setup.kept_code(workload)) is not None:
        env |= handed_out(kept)
    if "team" in guarded and (rank := guarded["team"]["rank"]):
        raise SystemExit(shared_run.run_aside(workload, env, rank))
    command = workload.command
    # Python ignores them, and a shell cannot undo that for what it starts: see `yes | head -1`.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, env)
    except OSError as error:
        raise UsageError(
            f"Cannot start {command[0]}: {error.strerror}.", remedy="Check the command."
        ) from None
