"""The parent's story: facts, a bench of children, races, the proof, the result.

The stages do not know one another; here they meet.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hasten.records import Effect, Plan, Workload
from hasten.trials.deadline import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import NoReturn

    from hasten.records import (
        Comparison,
        Diagnosis,
        Interval,
        LossEnvelope,
        Machine,
        Pair,
        Profile,
        Profiling,
        Tuning,
    )
    from hasten.trials.compiled_code import CompiledCode
    from hasten.trials.deadline import Deadline
    from hasten.trials.runner import TrialRunner

_LOOK_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for.

    Attributes:
        budget_s: seconds that the whole tuning may take.
        first_s: seconds in which a first answer should be there, where the script permits that.
        numerics: the strongest effect on the numbers that the user permits.
        only: levers to try, all where it is empty.
        skip: levers not to try.
        applied: levers set by hand, below everything that is tried.
        patience_s: how long to wait for the first training step.
        training_s: how long the training will run, where the user said so.
        force: go on in spite of differences.
        step_count: steps to profile, None to let the time decide.
        plan_path: the plan file.
        unprotected: start trials even where the kernel cannot keep them from the files.
        assumed: what the user grants, by name.
    """

    budget_s: float = 300.0
    first_s: float = inf
    numerics: Effect = Effect.DISTRIBUTION
    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    applied: Plan = field(default_factory=Plan)
    patience_s: float = 60.0
    training_s: float | None = None
    force: bool = False
    step_count: int | None = None
    plan_path: Path = Path("hasten.toml")
    unprotected: bool = False
    assumed: frozenset[str] = frozenset()

    @property
    def aim_s(self) -> float:
        """Seconds that are shared out at first."""
        return min(self.budget_s, self.first_s)


class Watcher(Protocol):
    """Whoever looks on: the terminal, a log, or nobody."""

    def stage(self, name: str, detail: str = "") -> None:
        """Begin a part of the work."""

    def profiled(self, profile: Profile) -> None:
        """Take where the steps of the script go, as it is."""

    def found(self, diagnosis: Diagnosis) -> None:
        """Take what makes it slow."""

    def race_begins(self, baseline: Plan, candidate: Plan) -> None:
        """Begin a race; it ends before the next one begins."""

    def race_grows(self, pairs: Sequence[Pair], speedup: Interval) -> None:
        """Take some more pairs of the race, and what all of them show so far."""

    def race_ends(self, seen: Comparison) -> None:
        """End the race."""

    def leads(self, plan: Plan) -> None:
        """Take a new best plan."""

    def known(self, text: str) -> None:
        """Keep a fact on the screen."""

    def note(self, text: str) -> None:
        """Say something once."""


def doctor(python: str, *, patience_s: float = 60.0) -> Machine:
    """Return the facts of this machine, with those of torch under `python`.

    Args:
        python: the interpreter that runs the script.
        patience_s: how long it may take to answer.
    """
    from hasten import machine

    return machine.read(probe=lambda: machine.probe_torch(python, patience_s))


def glance(python: str = sys.executable) -> Machine:
    """Return the facts that a plan is checked against, without starting torch.

    The version is that of the installed distribution in this Python; of another one, with which a
    program trains, it is unknown.

    Args:
        python: the interpreter that runs the script.
    """
    from importlib.metadata import PackageNotFoundError, version

    from hasten import machine
    from hasten.records import Torch

    try:
        installed = Torch(version=version("torch")) if python == sys.executable else None
    except PackageNotFoundError:
        installed = None
    return machine.read(probe=lambda: installed)


def profile(workload: Workload, options: Options, view: Watcher) -> Profiling:
    """Measure where the steps of the script go and why, in a trial that changes nothing."""
    from hasten.records import Profiling
    from hasten.session.examine import examine
    from hasten.session.observe import (
        measure_ceiling,
        measure_own_cost,
        measure_peaks,
        observe,
    )
    from hasten.session.protection import protect

    protect(workload, options, view)
    view.stage("profile", "starting the script")
    facts = doctor(workload.python)
    with open_runner(workload, options, facts) as runner:
        seen = observe(runner, options.applied, step_count=options.step_count)
        view.profiled(seen)
        view.stage("profile", "our own cost, and what this machine can do")
        seen = measure_own_cost(runner, seen, options.applied)
        seen = measure_peaks(runner, seen, options.applied)
        view.stage("profile", "what a loader that costs nothing would give")
        seen = measure_ceiling(runner, seen, options.applied)
        view.stage("profile", "a closer look at what makes it slow")
        diagnosis = examine(runner, options.applied, seen, facts, seconds=_LOOK_S)
        view.found(diagnosis)
        notes = runner.notes
    return Profiling(
        machine=_of_what_trained(facts), workload=workload, profile=seen, diagnosis=diagnosis,
        notes=notes, assumed=tuple(sorted(options.assumed)),
    )  # fmt: skip


def tune(workload: Workload, options: Options, view: Watcher) -> Tuning:
    """Search, prove and confirm the fastest plan for the script on this machine."""
    from hasten.session.protection import protect
    from hasten.session.tuning_session import TuningSession

    protect(workload, options, view)
    found = TuningSession(workload, options, view).tune()
    return replace(found, machine=_of_what_trained(found.machine))


def _of_what_trained(machine: Machine) -> Machine:
    """Leave out that torch is missing: a program trains with a Python that nobody could ask."""
    kept = tuple(caveat for caveat in machine.caveats if caveat.name != "torch_missing")
    return replace(machine, caveats=kept)


def run(
    workload: Workload,
    plan: Plan,
    envelope: LossEnvelope | None = None,
    assumed: frozenset[str] = frozenset(),
) -> NoReturn:
    """Become the script, under `plan`. With an empty plan this is plain python.

    Args:
        workload: the user's command.
        plan: levers to apply.
        envelope: what its first steps are held against; None leaves them unwatched.
        assumed: what the user granted, by name.
    """
    from hasten.errors import UsageError
    from hasten.trials.child_environment import environment

    guarded = {} if envelope is None else {"band": asdict(envelope)}
    env = dict(os.environ)
    if plan.settings:
        env = environment(plan, mode="run", assumed=assumed, **guarded)
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


@contextmanager
def open_runner(
    workload: Workload, options: Options, facts: Machine, code: CompiledCode | None = None,
    *, deadline: Deadline = NEVER,
) -> Iterator[TrialRunner]:  # fmt: skip
    """Open the bench of a script, isolated as well as this machine permits.

    Args:
        workload: the user's command.
        options: of the session.
        facts: of this machine.
        code: what its trials share of what they compile; None lets each compile for itself.
        deadline: when its children are waited for no more.
    """
    from hasten.trials.isolation.scratch import sweep
    from hasten.trials.process import best_isolation
    from hasten.trials.runner import TrialRunner
    from hasten.trials.trial_process import TrialProcess

    sweep()
    with TrialRunner(
        workload,
        isolation=best_isolation(workload.cwd),
        patience_s=options.patience_s,
        available_bytes=facts.memory.available_bytes,
        make_trial=partial(TrialProcess, code=code, deadline=deadline, assumed=options.assumed),
    ) as runner:
        yield runner
