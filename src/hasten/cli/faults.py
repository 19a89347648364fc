"""Whose fault a failure is: the script's, by the last line it printed, or hasten's own."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from typing import TYPE_CHECKING

from hasten.errors import HastenError, ScriptFailed, UsageError, reason_of, shown
from hasten.workload import working_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import typer

INTERNAL = 1
DEBUG_KEY = "HASTEN_DEBUG"
_SHORTAGES = {
    errno.ENOSPC: "Free some space there",
    errno.EDQUOT: "Free some of your space there",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.ENFILE: "Wait until other programs have closed some files",
    errno.ENOMEM: "Free some memory",
    errno.EAGAIN: "End some processes or raise their limit (ulimit -u)",
}
_NO_IPYTHON = "hasten: A notebook needs IPython."
_NO_TORCH = re.compile(r"ModuleNotFoundError: No module named 'torch(\.[\w.]+)?'")


def explained(error: Exception, context: typer.Context) -> HastenError | None:
    """Return the error of a command, or a clearer one if its script's output says more.

    None if nobody has foreseen it.
    """
    if not isinstance(error, HastenError):
        return _refused(error)
    if not isinstance(error, ScriptFailed) or not error.output:
        return error
    last = error.output.strip().rpartition("\n")[2]
    if _NO_IPYTHON in error.output:
        remedy = "Run: pip install ipython."
        return UsageError("A notebook needs IPython, which is not installed.", remedy=remedy)
    if _NO_TORCH.match(last):
        remedy = "Install torch there, or run hasten from the environment that has it."
        problem = "The Python that runs the script has no torch."
        return UsageError(problem, remedy=remedy, output=error.output)
    options = {option for parameter in context.command.params for option in parameter.opts}
    return _behind(error, last, context.params.get("script") or (), options)


def _refused(error: Exception) -> HastenError | None:
    """Return what the system refused us, if it was that: room, files, or its working folder."""
    if not isinstance(error, OSError):
        return None
    if isinstance(error, FileNotFoundError):
        try:
            working_folder()
        except UsageError as gone:
            return gone
    remedy = _SHORTAGES.get(error.errno or 0)
    place = f" ({shown(error.filename)})" if error.filename else ""
    problem = f"The system ran short: {reason_of(error)}{place}."
    return None if remedy is None else HastenError(problem, remedy=f"{remedy}, and try again.")


def _behind(
    error: ScriptFailed, last: str, words: Sequence[str], options: Collection[str]
) -> HastenError:
    """Say that one of our options was passed to the script, if that may be the reason."""
    given = [word.partition("=")[0] for word in words[1:]]
    ours = next((word for word in given if word in options), "")
    if not ours:
        return error
    said = f"{ours} comes after the script, so the script got it"
    if said in error.remedy:
        return error
    # Usage lines and tracebacks name every option of the script; the last line says what is wrong.
    if not re.search(rf"(?<![\w-]){re.escape(ours)}(?![\w-])", last):
        remedy = f"{error.remedy} Note that {said}."
        return ScriptFailed(error.problem, remedy=remedy, output=error.output)
    remedy = f"Put {ours} before the script if it is meant for hasten."
    return UsageError(f"{said}, and it failed.", remedy=remedy, output=error.output)


def noted(error: Exception) -> tuple[str, str]:
    """Save the traceback of an unexpected error; return the problem and its remedy.

    It is also printed if it cannot be saved, or if HASTEN_DEBUG is set.
    """
    from hasten.report import archive
    from hasten.report.files import write_atomically

    text = "".join(traceback.format_exception(error))
    told = " ".join(traceback.format_exception_only(error)[-1].split())
    problem = f"This is a bug in hasten: {told}"
    try:
        place = archive.folder().parent / "traceback.txt"
        write_atomically(place, text)
    except (HastenError, OSError):
        place = None
    if place is None or os.environ.get(DEBUG_KEY):
        sys.stderr.write(text)
    where = "above" if place is None else f"in {place}"
    return problem, f"Report it with the traceback {where}."
