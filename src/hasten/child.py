"""The child's wiring: wait for torch, apply the plan's levers, then answer the parent.

Runs inside the user's process, so it needs only the standard library, draws no random number,
and writes to stderr only what the user must know.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from hasten import protocol
from hasten.after_import import after_import
from hasten.lever import discover, lookup
from hasten.protocol import Mode, Order
from hasten.records import Plan, Scope
from hasten.root_calls import late_compiler
from hasten.trials import own_port, stack_dump, tracebacks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.lever import Training
    from hasten.protocol import Answer, Command


_TRACKERS = {"wandb": ("", "init", "disabled"), "neptune": ("Run", "__init__", "debug")}
"""The class and the function by which each begins a run, and the mode that records nothing."""
_CAREFUL = ("on_optimizer", "on_update", "on_root", "on_training")
_ON_ITS_OWN = protocol.RunTurns(turns=(protocol.Turn(0, 0, protocol.ENDLESS_COUNT, False),))
"""What a process does that the parent does not follow."""
_AT_LAST: list[Callable[[], None]] = []


class LeverOmissions:
    """What the child offers to one lever, where its failure must not become the script's.

    Levers also act later, inside the script's own calls: an action that raises there is skipped.

    Attributes:
        itself: the training, which all levers share.
        excuse: as in `Training`; the script goes on without the lever.
    """

    def __init__(self, training: Any, excuse: Callable[[Exception], None]) -> None:
        self.itself = training
        self.excuse = excuse

    def __getattr__(self, name: str) -> Any:
        """Return what the training offers; where an action of `_CAREFUL` raises, it is skipped.

        The optimizer or the module then stays as it is, and nothing else is set.
        """
        offered = getattr(self.itself, name)
        return (lambda act: offered(self._excused(act))) if name in _CAREFUL else offered

    def _excused(self, act: Callable[..., Any], instead: Any = None) -> Callable[..., Any]:
        """Return `act`, which answers `instead` where it raises."""

        def careful(*args: Any, **kwargs: Any) -> Any:
            try:
                return act(*args, **kwargs)
            except Exception as error:
                self.excuse(error)
                return instead

        return careful

    def on_options(self, choose: Callable[[Any], Any]) -> Any:
        """As `Training`; an optimizer for which `choose` raises keeps the script's options.

        Once every optimizer keeps them, the reason of the last one is told.
        """
        from hasten.instrument.object_table import Table

        careful = self._excused(choose, instead={})
        optimizers, refused, is_taken = self.itself.optimizers.known, Table(), False

        def told(optimizer: Any) -> Any:
            nonlocal is_taken
            found = careful(optimizer)
            if not isinstance(found, str):
                is_taken = True
            elif not is_taken:
                refused[optimizer] = None
                if len(refused) == len(optimizers):
                    self.excuse(RuntimeError(found))
            return found

        return self.itself.on_options(told)

    def on_phase(self, enter: Callable[[Any], Any]) -> Any:
        """As `Training`; where `enter` or what it returned raises, the phase goes on as it is."""
        entered = self._excused(enter)

        def careful(phase: Any) -> Any:
            leave = entered(phase)
            return None if leave is None else self._excused(leave)

        return self.itself.on_phase(careful)


class AppliedLevers:
    """The levers that are applied in this process, and how to undo each.

    Args:
        excuse: takes the lever's name, its setting and what it raised later, inside the script's
            calls; None lets it reach the script, whose failure then decides on the lever.
    """

    def __init__(
        self, training: Training, excuse: Callable[[str, Any, Exception], None] | None = None
    ) -> None:
        self._training = training
        self._excuse = excuse
        self._undo: dict[str, tuple[Any, Callable[[], None]]] = {}

    def switch(self, settings: Mapping[str, Any]) -> None:
        """Switch to `settings`: undo what differs, apply what is new."""
        for name, (setting, undo) in list(self._undo.items()):
            if name not in settings or settings[name] != setting:
                undo()
                del self._undo[name]
        for lever, setting in lookup(Plan(tuple(sorted(settings.items())))):
            if lever.name not in self._undo:
                training = self._offer(lever.name, setting)
                self._undo[lever.name] = (setting, lever.apply(training, setting))

    def undo(self) -> tuple[list[str], list[str]]:
        """Undo what a running process can; return these levers and the rest, with settings."""
        settings = {name: setting for name, (setting, _) in self._undo.items()}
        done: list[str] = []
        stay: list[str] = []
        for lever, setting in lookup(Plan(tuple(sorted(settings.items())))):
            said = f"{lever.name}={setting}"
            if lever.scope is Scope.LAUNCH:
                stay.append(said)
                continue
            try:
                self._undo.pop(lever.name)[1]()
                done.append(said)
            except Exception:
                stay.append(said)
        return done, stay

    def _offer(self, name: str, setting: Any) -> Any:
        if self._excuse is None:
            return self._training
        return LeverOmissions(self._training, partial(self._excuse, name, setting))


def prepare(text: str) -> None:
    """Begin, before the user's script; `text` is a `protocol.Order`."""
    order = Order.read(text)
    is_aside = order.mode is not Mode.RUN or bool(order.team and order.team["rank"])
    if is_aside:
        _stay_inside()
    if order.mark:
        with contextlib.suppress(OSError), open(order.mark, "w"):
            pass
    tracebacks.trim_uncaught()
    if scratch := os.environ.get("HASTEN_REDIRECT"):
        _redirect(scratch)
    if order.mode is not Mode.RUN:
        _pin(order.seed)  # two trials compute the same
        after_import("torch", own_port.replace_ports)
        after_import(own_port.LAUNCHER, own_port.replace_launches)
    if order.team is not None:
        _become_a_rank(order, order.team)
    if is_aside:
        after_import("mlflow", _stay_local)
        for tracker in _TRACKERS:
            after_import(tracker, partial(_switch_off, tracker))
        _refuse_questions()
    late_compiler.install()
    attach = {Mode.RUN: _run, Mode.TRIAL: _trial, Mode.VERIFY: _verify}
    after_import("torch", lambda: attach[order.mode](order))


