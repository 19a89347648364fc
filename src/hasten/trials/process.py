"""One trial as a process: started behind a guard, stopped, resumed, ended, and read.

The guard (`process_guard.py`) owns the ending: whatever becomes of this process, the trial's
processes and files are gone afterwards. This side only asks.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import IsolationFailed
from hasten.trials import process_ancestry, process_tree
from hasten.trials.isolation import refused_writes
from hasten.trials.isolation.mounts import wake
from hasten.trials.isolation.namespaces import lacks
from hasten.trials.isolation.removal import wipe
from hasten.trials.isolation.scratch import make_layers, make_scratch
from hasten.trials.output import Output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_START_PATIENCE_S = 60.0
_END_PATIENCE_S = 40.0
REFUSED = "refused"


class Isolation(StrEnum):
    """How a trial's writes are kept away from the user's files."""

    OVERLAY = "overlay"
    REDIRECT = "redirect"
    PYTHON = "python"  # as redirect, without the kernel: only Python's own writes
    NONE = "none"


_REDIRECTED = (Isolation.REDIRECT, Isolation.PYTHON)
# What a trial tries on a file of ours that it must not change.
_PROBE = """
import os, sys
for act in (lambda path: open(path, "w").write("x"), lambda path: os.chmod(path, 0o600)):
    try:
        act(sys.argv[1])
    except OSError:
        print("refused")
print(open(sys.argv[1]).read())
"""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended.

    Attributes:
        code: its exit code; None where a signal ended it, or nobody knows.
        signal: the signal that ended it.
        failure: why the command could not even be started, else empty.
        lost: its guard was ended from outside, and it was ended because of that.
    """

    code: int | None
    signal: int | None
    failure: str = ""
    lost: bool = False


