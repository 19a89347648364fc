"""What this machine cannot keep a trial from, said before the first one starts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from upshift.errors import IsolationFailed
from upshift.records import Entry

if TYPE_CHECKING:
    from upshift.records import Workload
    from upshift.session import Options, Watcher

_LEAST_LANDLOCK = 2  # as `landlock.restrict` wants it
_LACK = "Neither the overlay nor Landlock works here"


def protect(workload: Workload, options: Options, view: Watcher) -> None:
    """Say what a trial can change where no isolation by the kernel works.

    Of a script it is what native libraries and other programs write. A program may be anything,
    also one without Python, so it is not started unless the user says so.

    Raises:
        IsolationFailed: a program could change the user's files.
    """
    if _is_kept_by_the_kernel(workload.cwd):
        return
    if workload.entry is Entry.COMMAND and not options.unprotected:
        raise IsolationFailed(
            f"{_LACK}: {workload.argv[0]} could change your files in every trial.",
            remedy="Name a Python script itself, or work on a copy of the folder and add "
            "--unprotected.",
        )
    view.note(
        f"{_LACK}: Python's own writes are redirected, those of native libraries and of other "
        "programs reach the real files."
    )


def _is_kept_by_the_kernel(cwd: str) -> bool:
    from upshift.launch import landlock
    from upshift.launch.process import Isolation, best_isolation

    if best_isolation(cwd) is not Isolation.REDIRECT:
        return True
    return sys.platform.startswith("linux") and landlock.version() >= _LEAST_LANDLOCK
