"""Run a notebook as a script: `python -m hasten.trials.notebook train.ipynb args...`.

The code cells run in order in one namespace that is `__main__`, through IPython's shell, so that
`%matplotlib inline`, `!ls` and `%%time` mean what they mean in Jupyter. The first cell that fails
ends the run with its traceback and exit code 1. No kernel and no server is started, and the
notebook's file is not written.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.trials.tracebacks import trimmed

if TYPE_CHECKING:
    from collections.abc import Sequence

_USAGE = 2
_OWN_MAGIC = re.compile(r"\A\s*%%hasten\b.*\n?")


def main(argv: Sequence[str]) -> int:
    """Run the notebook that `argv` begins with; the rest is its `sys.argv[1:]`.

    Returns:
        The exit code.
    """
    try:
        cells = code_cells(Path(argv[0]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return _refuse(f"{argv[0]} is not a notebook.", "Save it as .ipynb, format 4.")
    try:
        shell = _shell(argv)
    except ImportError:
        return _refuse("A notebook needs IPython.", "Run: pip install ipython")
    return _run(shell, cells)


def code_cells(path: Path) -> list[str]:
    """Return the source of each code cell, in order; a cell under `%%hasten` is just run.

    Raises:
        OSError: the file cannot be read.
        ValueError, KeyError, TypeError, AttributeError: it is not a notebook.
    """
    content = json.loads(path.read_text("utf-8"))
    return [
        _OWN_MAGIC.sub("", source if isinstance(source := cell["source"], str) else "".join(source))
        for cell in content["cells"]
        if cell["cell_type"] == "code"
    ]


def _shell(argv: Sequence[str]) -> Any:
    """Return a shell whose namespace is `__main__`.

    As in Jupyter it has no `__file__`: multiprocessing would run the notebook as a script.
    """
    os.environ.setdefault("MPLBACKEND", "Agg")
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False  # the history of the user's own sessions is theirs
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.autocall = 0
    module = type(sys)("__main__")
    module.__spec__ = None
    sys.argv[:] = list(argv)
    sys.path[0] = str(Path(argv[0]).resolve().parent)
    shell: Any = InteractiveShell.instance(config=config, user_module=module)
    sys.modules["__main__"] = module  # pickle finds the classes of the cells there
    shell.system = shell.system_raw  # what a command prints comes through at once
    shell.enable_gui = lambda gui=None: None  # no event loop waits for anybody here
    shell.showtraceback = partial(_show_traceback, shell.showtraceback)
    shell._showtraceback = _write_traceback
    warnings.filterwarnings("ignore", message="To exit: use", category=UserWarning)
    return shell


def _show_traceback(show: Any, *args: Any, **kwargs: Any) -> None:
    """Show what a cell raised, except a SystemExit, without our own frames."""
    error = sys.exception()
    if isinstance(error, SystemExit):
        return
    if error is not None:
        error.__traceback__ = trimmed(error.__traceback__)
    show(*args, **kwargs)


def _write_traceback(kind: Any, error: Any, lines: Sequence[str]) -> None:
    """Write a traceback where a script's goes: IPython would print it among the output."""
    sys.stdout.flush()
    sys.stderr.write("\n".join(lines) + "\n")


def _run(shell: Any, cells: Sequence[str]) -> int:
    for cell in cells:
        result = shell.run_cell(cell, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        sys.stdout.flush()
        if isinstance(error, SystemExit):
            return _exit_code(error)
        if isinstance(error, KeyboardInterrupt):
            raise error
        if error is not None:
            return 1
        if shell.exit_now:  # `exit` in a cell is no failure
            return 0
    return 0


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def _refuse(problem: str, remedy: str) -> int:
    sys.stderr.write(f"hasten: {problem}\n         {remedy}\n")
    return _USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
