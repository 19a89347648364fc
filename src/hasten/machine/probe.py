"""Ask the user's Python what its torch reports about itself, in a separate process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec

from hasten.records import Torch

# The start of our one line of output: torch and its plug-ins may print during import.
MARK = "hasten-torch-facts "
_LONGEST_S = 86400.0  # poll, which waits here, takes 24 days at most


def probe_torch(python: str, timeout_s: float = 60.0) -> Torch | None:
    """Return what torch says in a fresh process of `python`, None where it cannot be asked.

    The parent never imports torch: it may be another Python's, and it takes seconds. The child
    inherits the environment, since OMP_NUM_THREADS and the like decide the answer.
    """
    program = Path(__file__).with_name("torch_facts.py").read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [python, "-c", program, MARK],
            capture_output=True,
            # The working directory may hold a random.py or numpy.py of the user's.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=min(timeout_s, _LONGEST_S),
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse(done.stdout)


def parse(output: str) -> Torch | None:
    """Return the facts in what the child printed, None where there are none."""
    told = [line for line in output.splitlines() if line.startswith(MARK)]
    if not told:
        return None
    try:
        return msgspec.json.decode(told[-1].removeprefix(MARK), type=Torch)
    except msgspec.MsgspecError:
        return None