class Process:
    """The user's command, running as a trial.

    Attributes:
        pid: the user's process, leader of its own process group.
        keeper: the process of ours from which all others of the trial descend.
        exit: how it ended; None while it runs, as far as `wait` or `kill` have seen.
        notes: what the isolation could not do in full, one sentence each.
    """

    def __init__(
        self, guard: subprocess.Popen[bytes], output: Output, folders: Sequence[Path], *,
        isolation: Isolation, cwd: str,
    ) -> None:  # fmt: skip
        self.pid = 0
        self.keeper = 0
        self.exit: Exit | None = None
        self.notes: tuple[str, ...] = ()
        self._guard = guard
        self._talk = GuardTalk(guard)
        self._folders = folders
        self._isolation = isolation
        self._cwd = cwd
        self._output = output
        self._refused: tuple[str, ...] = ()

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        scratch: Path,
        isolation: Isolation,
    ) -> Process:
        """Start a command as a trial; return once it runs, or once it is known that it can't.

        A command that does not exist is no exception: `exit` then carries 126 or 127, as in a
        shell, and `failure` the reason.

        Args:
            argv: the command; its program is looked up in the PATH of `env`.
            env: the whole environment of the command.
            cwd: where it starts.
            scratch: an existing folder of this trial alone, real on both sides. `kill` and the
                death of this process remove it. Its path should have no more than 70 bytes:
                sockets lie beneath, and have 108 (unix(7)).
            isolation: how writes elsewhere are kept away from the user's files.

        Raises:
            IsolationFailed: this machine does not permit that isolation.
        """
        wake(cwd, argv)
        folders = [scratch.resolve()]
        try:
            folders += make_layers(folders[0]) if isolation is Isolation.OVERLAY else []
            guard, output, out = start_guard()
        except BaseException as error:
            for folder in folders:
                wipe(str(folder))
            if not isinstance(error, OSError):
                raise
            raise IsolationFailed(
                f"Cannot start a process for the trial: {error.strerror}.",
                remedy="Free some memory, disk or processes (ulimit -u) and try again.",
            ) from None
        cwd = os.path.realpath(cwd)
        process = cls(guard, output, folders, isolation=isolation, cwd=cwd)
        try:
            spec = _spec(argv, env, out, folders, isolation=isolation, cwd=cwd)
            process._greet(spec)
        except BaseException:
            process.kill()
            raise
        return process

    def stop(self) -> None:
        """Stop the command and every descendant (SIGSTOP), loader workers included."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the stopped command and its descendants go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask the guard to end all of it, and return at once; any thread may call this.

        The thread that waits for the process then sees its end. `kill` is still due, there.
        """
        self._guard.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the command, every descendant and the scratch folder; return when they are gone."""
        self._refused = _refusals(self._folders[0]) or self._refused
        self._talk.hang_up()
        self.wait(_END_PATIENCE_S)
        try:
            self._guard.wait(_END_PATIENCE_S if self.exit else 0)
        except subprocess.TimeoutExpired:  # its hang (a dead network disk) must not be ours
            if self.exit is None:
                self._finish({})
            self._guard.kill()
            self._guard.wait()
        for folder in self._folders:
            wipe(str(folder))

    def wait(self, timeout_s: float | None) -> Exit | None:
        """Wait until the command and all that it left running have ended.

        Its output is complete then; its files are removed by `kill`, which is due in any case.

        Args:
            timeout_s: how long at most; None waits for ever.

        Returns:
            How it ended, or None where it still runs.
        """
        if self.exit is None:
            told = self._talk.hear(timeout_s)
            if told is not None:
                self._finish(told)
        return self.exit

    def follow(self, pid: int | None) -> None:
        """Make sure that a process belongs to this trial; kill one that does not.

        Where nothing is isolated there is nothing to be outside of.

        Args:
            pid: of a process that has our order; None where the kernel does not tell.

        Raises:
            IsolationFailed: it was started outside of the isolation, or its guard was ended.
        """
        if pid is None or self._isolation is Isolation.NONE:
            return
        if not process_ancestry.descends(str(pid), self._guard.pid):
            with contextlib.suppress(OSError):  # the guard does not know it
                os.kill(pid, signal.SIGKILL)
            raise (
                process_ancestry.outside()
                if self._guard.poll() is None
                else process_ancestry.guard_lost()
            )

    def raise_if_outside(self) -> None:
        """Raise where a process has ended itself because it was started outside of the trial.

        Raises:
            IsolationFailed: one has, or the guard was ended from outside.
        """
        if self.exit is not None and self.exit.lost:
            raise process_ancestry.guard_lost()
        if process_ancestry.OUTSIDE in self.output() + self.errors():
            raise process_ancestry.outside()

    def output(self) -> str:
        """Return the last 256 KiB of what the command wrote."""
        return self._output.text()

    def errors(self) -> str:
        """Return the end of what the command wrote to its standard error."""
        return self._output.errors()

    @property
    def refused(self) -> tuple[str, ...]:
        """The paths whose writes were refused because they cannot be redirected, oldest first."""
        refused = _refusals(self._folders[0]) or self._refused
        if refused or self.exit is None or self._isolation not in _REDIRECTED:
            return refused
        return refused_writes.guessed(self.errors(), cwd=self._cwd, code=self.exit.code)

    def _greet(self, spec: dict[str, Any]) -> None:
        """Tell the guard what to start; read that the command runs, or why it does not."""
        self._talk.tell(spec)
        told = self._talk.hear(_START_PATIENCE_S) or {"failure": "its guard did not start"}
        self.pid, self.keeper = told.get("pid", 0), told.get("keeper", 0)
        self.notes = tuple(told.get("notes", ()))
        if "failure" in told:
            raise IsolationFailed(
                f"Cannot isolate a trial by {self._isolation.value} here ({told['failure']}).",
                remedy="Run it where user namespaces are permitted, or on a copy of your folder "
                "elsewhere.",
            )
        if "exec" in told:
            ended = self.wait(_END_PATIENCE_S)
            self.exit = Exit(ended.code if ended else None, None, failure=told["exec"])

    def _finish(self, told: dict[str, Any]) -> None:
        if not told:  # the guard was killed, so nobody has ended the trial's processes
            self._signal(signal.SIGKILL)
        self.exit = Exit(told.get("code"), told.get("signal"), lost=not told)
        self._talk.close()
        self._output.close()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the group, then to descendants that have left it.

        Twice, since a process may fork between the look and the signal.
        """
        if self.exit is not None or not self.pid:
            return
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)
        for _ in range(2):
            for pid in process_tree.descendants(self._guard.pid):
                with contextlib.suppress(OSError):
                    if pid != self.keeper and os.getpgid(pid) != self.pid:
                        os.kill(pid, number)


@functools.cache
def best_isolation(cwd: str = "") -> Isolation:
    """Return the strictest isolation that really works here, by trying it once.

    `Isolation.PYTHON` means none by the kernel: the caller then has to ask the user.

    Args:
        cwd: where trials will start: not every disk supports an overlay. By default where this
            process is.

    Raises:
        UsageError: nowhere can a trial's folder be made.
    """
    for isolation, said in ((Isolation.OVERLAY, "x\n"), (Isolation.REDIRECT, "refused\n" * 2)):
        folder = make_scratch()
        try:
            if _try(isolation, folder, cwd or os.getcwd()).startswith(said):
                return isolation
        except IsolationFailed:
            continue
        finally:
            wipe(str(folder))
    return Isolation.PYTHON


