"""What a lever is, and how levers are found.

A lever is a value, not a subclass: each file in `levers/` ends with `LEVER = Lever(...)`.
No lever names another, and nothing outside `levers/` names one, except the edit that writes it
into a script.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from hasten import levers
from hasten.errors import PlanError, choice, shown
from hasten.records import CONTENDED, Assumption, Phase, Plan, Profile, Scope, Setting, Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hasten.records import Effect, Finding, Machine

    Undo = Callable[[], None]

S = TypeVar("S", bound=Setting)
STEP = frozenset(phase for phase in Phase if phase.in_step)
COMPUTE = frozenset({Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER})
COMPUTE_AND_DATA = COMPUTE | {Phase.DATA}
OPTIMIZER = "torch.optim.Optimizer"
_DEAREST_FAULT_S = 4e-6
_GONE = "HASTEN_GONE"
COMPILED_KEY = "HASTEN_COMPILED"
"""The environment variable that names a trial's own folder for compiled code."""
TORCHS_CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that tells torch's compiler where to cache what it compiles."""
_LEAST_FAULT_SHARE_RATIO = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptContext:
    """What the search knows of the script before it proposes anything.

    Attributes:
        baseline: the profile of the untouched script, None where there is none yet.
        traits: what the child saw of the script.
        assumed: the assumptions that the user granted, by name.
    """

    machine: Machine
    baseline: Profile | None = None
    traits: Traits = field(default_factory=Traits)
    assumed: frozenset[str] = frozenset()

    def off_cpu(self) -> str:
        """Say that steps are computed by an accelerator; empty where the CPU does it."""
        model = self.traits.model
        if not model.is_on_accelerator:
            return ""
        return f"the model is on {model.device}: no step is computed by the CPU"

    def few_faults(self) -> str:
        """Say that page faults take too little of a step to matter; empty where they may."""
        seen = self.baseline
        if seen is None or seen.faults_count is None:
            return ""
        share = seen.faults_count * _DEAREST_FAULT_S / seen.step_s
        if share >= _LEAST_FAULT_SHARE_RATIO:
            return ""
        return f"a step faults in {seen.faults_count:.0f} pages: at most {share:.1%} of it"


