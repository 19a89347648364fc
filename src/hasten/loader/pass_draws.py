"""The random numbers that the batches of one pass draw, whoever makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader import random_states
from hasten.loader.indices import sample_count
from hasten.loader.workers.tasks import Draws

if TYPE_CHECKING:
    from hasten.loader.own_workers import OwnWorkers
    from hasten.loader.random_states import States
    from hasten.loader.worker_plan import WorkerPlan
    from hasten.loader.workers.draw_predictor import DrawPredictor
    from hasten.loader.workers.streams import Streams


class PassDraws:
    """Where the random numbers of one pass stand.

    Args:
        key: tells its random streams from those of other passes.
        seed: its base seed.

    Attributes:
        key: as given.
        seed: as given.
        handed: the states after the batch that was delivered last, where the main process hands
            its own over.
        resumes: the states with which streams of the script's workers would go on elsewhere.
        streams: the script's workers, where the main process plays them.
    """

    def __init__(self, key: int, seed: int) -> None:
        self.key = key
        self.seed = seed
        self.handed: States | None = None
        self.resumes: dict[int, States] = {}
        self.streams: Streams | None = None
        self._starts: dict[int, States] = {}
        self._chain: tuple[States, int] | None = None

    def restart_chain(self) -> None:
        """Read the states of the main process again, before the next batch that is asked for."""
        self._chain = None

    def hand_over(self) -> None:
        """Let the streams of the script's workers go on with others, where they are known."""
        if self.streams is not None:
            self.resumes.update(self.streams.starts)
        self._starts, self.resumes, self.streams = self.resumes, {}, None

    def play(self, own: OwnWorkers, loader: Any) -> None:
        """Let the main process play the script's workers."""
        self.streams = own.streams_here(loader, key=self.key, seed=self.seed, starts=self._starts)

    def before(
        self, worker_plan: WorkerPlan, number: int, indices: Any, forecast: DrawPredictor | None
    ) -> States | None:
        """Return the states before a batch of workers; None where they go on by themselves.

        Args:
            worker_plan: who makes it.
            number: of the batch.
            indices: of its samples.
            forecast: how many numbers each of these draws, if known.
        """
        if worker_plan.draws is Draws.STREAM:
            return self._starts.pop(number % worker_plan.logical_count, None)
        if worker_plan.draws is Draws.NONE:
            return None
        if self._chain is None:
            states = random_states.read()
        elif forecast is None:  # the one helper goes on itself
            return None
        else:
            states = forecast.skip(*self._chain)
        self._chain = states, sample_count(indices)
        return states
