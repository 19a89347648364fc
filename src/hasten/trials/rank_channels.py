"""One conversation with all ranks of a training on this machine.

Ranks wait for one another within each step, so they are told the same at the same step boundary,
and their answers become one: a step takes as long as the slowest rank needs.
"""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from hasten import protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.protocol import Command, Message
    from hasten.trials.channel import Channel

_OF_ONE = (protocol.ReadTraits, protocol.ReadCosts)
"""What is asked of the first rank alone: it takes no step."""
_ADD_UP = ("cpu_s", "faults_count", "peak_rss_bytes")
_LEAST_S = 1e-3


class RankChannels:
    """As one `Channel`, but with one for each rank, in their order."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = channels
        self._asked: Sequence[Channel] = ()
        self._answers: list[Message] = []

    @property
    def pid(self) -> int | None:
        """The process of the first rank."""
        return self._channels[0].pid

    def send(self, command: Command) -> None:
        """Send one command to each rank that it concerns.

        Raises:
            ChildLost: a rank is gone.
        """
        self._asked = self._channels[:1] if isinstance(command, _OF_ONE) else self._channels
        self._answers = []
        if len(self._channels) > 1 and isinstance(command, protocol.Examine):
            # Each rank would stop by its own clock.
            command = replace(command, least_count=command.step_count)
        for channel in self._asked:
            channel.send(command)

    def hear(self, timeout_s: float) -> Message | None:
        """Return what the ranks answer; None where not all have answered in time.

        A later call goes on where this one stopped.

        Raises:
            ChildLost: a rank is gone.
        """
        until = time.monotonic() + timeout_s
        while len(self._answers) < len(self._asked):
            left_s = inf if timeout_s == inf else max(_LEAST_S, until - time.monotonic())
            answer = self._asked[len(self._answers)].hear(left_s)
            if answer is None:
                return None
            self._answers.append(answer)
        return together(self._answers)

    def close(self) -> None:
        """End all conversations."""
        for channel in self._channels:
            channel.close()


def together(answers: Sequence[Message]) -> Message:
    """Return the answers of all ranks as one.

    A rank that has ended, or refuses, speaks for all.
    """
    first = answers[0]
    for answer in answers:
        if type(answer) is not type(first):
            others = (protocol.Ended, protocol.CommandRefused)
            return next((a for a in answers if isinstance(a, others)), answer)
    if len(answers) > 1 and isinstance(first, protocol.TurnsRun):
        runs = [answer for answer in answers if isinstance(answer, protocol.TurnsRun)]
        usage = _sum([run.usage for run in runs])
        return protocol.TurnsRun(turns=_slowest([run.turns for run in runs]), usage=usage)
    if len(answers) > 1 and isinstance(first, protocol.Examined):
        turns = [answer.turns for answer in answers if isinstance(answer, protocol.Examined)]
        return protocol.Examined(found=first.found, turns=_slowest(turns))
    return first


def _sum(usages: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Add up what the ranks use; what a rank says of its accelerator is that of the first."""
    whole: dict[str, float] = {**usages[0]}
    for name in _ADD_UP:
        whole[name] = sum(usage[name] for usage in usages)
    return whole


def _slowest(ranks: Sequence[list[list[list[int]]]]) -> list[list[list[int]]]:
    """Return for each turn the steps of the rank that took longest, with the samples of all.

    >>> one, other = [[[32, 5, 1], [32, 5, 1]]], [[[16, 4, 4], [16, 4, 1]]]
    >>> _slowest([one, other])
    [[[48, 4, 4], [48, 4, 1]]]
    """
    return [_slowest_turn(turns) for turns in zip(*ranks, strict=True)]


def _slowest_turn(ranks: Sequence[list[list[int]]]) -> list[list[int]]:
    slowest = max(ranks, key=lambda steps: sum(sum(phases_ns) for _, *phases_ns in steps))
    counts: Any = [sum(step[0] for step in steps) for steps in zip(*ranks, strict=True)]
    return [[count, *phases_ns] for count, (_, *phases_ns) in zip(counts, slowest, strict=True)]