def _try(isolation: Isolation, folder: Path, cwd: str) -> str:
    """Return the output of a trial that tries to change a file; empty if it succeeded."""
    if isolation is Isolation.OVERLAY and lacks("overlay"):
        return ""
    scratch, victim = folder / "scratch", folder / "victim"
    scratch.mkdir()
    victim.write_text("before")
    victim.chmod(0o644)
    argv = [sys.executable, "-I", "-S", "-c", _PROBE, str(victim)]
    process = Process.start(argv, env=os.environ, cwd=cwd, scratch=scratch, isolation=isolation)
    process.wait(_START_PATIENCE_S)
    process.kill()
    kept = victim.read_text() == "before" and victim.stat().st_mode & 0o777 == 0o644
    return process.output() if kept else ""


def _refusals(scratch: Path) -> tuple[str, ...]:
    """Return what a trial has noted in its folder; nothing where that is gone."""
    with contextlib.suppress(OSError):
        text = (scratch / REFUSED).read_text(errors="replace")
        return tuple(dict.fromkeys(text.splitlines()))
    return ()


def _spec(
    argv: Sequence[str], env: Mapping[str, str], out: int, folders: Sequence[Path], *,
    isolation: Isolation, cwd: str,
) -> dict[str, Any]:  # fmt: skip
    """Return what the guard is told to start; the trial prints to its descriptor `out`."""
    scratch, *layers = folders
    environment = {**_environment(env, scratch, isolation), process_ancestry.SEAL_KEY: ""}
    return {
        "argv": [_plain(word) for word in argv],
        "env": {_plain(key): _plain(value) for key, value in environment.items()},
        "cwd": _plain(cwd),
        "scratch": _plain(str(scratch)),
        "isolation": isolation.value,
        "layers": [_plain(str(layer)) for layer in layers],
        "out": out,
        "terminal": _terminal_size(),
    }


def _terminal_size() -> tuple[int, int] | None:
    """Return lines and columns of our standard input; None where that is no terminal."""
    try:
        columns_count, lines_count = os.get_terminal_size(0)
    except OSError:
        return None
    return lines_count, columns_count


def _environment(env: Mapping[str, str], scratch: Path, isolation: Isolation) -> Mapping[str, str]:
    if isolation not in _REDIRECTED:
        return env
    # Native code asks for temporary files too: give it a place that needs no redirection.
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    return {**env, "HASTEN_REDIRECT": str(scratch), "TMPDIR": str(temporary)}


def _plain(word: str) -> str:
    """Return a word as the guard, which always speaks UTF-8, will turn it back into bytes."""
    return os.fsencode(word).decode("utf-8", "surrogateescape")


# ---- start a guard in a Python of its own, which needs nothing but the standard library and us

_ROOT = str(Path(__file__).parents[2])
_GUARD = (
    "import sys; sys.path.append(sys.argv[1]); from hasten.trials.process_guard import main; main()"
)


class GuardTalk:
    """What is said to a guard, and what it says: lines of JSON."""

    def __init__(self, guard: subprocess.Popen[bytes]) -> None:
        assert guard.stdin is not None  # noqa: S101  # Popen was asked for pipes
        assert guard.stdout is not None  # noqa: S101
        self._to, self._from = guard.stdin, guard.stdout
        self._text = b""

    def tell(self, spec: dict[str, Any]) -> None:
        """Say what to start."""
        with contextlib.suppress(BrokenPipeError):  # the silence of the guard is heard next
            self._to.write(json.dumps(spec).encode() + b"\n")
            self._to.flush()

    def hear(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Return what it says next: None on time-out, an empty dict where the guard is gone."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._text:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._from], [], [], left)[0]:
                return None
            part = os.read(self._from.fileno(), 65536)
            if not part:
                return {}
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def hang_up(self) -> None:
        """Say no more, at which the guard ends the trial and itself."""
        with contextlib.suppress(OSError):
            self._to.close()

    def close(self) -> None:
        """Close both directions."""
        self.hang_up()
        self._from.close()


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
            process_group=0,  # Ctrl-C in the terminal is for the parent to judge
        )
    except BaseException:
        os.close(out_read)
        os.close(err_read)
        raise
    finally:
        os.close(out_write)
        os.close(err_write)
    return guard, Output(out_read, err_read), out_write
