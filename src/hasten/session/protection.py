"""Start no trials where the kernel cannot protect the user's files, unless permitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.errors import IsolationFailed, UsageError

if TYPE_CHECKING:
    from hasten.records import Workload
    from hasten.session.options import Options, Watcher

_LACK = "Neither the overlay nor Landlock works here"


def protect(workload: Workload, options: Options, view: Watcher) -> tuple[str, ...]:
    """Make sure that trials cannot change the user's files, or that the user permits it.

    Returns:
        Notes for the report.

    Raises:
        IsolationFailed: they could change files, and the user has not permitted it.
    """
    from hasten.trials.process import Isolation, best_isolation

    if best_isolation(workload.cwd) is not Isolation.PYTHON:
        return ()
    if not options.unprotected:
        raise IsolationFailed(
            f"{_LACK}: {workload.argv[0]} could change your files in every trial.",
            remedy="Permit user namespaces, or work on a copy of the folder and add --no-sandbox.",
        )
    note = (
        f"{_LACK}: Python's own writes are redirected, those of native libraries and of other "
        "programs reach the real files."
    )
    view.note(note)
    return (note,)


def refuse_ranks(count: int) -> None:
    """Raise where a command trains in several processes.

    Raises:
        UsageError: there are several.
    """
    if count > 1:
        raise UsageError(
            f"The command trains in {count} processes, and a plan is found for one.",
            remedy="Tune it with one process; `hasten profile` measures one of them as it is.",
        )
