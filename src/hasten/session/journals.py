"""Where the races of a command are kept, so that the same command goes on from there."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hasten import search
from hasten.errors import UsageError, reason_of
from hasten.lever import discover
from hasten.records import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hasten.records import Machine, Workload
    from hasten.session.options import Options

_PRODUCT = Path(__file__).parents[1]
# A larger file is data rather than text: its size and modification time identify it.
_TEXT_BYTES = 2**20
_MOST_FILES_COUNT = 1000
# Variables by which users tune a run themselves.
_TUNES = re.compile("(OMP|GOMP|KMP|MKL|OPENBLAS|MALLOC|LD|TORCH|PYTORCH|CUDA)_")


def open_journal(
    workload: Workload, options: Options, machine: Machine, *, torch: str
) -> search.Journal:
    """Open the journal of a command in the user's cache; where that fails, one in memory.

    Races of other versions of its files, or of torch, are not taken over.
    """
    from hasten.report import archive
    from hasten.report.wording import utf8

    machines = (machine.cpu.model, machine.budget.core_count)
    key = hashlib.sha256(repr((workload.command, workload.cwd, machines)).encode()).hexdigest()[:16]
    told: dict[str, object] = {
        "torch": torch,
        "command": list(map(utf8, workload.command)),
        "cwd": utf8(workload.cwd),
    }
    try:
        told |= _fingerprint(workload, options, machine)
        return search.Journal.open(archive.folder() / "journals" / f"{key}.jsonl", told)
    except UsageError:
        lost = "there is no home folder"
    except OSError as error:
        lost = reason_of(error)
    return search.Journal(lost=lost)


def _fingerprint(workload: Workload, options: Options, machine: Machine) -> dict[str, object]:
    """Return what the races of a journal depend on."""
    from hasten.report.wording import utf8

    return {
        "product": _hash_of(_PRODUCT.rglob("*.py")),
        "script": _texts(workload),
        "cores": machine.budget.core_count,
        "cpu": machine.cpu.model,
        "levers": list(discover()),
        "permitted": [
            [sorted(options.only), sorted(options.skip)],
            [str(options.numerics), *sorted(options.assumed)],
        ],
        "applied": str(options.applied),
        "environment": {name: utf8(os.environ[name]) for name in filter(_TUNES.match, os.environ)},
    }


def _texts(workload: Workload) -> str:
    """Return a hash of the files that a command names, and of Python files beside and below."""
    named = set(_named(workload))
    folders = {file.parent for file in named if file.suffix == ".py"}
    return _hash_of(named.union(*map(_code_below, folders)))


def _code_below(folder: Path) -> set[Path]:
    """Return the Python files of a folder and of those below that have some: others hold data."""
    found: set[Path] = set()
    waiting: list[str | Path] = [folder]
    while waiting and len(found) < _MOST_FILES_COUNT:
        try:
            with os.scandir(waiting.pop()) as entries:
                first = list(islice(entries, _MOST_FILES_COUNT))
        except OSError:
            continue
        if files := [Path(entry) for entry in first if entry.name.endswith(".py")]:
            found.update(files)
            waiting += [entry.path for entry in first if entry.is_dir(follow_symlinks=False)]
    return found


def _hash_of(files: Iterable[Path]) -> str:
    kept = hashlib.sha256()
    for file in sorted(files):
        kept.update(os.fsencode(file) + b"\0" + _mark(file))
    return kept.hexdigest()


def _named(workload: Workload) -> Iterator[Path]:
    """Yield the files that a command names, also inside a shell line or `--config=FILE`.

    Modules are looked up by path: importing them would run their packages.
    """
    split = re.split(r"[\s=]+", " ".join(workload.argv))
    for word in {*workload.argv, *split}:
        for place in (Path(workload.cwd, word), Path(workload.cwd, word, "__main__.py")):
            if os.path.isfile(place):
                yield place
    lead = "-m" if workload.entry is Entry.MODULE else ""
    for name in (word for before, word in pairwise([lead, *split]) if before == "-m"):
        yield from _module(name, workload.cwd)


def _module(name: str, cwd: str) -> Iterator[Path]:
    place = os.path.join(*name.split("."))
    for root in (cwd, *sys.path):
        for file in (Path(root, place, "__main__.py"), Path(root, f"{place}.py")):
            if os.path.isfile(file):
                yield file
                return


def _mark(file: Path) -> bytes:
    try:
        seen = file.stat()
        if seen.st_size > _TEXT_BYTES:
            return f"{seen.st_size} {seen.st_mtime_ns}".encode()
        return hashlib.sha256(file.read_bytes()).digest()
    except OSError:  # it is unknown, as it will be to the script
        return b""
