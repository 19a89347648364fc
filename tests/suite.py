"""What holds for every test: no skip for want of what can be installed, and no process left."""

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "TEST_SESSION_MARK"
MOMENT_S = float(os.environ.get("TEST_MOMENT_S", "20"))
# What a machine may lack: the only reasons for a skip where CI is set. Whatever else a test needs
# (a package, a program, a browser, isolation) is installed by `make test` or given by the runner.
HARDWARE = (
    "needs a CUDA device",
    "there is an accelerator",
    "needs two CPUs",
    "this kernel gives no huge pages",
    "this kernel does not tell where a thread waits",
    "the mode differs between processors",
    "does not apply",  # a lever to the one script that is run with all of them
)
# Processes of Python's own that live as long as the one that started them.
_KEPT = (b"resource_tracker import main", b"forkserver import main")


def refuse_skip(report, environment) -> None:
    """Make a skip a failure where CI is set, unless the machine itself lacks something."""
    if environment.get("CI", "").lower() not in ("1", "true") or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr)
    if report.skipped and ("install" in reason or not any(part in reason for part in HARDWARE)):
        report.outcome = "failed"
        report.longrepr = f"Under CI nothing is skipped for this: {reason}"


def running() -> set[int]:
    """Return all processes of the machine."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def left(before: set[int], mark: str, moment_s: float) -> dict[int, bytes]:
    """Return processes of a test, with what they run, that are not gone after a moment."""
    until = time.monotonic() + moment_s
    while (found := _new(before, mark)) and time.monotonic() < until:
        time.sleep(0.05)
    return {pid: _read(pid, "cmdline").replace(b"\0", b" ") for pid in found}


def end(before: set[int], mark: str) -> None:
    """End what a test has started, whole process groups first."""
    until = time.monotonic() + MOMENT_S
    while (found := _new(before, mark)) and time.monotonic() < until:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                if (group := os.getpgid(pid)) not in before:
                    os.killpg(group, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _new(before, mark):
    """Return what is new: started by this process, or marked and left by those who started it.

    What a process that was there before has started (a server of several tests) is that one's.
    """
    told = f"{MARK}={mark}".encode()
    found = set()
    for pid in running() - before:
        above = _parent(pid)
        while above not in before and above > 1:
            above = _parent(above)
        is_ours = above == os.getpid() or (
            told in _read(pid, "environ") and told not in _read(above, "environ")
        )
        if is_ours and not any(kept in _read(pid, "cmdline") for kept in _KEPT):
            found.add(pid)
    return found


def _parent(pid):
    """Return the parent of a process, 0 where it has ended."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields and fields[0] != b"Z" else 0


def _read(pid, name):
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def eventually(condition, timeout_s: float = 30.0) -> bool:
    """Whether a condition becomes true in time."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())
