"""`%%hasten profile` in a notebook, after `%load_ext hasten`.

A cell alone cannot be run again: it needs what earlier cells made. So the cells that this
session has run so far and this cell are written to a separate notebook, and `hasten profile`
runs that in a fresh process, like any notebook. docs/notebooks.md explains what follows from it.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hasten.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "hasten"
VERB = "profile"
_CELLS = "--cells"
_OWN_LINE = re.compile(rf"^\s*%(re)?load_ext\s+{NAME}\s*$", re.MULTILINE)
_PATIENCE_S = 30.0
# Jupyter's kernels set the first two.
_COLOURS = {"CLICOLOR_FORCE", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
_FRAME = (
    '<iframe sandbox srcdoc="{}" '
    'style="width: 100%; height: 40em; border: 0; resize: vertical"></iframe>'
)


@dataclass(frozen=True, slots=True, repr=False)
class NotebookReport:
    """What was found about a cell: a page in a notebook, text anywhere else."""

    text: str
    page: str = ""

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str | None:
        return _FRAME.format(html.escape(self.page)) if self.page else None


class Magic:
    """The `%%hasten` of one shell; it remembers which cells failed."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._failed: set[int] = set()

    def ran(self, result: Any) -> None:
        """Note a cell that failed: it would end a run of all cells."""
        if not result.success and result.execution_count is not None:
            self._failed.add(result.execution_count)

    def hasten(self, line: str, cell: str) -> NotebookReport:
        """Profile the training loop of a cell in a fresh process.

        %%hasten profile [--cells RANGES] [options of `hasten profile`]

        The cells that ran before run again there, then this one, which does not run here.
        """
        from IPython.core.error import UsageError

        try:
            verb, ranges, options = read_line(line)
        except ValueError as error:
            raise UsageError(f"%%hasten cannot read its line: {error}. Mend the quotes.") from None
        if verb != VERB:
            raise UsageError(
                f"%%hasten cannot {verb or 'do nothing'}. Write %%hasten {VERB}; for a tuning, "
                "save the notebook and run `hasten tune` with it in a terminal."
            )
        cells = [*self.earlier(cell, ranges), cell]
        try:
            return profile(cells, options, cwd=self._shell.starting_dir)
        except OSError as error:  # such as a full disk
            raise UsageError(f"The cell was not profiled: {reason_of(error)}.") from error

    def earlier(self, cell: str, ranges: str | None) -> list[str]:
        """Return the cells to run before this one, in the order in which they were run.

        Args:
            cell: the one that is profiled; where it was run before, that run is left out.
            ranges: which cells, as `%history` takes them; None for all that did not fail.
        """
        history = self._shell.history_manager
        if ranges is not None:
            found = [source for _, _, source in history.get_range_by_str(ranges, raw=True)]
        else:
            failed = self._failed | set(getattr(history, "exceptions", ()))
            before = history.input_hist_raw[: self._shell.execution_count]
            found = [source for number, source in enumerate(before) if number not in failed]
        kept = (_OWN_LINE.sub("", source).strip() for source in found)
        return [c for c in kept if c and c != cell.strip() and not c.startswith(f"%%{NAME}")]


_LOADED: WeakKeyDictionary[Any, Magic] = WeakKeyDictionary()


def load(shell: Any) -> None:
    """Give a shell its `%%hasten`."""
    unload(shell)
    magic = _LOADED[shell] = Magic(shell)
    shell.register_magic_function(magic.hasten, magic_kind="cell", magic_name=NAME)
    shell.events.register("post_run_cell", magic.ran)


def unload(shell: Any) -> None:
    """Stop noting which cells of a shell failed."""
    magic = _LOADED.pop(shell, None)
    if magic is not None:
        shell.events.unregister("post_run_cell", magic.ran)


def read_line(line: str) -> tuple[str, str | None, list[str]]:
    """Return the verb, the ranges of cells and the other options of a line.

    Raises:
        ValueError: a quotation does not end.

    >>> read_line("profile --cells '1-3 5' --steps 20")
    ('profile', '1-3 5', ['--steps', '20'])
    """
    words = [
        part for word in shlex.split(line)
        for part in (word.split("=", 1) if word.startswith(f"{_CELLS}=") else [word])
    ]  # fmt: skip
    verb, *options = words or [""]
    if _CELLS not in options[:-1]:
        return verb, None, options
    place = options.index(_CELLS)
    ranges = options[place + 1]
    return verb, ranges, options[:place] + options[place + 2 :]


def profile(cells: Sequence[str], options: Sequence[str], *, cwd: str) -> NotebookReport:
    """Profile some cells as a notebook, as the command line does; progress is printed.

    It runs in `cwd`, where the session began, which is where its first cell ran.
    """
    from IPython.core.error import UsageError

    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        notebook, page, text = (Path(folder, name) for name in ("cell.ipynb", "page", "text"))
        notebook.write_text(json.dumps(as_notebook(cells)), "utf-8")
        command = (sys.executable, "-m", NAME, VERB, "--progress", "plain", "--html", str(page))
        with text.open("wb") as output:
            code = _run(
                (*command, *options, str(notebook)), cwd=cwd, env=_environment(cwd), stdout=output
            )
        if code:
            raise UsageError(f"The cell was not profiled: hasten ended with exit code {code}.")
        html_page = page.read_text("utf-8") if page.exists() else ""
        lines = text.read_text("utf-8", "replace").splitlines()
        return NotebookReport("\n".join(line.rstrip() for line in lines).rstrip(), html_page)


def _environment(cwd: str) -> dict[str, str]:
    """Return the environment of the process, without the kernel's request for coloured text.

    The notebook is elsewhere, but modules beside the session must be importable.
    """
    env = {name: value for name, value in os.environ.items() if name not in _COLOURS}
    paths = [cwd, *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(paths)}


def as_notebook(cells: Sequence[str]) -> dict[str, Any]:
    """Return a notebook of these cells.

    >>> [cell["source"] for cell in as_notebook(["a = 1"])["cells"]]
    ['a = 1']
    """
    made = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": source} for source in cells
    ]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made}


def _run(command: Sequence[str], **details: Any) -> int:
    """Run a command, pass on what it writes to stderr, and return its exit code.

    An interrupt of the cell reaches the command once, from here: it then ends its own trial.
    """
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True, **details,
    ) as process:  # fmt: skip
        assert process.stderr is not None  # noqa: S101  # it is a pipe
        try:
            for line in process.stderr:
                sys.stdout.write(line)
                sys.stdout.flush()
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
