"""Scripts that know nothing of ranks: every rank runs the script, and shares the root calls."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from hasten.root_calls.ranks.meeting import Meeting, Parted
from hasten.root_calls.ranks.replicated import ReplicatedModel
from hasten.root_calls.ranks.roots import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import Training, Undo
    from hasten.root_calls.ranks.meeting import Team
    from hasten.root_calls.ranks.messages import RootCall
    from hasten.root_calls.ranks.share import Share


def share_batches(training: Training, team: Team, tell: Callable[[str], None]) -> Undo:
    """Share the root calls of this process with the other ranks; return how to stop.

    Raises:
        Parted: they do not come, or have another torch, processor or number of threads.
    """
    meeting = Meeting(team, tell)
    atexit.register(meeting.leave)
    meeting.meet("begin", _surroundings())

    def start(root_call: RootCall, share: Share) -> ReplicatedModel:
        return ReplicatedModel(root_call, share, meeting)

    def nothing() -> None:
        """The script keeps its threads."""

    ours: Any = _Shared(training, tell if not team.rank else lambda said: None)
    return Ranks(ours, team.rank_count, nothing, start=start).attach()


def _surroundings() -> dict[str, Any]:
    """Return what rounding depends on: ranks that round otherwise would drift apart."""
    import torch

    return {
        "releases of torch": str(torch.__version__),
        "processors": torch.backends.cpu.get_cpu_capability(),
        "numbers of threads": torch.get_num_threads(),
    }


class _Shared:
    """What `Ranks` is offered: the training, but that nothing is shared ends a run that is to."""

    trial = False

    def __init__(self, training: Training, tell: Callable[[str], None]) -> None:
        self.on_call, self.on_function = training.on_call, training.on_function
        self.compiled = training.compiled
        self._tell = tell

    def excuse(self, error: Exception) -> None:
        import torch

        if torch.is_grad_enabled():
            self._tell(f"hasten: cannot share batches among ranks: {error}\n")
            raise Parted(1)
        self._tell(f"hasten: every rank evaluates whole batches: {error}\n")