class Training(Protocol):
    """The live objects of the user's script, as the child offers them to levers.

    Each `on_*` calls back at once for every object that is already known and later for each
    new one, until the returned function is called.

    Attributes:
        trial: the process is discarded after some seconds of timed steps. A lever that pays off
            only from the second pass over the data may behave there as it will from that pass on.
        paused_s: seconds for which the loop was parked between two steps.
        at_once: the first steps are recorded for a proof; a lever that usually waits acts at once.
        assumed: the assumptions that the user granted, by name.
    """

    trial: bool
    paused_s: float
    at_once: bool
    assumed: frozenset[str]

    def on_optimizer(self, apply: Callable[[Any], Callable[[], None] | None]) -> Undo:
        """Apply `apply` to each `torch.optim.Optimizer` right before its first step."""

    def on_options(self, choose: Callable[[Any], Mapping[str, Any] | str]) -> Undo:
        """Step each optimizer under what `choose(optimizer)` returns, such as `{"fused": True}`.

        It may return a sentence in place of options: why the optimizer keeps its own. A run says
        it where no optimizer has others.

        `choose` sees the optimizer with the options of the script; checkpoints and copies keep
        those options, too. The first update of a parameter always uses the script's own options.
        """

    def on_update(self, judge: Callable[..., Any]) -> Undo:
        """Let `judge(optimizer, has_closure=...)` say before a step if its gradients are useless.

        It returns a tensor of one number, 1 where they are: the step then changes nothing, and is
        counted. It returns None where it knows nothing of them.
        """

    def on_root(self, apply: Callable[[Any], Callable[[], None] | None]) -> Undo:
        """Apply `apply` to each root module right before its next call."""

    def on_call(
        self,
        around: Callable[[Any, Callable[[Any, Any], Any], Any, Any], Any],
        *,
        innermost: int = 0,
    ) -> Undo:
        """Let `around(module, call, args, kwargs)` make each root call.

        Its result is what the script gets; `call(args, kwargs)` makes the call as it would be
        without it. Of several levers, the one applied last is outermost. `innermost` overrides
        that: 1 for a lever that makes the call by itself; 2 for one that follows each operation
        of the module, with nothing but the module below it; -1, around all the others, for one
        that decides where they compute.
        """

    def on_function(self, owner: Any, name: str, answer: Callable[..., Any]) -> Undo:
        """Let `answer(original, *args, **kwargs)` replace the function `owner.name`.

        It is called only in the thread of the loop, and never while torch compiles. A name that
        the script has already imported is not replaced. `owner` may also be the name of a module
        that is imported later or never; then `name` may have dots, and any thread calls `answer`.
        """

    def on_loader(self, make: Callable[[Any, Callable[[], Any]], Any]) -> Undo:
        """Let `make(loader, stock)` build the iterator of each DataLoader."""

    def on_next(self, advance: Callable[[Any, Any], Any]) -> Undo:
        """Let `advance(original, iterator)` fetch the next batch of each loader iterator."""

    def on_transfer(self, convert: Callable[[Any, Any, Any, Any], Any]) -> Undo:
        """Let `convert(original, tensor, args, kwargs)` answer `Tensor.to` and `Tensor.cuda`.

        It is called for every tensor that the loop's thread moves or casts, and returns what
        `original(tensor, *args, **kwargs)` would.
        """

    def on_phase(self, enter: Callable[[Phase], Callable[[], None] | None]) -> Undo:
        """Call `enter(phase)` as the loop goes into FORWARD, BACKWARD or OPTIMIZER.

        FORWARD covers every root call, also of a loss or in an evaluation. What `enter` returns is
        called on the way out. Phases may nest, as in a closure or for a gradient taken in a model.
        """

    def on_training(self, apply: Callable[[], Callable[[], None] | None]) -> Undo:
        """Apply `apply` now, and again when training starts, after the script's own settings."""

    def compiled(self, spent_s: float) -> None:
        """Note seconds that went into compiling or comparing: paid once, not with every step."""

    def on_first_pass(self, cost_s: Callable[[], tuple[float, float]]) -> None:
        """Let a trial ask for the one-time costs of its data.

        Args:
            cost_s: returns the seconds by which a run's first pass over its data takes longer
                than later ones, and the seconds that the trial spent instead, before its first
                step.
        """

    def excuse(self, error: Exception) -> None:
        """Report that the lever no longer acts, and why; in a trial this raises `error`.

        A lever calls it where it leaves the script unchanged, so that a run goes on and says so.
        """


def is_asked_by_script() -> bool:
    """Return whether a function that a lever answers for is called by neither torch nor hasten."""
    asker = str(sys._getframe(3).f_globals.get("__name__"))  # past the lever's answer and the seam
    return asker.partition(".")[0] not in ("torch", "hasten")


_KINDS = {bool: "true", int: "a whole number", str: "a text"}


def one_of(*words: str) -> Callable[[str], str]:
    """Return the `validate` of a lever that accepts only these words."""
    told = f"{', '.join(words[:-1])} or {words[-1]}" if words[1:] else words[0]
    return lambda setting: "" if setting in words else told


def unless(
    why_not: Callable[[ScriptContext], str], *settings: S
) -> Callable[[ScriptContext], tuple[S, ...]]:
    """Return the `settings` of a lever that has these wherever `why_not` has nothing to say."""
    return lambda context: () if why_not(context) else settings


