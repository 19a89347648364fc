"""Where the races of a command are kept, so that the same command goes on from there."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from upshift import search
from upshift.lever import discover

if TYPE_CHECKING:
    from upshift.records import Machine, Workload
    from upshift.session import Options


def open_journal(
    workload: Workload, options: Options, machine: Machine, *, torch: str
) -> search.Journal:
    """Open the journal of a command in the user's cache, or in a place that forgets.

    Args:
        workload: the user's command; races of another text of its script are not taken over.
        options: what may be raced.
        machine: where.
        torch: the version that the script imports.
    """
    from upshift.report import archive

    key = hashlib.sha256(repr((workload.command, workload.cwd)).encode()).hexdigest()[:16]
    told = _fingerprint(workload, options, machine) | {"torch": torch}
    try:
        return search.Journal.open(archive.folder() / "journals" / f"{key}.jsonl", told)
    except OSError:
        forgetting = Path(tempfile.mkdtemp(prefix="upshift-")) / "journal.jsonl"
        atexit.register(shutil.rmtree, forgetting.parent, ignore_errors=True)
        return search.Journal.open(forgetting, told)


def _fingerprint(workload: Workload, options: Options, machine: Machine) -> dict[str, object]:
    """Return what the races of a journal depend on."""
    script = Path(workload.cwd, workload.argv[0])
    content = script.read_bytes() if script.is_file() else b""
    return {
        "command": list(workload.command),
        "cwd": workload.cwd,
        "script": hashlib.sha256(content).hexdigest(),
        "cores": machine.budget.core_count,
        "cpu": machine.cpu.model,
        "levers": list(discover()),
        "permitted": [
            [sorted(options.only), sorted(options.skip)],
            [str(options.keep), str(options.allow)],
        ],
        "pulled": str(options.pulled),
    }
