"""Ask the user's Python what its torch reports about itself, in a separate process."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec

from hasten.records import Torch

# The start of our one line of output: torch and its plug-ins may print during import.
MARK = "hasten-torch-facts "
_LONGEST_S = 86400.0  # poll, which waits here, takes 24 days at most


class TorchProbe:
    """A fresh process of `python` that tells what its torch reports about itself.

    The parent never imports torch: it may be another Python's, and it takes seconds. The child
    inherits the environment, since OMP_NUM_THREADS and the like decide the answer.
    """

    def __init__(self, python: str) -> None:
        program = Path(__file__).with_name("torch_facts.py").read_text(encoding="utf-8")
        self._process: subprocess.Popen[str] | None = None
        with suppress(OSError):
            self._process = subprocess.Popen(
                [python, "-c", program, MARK],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                # The working directory may hold a random.py or numpy.py of the user's.
                env={**os.environ, "PYTHONSAFEPATH": "1"}, encoding="utf-8", errors="replace",
            )  # fmt: skip

    def answer(self, timeout_s: float) -> Torch | None:
        """Wait for what torch says; None where it cannot be asked, or does not answer in time."""
        if self._process is None:
            return None
        try:
            output, _ = self._process.communicate(timeout=min(max(0.0, timeout_s), _LONGEST_S))
        except subprocess.TimeoutExpired:
            return None
        return None if self._process.returncode else parse(output)

    def end(self) -> None:
        """End the process if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def probe_torch(python: str, timeout_s: float = 60.0) -> Torch | None:
    """Return what torch says in a fresh process of `python`, None where it cannot be asked."""
    probe = TorchProbe(python)
    try:
        return probe.answer(timeout_s)
    finally:
        probe.end()


def parse(output: str) -> Torch | None:
    """Return the facts in what the child printed, None where there are none."""
    told = [line for line in output.splitlines() if line.startswith(MARK)]
    if not told:
        return None
    try:
        return msgspec.json.decode(told[-1].removeprefix(MARK), type=Torch)
    except msgspec.MsgspecError:
        return None
