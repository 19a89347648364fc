"""The random numbers that the batches of one pass draw, whoever makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader import random_states
from hasten.loader.workers.tasks import Draws

if TYPE_CHECKING:
    from hasten.loader.own_workers import OwnWorkers
    from hasten.loader.random_states import States
    from hasten.loader.worker_plan import WorkerPlan
    from hasten.loader.workers.streams import Streams


class PassDraws:
    """The state of the random numbers of one pass.

    Args:
        key: sets its random streams apart from those of other passes.
        seed: its base seed.

    Attributes:
        handed: the states after the last batch delivered, where the main process hands over
            its own.
        resumes: the states from which the script's workers' streams would continue elsewhere.
        streams: the streams of the script's workers, if the main process plays them.
    """

    def __init__(self, key: int, seed: int) -> None:
        self.key = key
        self.seed = seed
        self.handed: States | None = None
        self.resumes: dict[int, States] = {}
        self.streams: Streams | None = None
        self._starts: dict[int, States] = {}
        self._chains = False

    def restart_chain(self) -> None:
        """Have the main process's states read again before the next batch is requested."""
        self._chains = False

    def hand_over(self) -> None:
        """Let others continue the streams of the script's workers, where their states are known."""
        if self.streams is not None:
            self.resumes.update(self.streams.starts)
        self._starts, self.resumes, self.streams = self.resumes, {}, None

    def play(self, own: OwnWorkers, loader: Any) -> None:
        """Let the main process play the script's workers."""
        self.streams = own.streams_here(loader, key=self.key, seed=self.seed, starts=self._starts)

    def before(self, worker_plan: WorkerPlan, number: int) -> States | None:
        """Return the states before a workers' batch; None if they continue from their own."""
        if worker_plan.draws is Draws.STREAM:
            return self._starts.pop(number % worker_plan.logical_count, None)
        if worker_plan.draws is Draws.NONE or self._chains:
            return None  # the only worker of a chain continues from its own states
        self._chains = True
        return random_states.read()