def at_least(least: int) -> Callable[[int], str]:
    """Return the `validate` of a lever that accepts numbers of at least `least`."""
    return lambda setting: "" if setting >= least else f"a whole number from {least} on"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairProbe:
    """A setting that the closer look runs beside the script for some pairs of steps.

    Its effect on the arithmetic does not matter: the process is thrown away.

    Attributes:
        fact: the name under which findings read its result, such as `threads`.
        setting: the one to try for a script, None where none is worth it.
    """

    fact: str
    setting: Callable[[ScriptContext], Setting | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever(Generic[S]):
    """One thing that can be changed about a training run.

    Attributes:
        name: equal to the file's stem; the key in a `Plan`.
        phases: the phases it can shorten; the search skips it where they are small.
        effect: the most it does to the arithmetic; `verify` picks its gate from this.
        scope: how far a running script can change it.
        kind: the type of a setting: `bool` where the lever is only on or off, else `int` or
            `str`.
        validate: says what to give instead of a setting of its kind that it rejects; empty for
            one that it accepts. `one_of` and `at_least` make such functions.
        settings: which settings are worth trying for a script, best guess first; empty where it
            cannot help. `unless` makes such a function.
        gain_ratio: how many times faster it may make its phases at best; with their share this
            bounds what it can give.
        why_not: one sentence for a script for which `settings` is empty.
        promising: whether the first setting is more likely to help than to hurt for a script, and
            so belongs in the first bundle.
        forecast: how many times faster the whole step of a script should be under a setting
            alone, None where nothing predicts it; the report puts it beside the measurement.
        advice: one sentence that the user should hear about a script, however the lever fares; the
            report prints it among its notes. Empty for none.
        provides: the traits of a script under a setting, such as its `preloaded`, given those
            that it has without the lever.
        redundant_with: why a setting would do nothing given the traits that a script has under the
            other levers of a plan; empty where it would do something.
        probe: what the closer look tries of it by pairs of steps, None for nothing.
        saved_fact: the fact of the closer look that says how many seconds it would save in each
            step, negative if it would cost time; empty where nothing says so.
        epsilon_ratio: for a PRECISION lever the distance of neighbouring numbers over their size:
            2^-8 in bfloat16, 2^-11 in float16 and TF32.
        settle_count: steps after a switch that are not counted.
        patience_s: how much longer than usual its first steps may take before they count as
            a hang.
        start_ratio: how long it compiles, as a multiple of the script's own start: the estimate
            for its first trial.
        cures: findings whose share of a step it may take away.
        enables: whether the script may not train here without a setting. A proof then compares with
            the script under it.
        shares_cpus: whether the gain of a setting depends on how many CPUs other processes leave to
            the script, so that it may win beside them and lose without them.
        eases_contention: whether a setting that shares CPUs is raced beside other processes all
            the same, because it keeps them from holding the loop up.
        steadies: it removes a state that some launches end up in by chance. One race cannot show
            what that is worth, so it stays in a plan that it does not slow down.
        warms_cache: under it, the first pass over the data does more work than later ones.
        cycle_count: steps after which the times under a setting repeat, so that a block of
            them is typical: batches of n workers come in bursts of n.
        env: edits the child's environment, before there is a child.
        apply: acts inside the child; returns the function that undoes it.
        snippet: what a user would write by hand for a setting; in it, `OPTIMIZER` stands for the
            class of the script's optimizer.
        option: the option of the command line that sets it, beside `--set`; empty for none.
        edit: the edit of the report that writes it into a script; empty for none.
        run_only: why no edit can replace it; empty where the snippet can.
        edited_calls: functions of torch whose calls the snippet replaces.
    """

    name: str
    phases: frozenset[Phase]
    effect: Effect
    scope: Scope
    settings: Callable[[ScriptContext], tuple[S, ...]]
    gain_ratio: float
    why_not: Callable[[ScriptContext], str]
    snippet: Callable[[S], str]
    kind: type[bool] | type[int] | type[str] = bool
    validate: Callable[[S], str] = lambda setting: ""
    promising: Callable[[ScriptContext], bool] = lambda context: True
    forecast: Callable[[ScriptContext, S], float | None] = lambda context, setting: None
    advice: Callable[[ScriptContext], str] = lambda context: ""
    provides: Callable[[S, Traits], Traits] = lambda setting, traits: traits
    redundant_with: Callable[[S, Traits], str] = lambda setting, traits: ""
    probe: PairProbe | None = None
    saved_fact: str = ""
    epsilon_ratio: Callable[[S], float] = lambda setting: 2.0**-8
    settle_count: int = 0
    patience_s: float = 0.0
    start_ratio: float = 0.0
    cures: frozenset[str] = frozenset()
    enables: Callable[[S], bool] = lambda setting: False
    shares_cpus: Callable[[S], bool] = lambda setting: False
    eases_contention: Callable[[S], bool] = lambda setting: False
    steadies: bool = False
    warms_cache: bool = False
    cycle_count: Callable[[S], int] = lambda setting: 1
    env: Callable[[Mapping[str, str], S], Mapping[str, str]] = lambda env, setting: env
    apply: Callable[[Training, S], Callable[[], None]] = lambda training, setting: lambda: None
    option: str = ""
    edit: str = ""
    run_only: str = ""
    edited_calls: tuple[str, ...] = ()

    def may_cure(self, finding: Finding) -> bool:
        """Return whether it may take away what a finding costs."""
        is_there = finding.phase is None or finding.phase in self.phases
        return is_there and finding.name in self.cures

    def beside_others(self, settings: tuple[S, ...]) -> tuple[S, ...]:
        """Return those settings that are worth a race while other processes keep CPUs busy."""
        return tuple(s for s in settings if not self.shares_cpus(s) or self.eases_contention(s))

    def easing(self, settings: tuple[S, ...]) -> tuple[S, ...]:
        """Return those settings that keep other processes from holding the loop up."""
        return tuple(setting for setting in settings if self.eases_contention(setting))

    @property
    def card(self) -> str:
        """The docstring of the lever's file: what helps, what hurts, the maths, the source."""
        module = importlib.import_module(f"{levers.__name__}.{self.name}")
        if module.__doc__ is None:  # `python -OO`
            import ast
            import inspect

            source = ast.parse(inspect.getsource(module))
            return ast.get_docstring(source, clean=False) or ""
        return module.__doc__


def undo_all(undos: Sequence[Undo]) -> Undo:
    """Return one undo for several, in their order."""

    def undo() -> None:
        for one in undos:
            one()

    return undo


def preload(env: Mapping[str, str], library: str, path: str | None) -> Mapping[str, str]:
    """Preload a library into a process, after what the user preloads.

    Args:
        env: of the process.
        library: its name.
        path: where it is; None where it is gone, which `expect_preloaded` reports in the child.
    """
    if path is None:
        return {**env, _GONE: f"{env.get(_GONE, '')} {library}".strip()}
    own = env.get("LD_PRELOAD", "").strip()
    return {**env, "LD_PRELOAD": f"{own}:{path}" if own else path}


def in_shell(variables: Mapping[str, str]) -> str:
    """Return what to type to start a script under these variables."""
    import shlex

    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return f"{' '.join(words)} python ...  # in the shell"


def expect_preloaded(library: str) -> None:
    """Raise in the child if a library could not be preloaded.

    Raises:
        LookupError: it was there when the plan was made, but is gone now.
    """
    gone = os.environ.pop(_GONE, "").split()
    if rest := [name for name in gone if name != library]:
        os.environ[_GONE] = " ".join(rest)
    if library in gone:
        raise LookupError(f"{library} is not installed here any more")


def names() -> tuple[str, ...]:
    """Return the sorted names of all levers: the files in `levers/`, without importing any."""
    return _names_in(tuple(levers.__path__))


@cache  # a search asks thousands of times
def _names_in(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folders)))


