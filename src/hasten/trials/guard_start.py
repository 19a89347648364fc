"""Start a guard in a Python of its own, which needs nothing but the standard library and us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hasten.trials.output import Output

_ROOT = str(Path(__file__).parents[2])
_GUARD = (
    "import sys; sys.path.append(sys.argv[1]); from hasten.trials.process_guard import main; main()"
)


def start_guard() -> tuple[subprocess.Popen[bytes], Output, int]:
    """Start a guard; return it, what its trial prints, and the trial's descriptor for that."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, _ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err_write,
            pass_fds=(out_write,),
            start_new_session=True,  # Ctrl-C in the terminal is for the parent to judge
        )
    except BaseException:
        os.close(out_read)
        os.close(err_read)
        raise
    finally:
        os.close(out_write)
        os.close(err_write)
    return guard, Output(out_read, err_read), out_write