def _stay_inside() -> None:
    """End this process if it is outside the trial, where nothing contains its writes."""
    from hasten.errors import IsolationFailed
    from hasten.trials import process_ancestry

    sealed = os.environ.get(process_ancestry.SEAL_KEY)
    if sealed and process_ancestry.is_outside(sealed):
        os.write(2, f"{process_ancestry.OUTSIDE}\n".encode())
        os._exit(IsolationFailed.exit_code)  # an exception in `site` would look like a Python bug


def _stay_local() -> None:
    """Let MLflow keep to the folder that its variables name, wherever the script wants to log."""
    for module in ("mlflow", "mlflow.tracking"):
        for name in ("set_tracking_uri", "set_registry_uri"):
            if module in sys.modules:
                setattr(sys.modules[module], name, lambda *args, **kwargs: None)


def _switch_off(tracker: str) -> None:
    """Let a tracker begin no run of its own, whatever mode the script asks it for."""
    kind, name, mode = _TRACKERS[tracker]
    owner = getattr(sys.modules[tracker], kind, None) if kind else sys.modules[tracker]
    begin = getattr(owner, name, None)
    if begin is not None:

        @wraps(begin)
        def begin_off(*args: Any, **kwargs: Any) -> Any:
            return begin(*args, **{**kwargs, "mode": mode})

        setattr(owner, name, begin_off)


def _redirect(scratch: str) -> None:
    """Redirect writes away from the user's files where the kernel cannot."""
    from hasten.trials.isolation import redirect

    redirect.install(scratch)
    after_import("torch", redirect.after_torch)


def _pin(seed: int) -> None:
    from hasten.verify import seeding

    seeding.pin_python(seed)
    after_import("numpy", lambda: seeding.pin_numpy(seed))
    after_import("torch", lambda: seeding.pin_torch(seed))


def _become_a_rank(order: Order, team: Mapping[str, Any]) -> None:
    """Draw what the other ranks draw, and leave to the first what a signal to all of them means."""
    _agree(team["seed"])
    atexit.register(_act_last)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if team["rank"] else ():
        signal.signal(number, signal.SIG_IGN)
    os.environ["HASTEN_CHILD"] = replace(order, team=None).write()  # what it starts is no rank


def _agree(seed: int) -> None:
    """Let all ranks draw the same where the script gives no seed."""
    from hasten.verify import seeding

    draw = seeding.agreed(seed)
    seeding.pin_system(draw)
    seeding.pin_python(draw(64), draw)
    after_import("numpy", lambda: seeding.pin_numpy(draw(32), draw))
    after_import("torch", lambda: seeding.pin_torch(draw(63), draw))


def _run(order: Order) -> None:
    """Apply a plan in a real run; what breaks is left out and reported, and the script goes on."""
    undo = contextlib.ExitStack()
    try:
        _steer(order, undo)
    except Exception as error:  # this torch is not as we know it: the script runs without us
        with contextlib.suppress(Exception):
            undo.close()
        _leave_out_the_plan(_first_line(error))
        if order.team is not None:  # each rank would train by itself
            raise SystemExit(1) from None