def load(name: str) -> Lever[Any]:
    """Import the file of one lever; a plan of three levers should not start thirty."""
    lever: Lever[Any] = importlib.import_module(f"{levers.__name__}.{name}").LEVER
    return lever


def discover() -> Mapping[str, Lever[Any]]:
    """Import every file in `levers/` and return its `LEVER`, keyed and ordered by name."""
    return {name: load(name) for name in names()}


def check_names(asked: Iterable[str]) -> None:
    """Check that levers of these names exist.

    Raises:
        PlanError: some are not installed here.
    """
    known = names()
    if unknown := [name for name in asked if name not in known]:
        raise PlanError(
            f"Unknown levers: {shown(', '.join(unknown))}.", remedy=choice(unknown[0], known)
        )


def check_assumptions(asked: Iterable[str]) -> None:
    """Check that assumptions of these names exist.

    Raises:
        PlanError: some are unknown.
    """
    known = list(Assumption)
    if unknown := [name for name in asked if name not in known]:
        raise PlanError(
            f"There is no assumption {shown(', '.join(map(repr, unknown)))}.",
            remedy=choice(unknown[0], known),
        )


def lookup(plan: Plan) -> tuple[tuple[Lever[Any], Setting], ...]:
    """Return the levers that `plan` names, with their settings.

    Raises:
        PlanError: the plan names a lever that is not installed here.
    """
    check_names(name for name, _ in plan.settings)
    return tuple((load(name), setting) for name, setting in plan.settings)


