"""Every exception that a user may see, as one tree; the others end part of a tuning.

HastenError
+-- UsageError
|   +-- PlanError
+-- ScriptFailed
|   +-- LeverRefused
|   +-- NoRoom
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
        remedy: one sentence in the imperative; lines about what is known may follow.
        output: the script's own output, where it says more.
        exit_code: the exit code of the command line.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, *, remedy: str, output: str = "") -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.output = output

    @property
    def last_words(self) -> str:
        """The problem, followed by the last line of the script's traceback if there is one."""
        if "Traceback (most recent call last)" not in self.output:
            return self.problem
        raised = [line for line in self.output.splitlines() if _RAISED.match(line)]
        return " ".join([self.problem, *raised[-1:]])


class UsageError(HastenError):
    """The command line, or a file that the user passed, cannot be used."""

    exit_code = 2


class PlanError(UsageError):
    """A plan is broken, or names an unknown lever or an invalid setting."""


class ScriptFailed(HastenError):
    """The user's script itself failed; what it printed is in `output`."""

    exit_code = 3


class LeverRefused(ScriptFailed):
    """A lever cannot do here what it was set to, such as train on a device that is not there."""

    exit_code = 2  # of all that tune may end with, only what was set by hand


class NoRoom(ScriptFailed):
    """What the script needs, another process has: memory of an accelerator, or a port."""


class NeverTrains(ScriptFailed):
    """No optimizer step and no backward pass was seen."""


class TooFewSteps(ScriptFailed):
    """The script ended after `step_count` steps, too few to measure."""

    def __init__(self, problem: str, *, remedy: str, step_count: int, output: str = "") -> None:
        super().__init__(problem, remedy=remedy, output=output)
        self.step_count = step_count


class IsolationFailed(HastenError):
    """A trial could not be kept away from the user's files."""

    exit_code = 4


class ChildLost(HastenError):
    """A child process broke the protocol or vanished."""


class LeverStopped(RuntimeError):
    """A lever left the script of a trial unchanged; the message says why."""


class OutOfTime(Exception):
    """A deadline has passed: work in progress is stopped, and the results so far are kept."""


class Unprovable(Exception):
    """The unmodified script fails while its steps are recorded, so no plan can be proved."""


TRIAL_FAILURES = (ScriptFailed, IsolationFailed, ChildLost)
"""The errors that a trial under a plan may end with although the unmodified script works."""


def reason_of(error: OSError) -> str:
    """Return what the kernel refused, as part of a sentence."""
    return (error.strerror or str(error)).lower()


def choice(name: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the closest known name, or all of them.

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
    r"""Return text from a user's file, shortened to one line, for use in a message of ours.

    >>> print(shown("threads\nhasten: all is well"))
    threads\nhasten: all is well
    """
    said = str(text)
    cut = said if len(said) <= _LONGEST_SHOWN else f"{said[:_LONGEST_SHOWN]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
