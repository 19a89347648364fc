"""The user's own command, read from what follows our options."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import traceback
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.errors import ScriptFailed, UsageError, reason_of
from hasten.records import Entry, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTEBOOK = ".ipynb"
MODULE_FLAG = re.compile(r"-m(?!-)")
_PYTHON = re.compile(r"python[\d.]*")


def read_workload(
    words: Sequence[str], *, once: bool = False, python: str = sys.executable
) -> Workload:
    """Return what the user wants to train.

    Args:
        words: the rest of the command line; it begins with `-m` for a module, or with `--`
            for a program.
        once: the workload is started only once: Python itself says what is wrong with its script.
        python: the interpreter for a script; a program has its own.

    Raises:
        UsageError: there is no such script, program or interpreter.
        ScriptFailed: the script is started more than once and is not valid Python.
    """
    cwd = working_folder()
    entry, argv = _entry(words)
    check = {Entry.MODULE: lambda _: None, Entry.COMMAND: _check_program}
    check.get(entry, _check_file)(argv[0])
    python = _python(argv[0]) if entry is Entry.COMMAND else interpreter(python)
    # Another Python version may accept syntax that this one rejects.
    if entry is Entry.SCRIPT and not once and python == sys.executable:
        _check_syntax(argv[0])
    return Workload(entry=entry, argv=argv, cwd=cwd, python=python)


def scripts(words: Sequence[str]) -> list[Path]:
    """Return the files of code that a command line names."""
    return [Path(word) for word in words if word.endswith((".py", NOTEBOOK))]


def working_folder() -> str:
    """Return the folder that a command was started in.

    Raises:
        UsageError: it was removed.
    """
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        remedy = "Change into a folder that exists."
        raise UsageError("The working folder was removed.", remedy=remedy) from error


def interpreter(named: str) -> str:
    """Return the interpreter that the user named, as a path or as a name on PATH.

    Raises:
        UsageError: there is none.
    """
    found = shutil.which(named)
    if found is None:
        remedy = "Write --python /path/to/venv/bin/python."
        raise UsageError(f"Cannot find the interpreter {named}.", remedy=remedy)
    return os.path.abspath(found)


def _python(program: str) -> str:
    """Return the Python that a program trains with, as far as its name and PATH show."""
    named = program if _PYTHON.fullmatch(Path(program).name) else "python"
    found = shutil.which(named)
    if found is None:
        return sys.executable
    found = os.path.abspath(found)
    # The same folder means the same environment, whatever the interpreter is called.
    own = os.path.dirname(found) == os.path.dirname(sys.executable)
    return sys.executable if own else found


def _entry(words: Sequence[str]) -> tuple[Entry, tuple[str, ...]]:
    """Tell how the user's program is started; `Command.parse_args` keeps the `-m` and `--`."""
    first, *rest = words or [""]
    if not first:
        raise UsageError("No script is named.", remedy="Name the script that trains.")
    if first == "--":
        if not rest:
            raise UsageError("There is no program after --.", remedy="Write -- bash train.sh.")
        # `tune -- train.py` means the script, as `--` does in other programs.
        by_suffix = rest[0].endswith((".py", NOTEBOOK)) and not shutil.which(rest[0])
        return _entry(rest) if by_suffix else (Entry.COMMAND, tuple(rest))
    if MODULE_FLAG.match(first):
        module = [first[2:], *rest] if first[2:] else rest
        if not module:
            raise UsageError("There is no module after -m.", remedy="Write -m package.module.")
        return Entry.MODULE, tuple(module)
    entry = Entry.NOTEBOOK if first.endswith(NOTEBOOK) else Entry.SCRIPT
    return entry, tuple(words)


def _check_program(name: str) -> None:
    if shutil.which(name) is None:
        raise UsageError(f"Cannot find the program {name}.", remedy="Name one that is on PATH.")


def _check_file(name: str) -> None:
    try:
        mode = Path(name).stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        remedy = "Name a file that exists."
        if shutil.which(name):
            remedy = f"If it is a program, put -- before it: `hasten tune -- {name} ...`."
        raise UsageError(f"Cannot find the script {name}.", remedy=remedy) from error
    except OSError as error:
        problem = f"Cannot read the script {name}: {reason_of(error)}."
        raise UsageError(problem, remedy="Name a script that you may read.") from error
    if stat.S_ISDIR(mode) and not os.path.isfile(os.path.join(name, "__main__.py")):
        raise UsageError(f"{name} is a folder.", remedy="Name the script that trains.")
    if not os.access(name, os.R_OK):
        raise UsageError(f"Cannot read the script {name}.", remedy="Make it readable.")


def _check_syntax(name: str) -> None:
    """Catch a syntax error before anything is started; only in plain files of source."""
    if not os.path.isfile(name) or zipfile.is_zipfile(name) or name.endswith(".pyc"):
        return
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(Path(name).read_bytes(), name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        told = "".join(traceback.format_exception_only(error))
        problem = f"Python cannot read the script {name}."
        remedy = "Mend the line above; a program that is not Python goes after --."
        raise ScriptFailed(problem, remedy=remedy, output=told) from error
    except (RecursionError, MemoryError):  # nested so deeply that Python itself should decide
        return