def enabling(plan: Plan) -> Plan:
    """Return the levers of a plan without which the script may not train here at all.

    Raises:
        PlanError: the plan names a lever that is not installed here.
    """
    return plan.only(frozenset(it.name for it, setting in lookup(plan) if it.enables(setting)))


def sharing_cpus(plan: Plan) -> Plan:
    """Return the levers of a plan that may gain beside other processes and lose without them.

    Raises:
        PlanError: the plan names a lever that is not installed here.
    """
    found = (lever.name for lever, setting in lookup(plan) if lever.shares_cpus(setting))
    return plan.only(frozenset(found))


def provided(plan: Plan, traits: Traits) -> Traits:
    """Return the traits that a script has under a plan, whose levers are known to be installed."""
    for name, setting in plan.settings:
        traits = load(name).provides(setting, traits)
    return traits


def cure_of(finding: Finding, context: ScriptContext) -> str | None:
    """Return the lever that cures a finding of a script: the most exact, then the strongest."""

    def offered(lever: Lever[Any]) -> tuple[Any, ...]:
        settings = lever.settings(context)
        return lever.easing(settings) if finding.name == CONTENDED else settings

    found = [it for it in discover().values() if it.may_cure(finding) and offered(it)]
    best = min(found, key=lambda it: (it.effect.severity_index, -it.gain_ratio), default=None)
    return best.name if best else None


def _wanted(lever: Lever[Any], setting: Setting) -> str:
    """Say what to give a lever in place of a setting that it does not take; empty where it does."""
    if type(setting) is lever.kind:
        return lever.validate(setting)
    words = lever.validate(str(setting)) if lever.kind is str else ""
    return words or _KINDS[lever.kind]


def by_hand(lever: Lever[Any], setting: Setting, traits: Traits) -> str:
    """Return what a user would write by hand for a setting, in terms of this script."""
    name, lines = traits.optimizer.name, lever.snippet(setting)
    return lines if name is None else lines.replace(OPTIMIZER, f"torch.optim.{name}")


def check_plan(plan: Plan) -> None:
    """Check that the levers of a hand-written plan exist and accept their settings.

    Raises:
        PlanError: one is not installed here, or does not accept its setting.
    """
    for lever, setting in lookup(plan):
        if wanted := _wanted(lever, setting):
            raise PlanError(
                f"The lever {lever.name} does not take {shown(setting)}.",
                remedy=f"Give it {wanted}, or false to leave it alone.",
            )
