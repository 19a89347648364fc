"""Scripts that know nothing of ranks: every rank runs the script, and shares the root calls."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any, NoReturn, cast

from hasten.root_calls.ranks.meeting import Meeting
from hasten.root_calls.ranks.replicated import ReplicatedModel
from hasten.root_calls.ranks.roots import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import Training, Undo
    from hasten.rank import Team
    from hasten.root_calls.ranks.messages import RootCall
    from hasten.root_calls.ranks.share import Share

_BEGINNING_COUNT = 100
_NONE = "the script has called no model in this process"
_SMALL = "the calls of its models were too few, or had fewer samples than there are ranks"


def share_batches(
    training: Training,
    team: Team,
    tell: Callable[[str], None],
    at_last: Callable[[Callable[[], None]], None],
) -> Undo:
    """Share the root calls of this process with the other ranks; return how to stop.

    Args:
        training: what levers are offered.
        team: the ranks.
        tell: takes what the user has to know.
        at_last: takes what is to be called after all else at the exit of this process.

    Raises:
        Parted: they do not come, or have another torch, processor or number of threads.
    """
    meeting = Meeting(team, tell)
    meeting.meet("begin", _surroundings())

    def start(root_call: RootCall, share: Share) -> ReplicatedModel:
        return ReplicatedModel(root_call, share, meeting)

    def leave() -> None:
        meeting.leave()
        if os.getpid() == owner and not ranks.has_shared:
            ours.tell(f"hasten: no batch was shared: {_SMALL if ours.call_count else _NONE}\n")

    owner = os.getpid()
    ours = _Shared(training, tell if not team.rank else lambda said: None, meeting.part)
    ranks = Ranks(cast("Training", ours), team.rank_count, lambda: None, start=start)
    atexit.register(leave)
    at_last(meeting.end)
    return ranks.attach()


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

    def __init__(
        self, training: Training, tell: Callable[[str], None], part: Callable[[], NoReturn]
    ) -> None:
        self.on_function, self.compiled = training.on_function, training.compiled
        self._training = training
        self._part = part
        self.tell = tell
        self.call_count = 0

    def on_call(self, around: Callable[..., Any], *, innermost: int = 0) -> Undo:
        """As `Training`; the calls are counted."""

        def counted(*asked: Any) -> Any:
            self.call_count += 1
            return around(*asked)

        return self._training.on_call(counted, innermost=innermost)

    def excuse(self, error: Exception) -> None:
        """Say why nothing is shared; at the beginning, end the run, which would be in vain."""
        if self.call_count <= _BEGINNING_COUNT:
            self.tell(f"hasten: cannot share batches among the ranks: {error}\n")
            self._part()
        self.tell(f"hasten: from here on every rank computes whole batches: {error}\n")
