"""Every exception that a user may see, as one tree; two others end a part of a tuning.

HastenError
+-- UsageError
|   +-- PlanError
+-- ScriptFailed
|   +-- NeverTrains
|   +-- TooFewSteps
+-- IsolationFailed
+-- ChildLost
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST_SHOWN = 240
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Warning|Exit|Interrupt): \S")


class HastenError(Exception):
    """Base class: what went wrong, and what the reader can do about it.

    Attributes:
        problem: one sentence, with the offending value in it.
        remedy: one sentence in the imperative.
        output: the script's own words, where they say more.
        exit_code: what the command line ends with.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, *, remedy: str, output: str = "") -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.output = output

    @property
    def last_words(self) -> str:
        """The problem, with the line in which the script's traceback ends, where it has one."""
        if "Traceback (most recent call last)" not in self.output:
            return self.problem
        raised = [line for line in self.output.splitlines() if _RAISED.match(line)]
        return " ".join([self.problem, *raised[-1:]])


class UsageError(HastenError):
    """The command line or a file that the user gave cannot be used."""

    exit_code = 2


class PlanError(UsageError):
    """A plan is broken, names an unknown lever, or an impossible setting."""


class ScriptFailed(HastenError):
    """The user's script itself failed; its own words are in `output`."""

    exit_code = 3


class NeverTrains(ScriptFailed):
    """No optimizer step and no backward pass was seen."""


class TooFewSteps(ScriptFailed):
    """The script ended before enough steps could be measured: after `step_count`."""

    def __init__(self, problem: str, *, remedy: str, step_count: int, output: str = "") -> None:
        super().__init__(problem, remedy=remedy, output=output)
        self.step_count = step_count


class IsolationFailed(HastenError):
    """A trial could not be kept away from the user's files."""

    exit_code = 4


class ChildLost(HastenError):
    """A child process broke the protocol or vanished."""


class LeverStopped(RuntimeError):
    """A lever leaves the script of a trial as it is; the message says why."""


class OutOfTime(Exception):
    """A deadline has passed: what was begun is ended, and what is known by then is kept."""


class Unprovable(Exception):
    """The script as it is fails where its steps are recorded: no plan can be held against it."""


TRIAL_FAILURES = (ScriptFailed, IsolationFailed, ChildLost)
"""What a trial under a plan may end with, while the script as it is goes on."""


def choice(name: str, known: Iterable[str]) -> str:
    """Return the remedy for a name that is not known: the one that was meant, or all there are.

    >>> choice("channels-last", ["autocast", "channels_last"])
    'Did you mean channels_last?'
    >>> choice("warp", ["autocast", "channels_last"])
    'Choose from: autocast, channels_last.'
    """
    from difflib import get_close_matches

    plain = {own.replace("-", "_"): own for own in known}
    close = get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=0.75)
    return (
        f"Did you mean {plain[close[0]]}?"
        if close
        else f"Choose from: {', '.join(plain.values())}."
    )


def shown(text: object) -> str:
    r"""Return what stands in a file of the user's for one sentence of ours: short, on one line.

    >>> print(shown("threads\nhasten: all is well"))
    threads\nhasten: all is well
    """
    said = str(text)
    cut = said if len(said) <= _LONGEST_SHOWN else f"{said[:_LONGEST_SHOWN]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