def _share_batches(training: Training, team: Mapping[str, Any] | None) -> Callable[[], None]:
    """Share batches with the other ranks, if there are any; return how to stop."""
    if team is None:
        return lambda: None
    from hasten.rank import Team
    from hasten.root_calls.ranks.shared_batches import share_batches

    place = Team(team["rank"], team["count"], team["address"], team["port"])
    return share_batches(training, place, _tell, _AT_LAST.append)


def _act_last() -> None:
    """Do what comes after all that the script does at its exit."""
    for act in _AT_LAST:
        act()


def _leave_out_the_plan(why: str) -> None:
    os.environ.pop("HASTEN_CHILD", None)  # so that it is reported once
    _tell(f"hasten: left out the plan: {why}\n")


def _steer(order: Order, undo: contextlib.ExitStack) -> None:
    """Apply the levers of a plan; one that breaks is left out and reported.

    `undo` takes what puts everything back as it was.
    """
    from hasten.instrument import Watch
    from hasten.instrument.live import when_it_learns
    from hasten.trials.child_environment import place

    if order.place is not None and order.place != place():
        _leave_out_the_plan("this is another machine, or another job")
        return
    said: set[str] = set()

    def leave_out(name: str, setting: Any, error: Exception) -> None:
        if name not in said:
            said.add(name)
            _tell(f"hasten: left out {name}={setting}: {_first_line(error)}\n")

    watch = Watch(measuring=False)
    undo.callback(watch.detach)
    watch.live.assumed = frozenset(order.assumed)
    applied = AppliedLevers(watch.live, leave_out)
    undo.callback(applied.undo)
    settings: dict[str, Any] = {}
    for name, setting in order.plan.items():
        try:
            applied.switch({**settings, name: setting})
            settings[name] = setting
        except Exception as error:
            leave_out(name, setting, error)
    undo.callback(_share_batches(watch.live, order.team))
    loader: Any = sys.modules.get("hasten.loader")  # not there where levers leave loaders alone
    if loader is not None and (engine := loader.installed(watch.live)) is not None:
        engine.notices.tell = lambda why: _tell(f"hasten: {why}\n")
    atexit.register(_tell_at_the_end, watch.live, os.getpid())
    undo.callback(atexit.unregister, _tell_at_the_end)
    if order.envelope is None:
        watch.install()
    else:
        _guard(watch, applied, order.envelope)
    # The plan and its losses are of the process that trains, not of the programs that it starts.
    # One that has only called a model may still start the ranks that train.
    rest = replace(order, plan={}, envelope=None, team=None).write()
    when_it_learns(watch.live, partial(os.environ.__setitem__, "HASTEN_CHILD", rest))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _tell(said: str) -> None:
    """Tell the user; what the script has put in place of `sys.stderr`, such as a log, is spared."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
        sys.__stderr__.write(said)  # type: ignore[union-attr]


def _guard(watch: Any, applied: AppliedLevers, envelope: Mapping[str, Any]) -> None:
    """Watch the losses of a real run; undo the levers if they go astray."""
    from hasten.instrument import loss_guard
    from hasten.rank import own_rank
    from hasten.records import LossEnvelope

    watch.install()  # Dynamo leaves alone what is imported by now

    def astray(step_count: int, wrong: str) -> None:
        # One rank alone must not compute otherwise than the others.
        done, stay = applied.undo() if own_rank().total_count == 1 else ([], [])
        _tell(loss_guard.astray_said(step_count, wrong, done, stay))

    def slow(step_s: float, usual_s: float) -> None:
        _tell(loss_guard.slow_said(step_s, usual_s))

    known: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in envelope.items()}
    loss_guard.Guard(watch, LossEnvelope(**known), astray=astray, slow=slow)


def _tell_at_the_end(training: Any, own_pid: int) -> None:
    """Say at the end of a real run what was left out."""
    if os.getpid() != own_pid:
        return
    updates = training.updates
    with contextlib.suppress(Exception):  # the device may be lost
        if updates.useless_count:
            _tell(
                f"hasten: {updates.useless_count} of {updates.step_count} steps of the optimizer "
                "changed nothing, since gradients overflowed in float16\n"
            )


def _trial(order: Order) -> None:
    """Attach to a trial: steps are timed, and the parent decides what runs."""
    from hasten.errors import ChildLost
    from hasten.instrument import Watch
    from hasten.instrument.step_scheduler import StepScheduler
    from hasten.loader import engine_for
    from hasten.root_calls.ranks.refusals import differentiates_twice, unshareable
    from hasten.trials.channel import Channel

    try:
        channel = Channel.connect(order.socket)
        stack_dump.listen(order.socket)
        channel.send(protocol.Attached())
    except (OSError, ChildLost):  # the process that trains has been found; this is a helper of it
        return
    own_pid = os.getpid()

    def talk(answer: Answer) -> Command:
        return _ON_ITS_OWN if os.getpid() != own_pid else _talk(channel, answer)

    watch = Watch(measuring=True)
    watch.live.trial = True
    watch.live.assumed = frozenset(order.assumed)
    engine = engine_for(watch.live)  # it can take over a pass midway only if it saw the pass begin
    discover()  # a lever may come at any step; its file must be imported before
    applied = AppliedLevers(watch.live)

    turns = StepScheduler(watch, applied.switch, talk)
    # Two children may start at once; if both compute, their spinning threads starve each other.
    watch.live.start.before = turns.wait_for_go
    turns.traits.about_data = engine.proofs.add
    turns.traits.model.why_unshared = lambda root: unshareable(root) or differentiates_twice()
    watch.on_step = _counted(turns.stepped, channel)
    applied.switch(order.plan)
    watch.install()
    _note_forks(os.path.join(os.path.dirname(order.socket), protocol.FORKED))


def _note_forks(file: str) -> None:
    """Make a file once a process that is forked from this one steps an optimizer.

    The seams are no longer in it, for it may be a loader worker, so it is not followed.
    """
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from hasten.instrument.eager import uncompiled
    from hasten.modules import own_hooks

    @uncompiled
    def note(*_: Any) -> None:
        if not os.path.exists(file):
            with contextlib.suppress(OSError), open(file, "w"):
                pass

    def watch() -> None:
        with own_hooks():
            register_optimizer_step_pre_hook(note)

    os.register_at_fork(after_in_child=watch)


def _counted(
    stepped: Callable[[tuple[int, ...], int], None], channel: Any
) -> Callable[[tuple[int, ...], int], None]:
    """Count the steps, and tell the parent at the end: it knows only those that it asked for."""
    from hasten.errors import ChildLost

    own_pid, step_count = os.getpid(), 0

    def stepped_and_counted(phases_ns: tuple[int, ...], sample_count: int) -> None:
        nonlocal step_count
        step_count += 1
        stepped(phases_ns, sample_count)

    def tell() -> None:
        if step_count and os.getpid() == own_pid:
            with contextlib.suppress(ChildLost):
                channel.send(protocol.Ended(step_count=step_count))

    atexit.register(tell)
    return stepped_and_counted


def _verify(order: Order) -> None:
    """Attach to a verification: the first steps are recorded, then the process ends."""
    from hasten.instrument import Watch
    from hasten.instrument.training_health import TrainingHealthMonitor
    from hasten.rank import own_rank
    from hasten.trials.channel import Channel
    from hasten.verify.record import Recorder

    channel = Channel.connect(order.socket)
    own_pid = os.getpid()

    def done(found: dict[str, Any]) -> None:
        if os.getpid() == own_pid:  # not in a fork that runs the exit routines
            rank = own_rank()
            said = found | {"rank": rank.number, "rank_count": rank.local_count}
            _talk(channel, protocol.Recorded(**said, health=health.message))

    watch = Watch(measuring=True)
    watch.live.at_once = True
    watch.live.assumed = frozenset(order.assumed)
    # Before the recorder's hooks, which end the run at the last step.
    health = TrainingHealthMonitor(watch)
    assert order.recording is not None  # noqa: S101  # a verification has one
    Recorder(order.recording, order.folder, watch, done=done)
    AppliedLevers(watch.live).switch(order.plan)
    watch.install()


def _talk(channel: Any, answer: Answer) -> Command:
    from hasten.errors import ChildLost

    try:
        command: Command = channel.ask(answer)
    except ChildLost:
        # The parent follows another process, if it has asked this one for nothing yet.
        if isinstance(answer, (protocol.Ready, protocol.FirstStep)):
            return _ON_ITS_OWN
        # The parent is gone; no exit routine of the script may run now.
        os.kill(os.getpid(), signal.SIGKILL)
        raise
    return command


def _refuse_questions() -> None:
    """Make `input()` raise instead of waiting: nobody answers in a trial."""
    import builtins

    def refuse(prompt: object = "", /) -> str:
        raise EOFError(f"hasten: the script asks for input ({str(prompt)!r}); none in a trial")

    builtins.input = refuse
