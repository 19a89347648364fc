"""Start no trials where the kernel cannot protect the user's files, unless permitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.errors import IsolationFailed, UsageError

if TYPE_CHECKING:
    from hasten.records import Traits, Workload
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


def refuse_other_machines(traits: Traits) -> None:
    """Raise where a command trains on several machines.

    Raises:
        UsageError: it does.
    """
    if traits.rank_count > traits.local_rank_count:
        raise UsageError(
            f"The command trains in {traits.rank_count} processes, {traits.local_rank_count} of "
            "them on this machine, and a plan is found on one machine.",
            remedy="Tune it with the ranks of one machine.",
        )
