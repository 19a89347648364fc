"""The live objects of the script, as levers see them (the protocol `lever.Training`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.errors import LeverStopped
from hasten.instrument.lever_calls import PhaseCallbacks, RootModules, SeamAnswers, Updates, join
from hasten.instrument.object_table import Registry
from hasten.instrument.optimizer_options import OptimizerOptions
from hasten.instrument.stand_ins import StandIns, stand_in_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.records import Phase

    Undo = Callable[[], None]
    Apply = Callable[[Any], Undo | None]


class LiveTraining:
    """What the child offers to levers: optimizers, root modules, their calls and loaders.

    Levers call the methods; the watch asks the parts.

    Attributes:
        seams_wanted: called when a lever may start or stop needing a seam.
        first_pass_s: tells how much longer a first pass over the data takes than later ones, and
            the seconds that the trial spent instead.
    """

    def __init__(self, in_loop: Callable[[], bool] = lambda: True) -> None:
        self.optimizers = Registry()
        self.phases = PhaseCallbacks()
        self.roots = RootModules(self.phases)
        self.answers = SeamAnswers()
        self.start = TrainingStart()
        self.updates = Updates()
        self.seams_wanted: Callable[[], None] = lambda: None
        self.trial = False
        self.paused_s = 0.0
        self.at_once = False
        self.assumed: frozenset[str] = frozenset()
        self.compile_s = 0.0
        self.first_pass_s: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        self.on_options = OptimizerOptions(self.optimizers).act
        self._stand_ins = StandIns(in_loop)

    def on_optimizer(self, apply: Apply) -> Undo:
        """Apply `apply` to each optimizer right before its first step."""
        return self.optimizers.act(apply)

    def on_update(self, judge: Callable[..., Any]) -> Undo:
        """Ask `judge(optimizer, has_closure=...)` before each step of an optimizer."""
        return join(self.updates.judges, judge)

    def on_root(self, apply: Apply) -> Undo:
        """Apply `apply` to each root module right before its next call."""
        return self._sought(self.roots.act(apply))

    def on_call(self, around: Callable[[Any, Any, Any, Any], Any], *, innermost: int = 0) -> Undo:
        """Let `around(module, call, args, kwargs)` make each root call."""
        return self._sought(self.roots.on_call(around, innermost))

    def on_function(self, owner: Any, name: str, answer: Callable[..., Any]) -> Undo:
        """Let `answer(original, *args, **kwargs)` stand in for the function `owner.name`.

        An owner given as the name of a module need not be imported yet, and `name` may be dotted;
        `answer` is then called in every thread.
        """
        if isinstance(owner, str):
            return stand_in_later(owner, name, answer)
        return self._stand_ins.add(owner, name, answer)

    def on_loader(self, make: Callable[[Any, Callable[[], Any]], Any]) -> Undo:
        """Let `make(loader, stock)` build the iterator of each DataLoader."""
        return self._sought(join(self.answers.makers, make))

    def on_next(self, advance: Callable[[Any, Any], Any]) -> Undo:
        """Let `advance(original, iterator)` fetch the next batch of each loader iterator."""
        return self._sought(join(self.answers.advancers, advance))

    def on_transfer(self, convert: Callable[[Any, Any, Any, Any], Any]) -> Undo:
        """Let `convert(original, tensor, args, kwargs)` answer `Tensor.to` and `Tensor.cuda`."""
        return self._sought(join(self.answers.movers, convert))

    def on_phase(self, enter: Callable[[Phase], Undo | None]) -> Undo:
        """Call `enter(phase)` as the loop goes into FORWARD, BACKWARD or OPTIMIZER."""
        return self._sought(join(self.phases.enterers, enter))

    def on_training(self, apply: Callable[[], Undo | None]) -> Undo:
        """Apply `apply` now, and again when training starts, after the script's own settings."""
        return self.start.on_training(apply)

    def compiled(self, spent_s: float) -> None:
        """Note seconds that went into compiling."""
        self.compile_s += spent_s

    def on_first_pass(self, cost_s: Callable[[], tuple[float, float]]) -> None:
        """Ask `cost_s()` what the data of a trial costs once."""
        self.first_pass_s = cost_s

    def excuse(self, error: Exception) -> None:
        """End the trial with what made a lever give up: a trial accepts no excuse."""
        kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
        raise LeverStopped(f"{kind}{error}") from error

    def _sought(self, undo: Undo) -> Undo:
        """Let the seams follow a callback that has just been added, until it is taken out."""
        self.seams_wanted()

        def undo_and_tell() -> None:
            undo()
            self.seams_wanted()

        return undo_and_tell


def when_it_learns(live: LiveTraining, act: Callable[[], None]) -> None:
    """Call `act` at the first backward pass, and before the first step of each optimizer."""
    import torch

    def differentiate(original: Any, *args: Any, **kwargs: Any) -> Any:
        act()
        leave()
        return original(*args, **kwargs)

    live.on_optimizer(lambda optimizer: act())
    leave = live.on_function(torch.autograd, "backward", differentiate)


class TrainingStart:
    """When training starts, and what levers then set again, after the script's own settings."""

    def __init__(self) -> None:
        self.begun = False
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self._settings: list[Callable[[], None]] = []

    def on_training(self, apply: Callable[[], Undo | None]) -> Undo:
        """Apply `apply` now, and again at the start."""
        undo: list[Undo | None] = [apply()]

        def again() -> None:
            undo[0] = apply() or undo[0]

        if not self.begun:
            self._settings.append(again)

        def undo_both() -> None:
            if again in self._settings:
                self._settings.remove(again)
            if undo[0] is not None:
                undo[0]()

        return undo_both

    def begin(self) -> None:
        """Apply again, once, what the script may have overridden meanwhile."""
        if not self.begun:
            self.begun = True
            self.before()
            for again in self._settings:
                again()
            self._settings.clear()
            self.after()
