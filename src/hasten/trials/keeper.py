"""The keeper of one trial: it isolates itself, starts the user's command, and stays.

Where the kernel permits, it is the first process of a pid namespace, so that its end is the end of
everything in it. It ends when the command ends, or when the guard that started it does.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import select
import signal
import termios
from typing import Any

from hasten.trials import process_ancestry, process_tree

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that ask a guard to end its trial."""
# A trial that fills the memory is the one the kernel should end, not the user's other work.
_OOM_SCORE = "700"
_REAL = ("/dev/", "/proc/", "/sys/")  # what redirection leaves as it is


def keep(spec: dict[str, Any], apart: bool, pipes: tuple[int, int, int]) -> None:
    """Isolate the forked child, and let it start and keep the user's command; never returns."""
    told_end, ended_end, alive = pipes
    told: dict[str, Any] = {"notes": []}
    try:
        os.setpgid(0, 0)
        # The guard's /proc, before a new namespace hides it.
        proc = os.open("/proc" if os.path.isdir("/proc/self") else "/", os.O_RDONLY)
        stdin = _open_input(spec["terminal"])
        told["notes"] = _isolate(spec, apart)
        told["keeper"] = _pid_in(proc)
        for descriptor, stream in ((stdin, 0), (spec["out"], 1)):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        os.chdir(spec["cwd"])
    except Exception as error:
        if apart and getattr(error, "strerror", "") == _import("namespaces").NOT_APART:
            told["shared"] = True
        _end(told_end, {**told, "failure": _words(error)}, 125)
    wake = wake_on_signals()
    process_tree.become_subreaper()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(spec, told, told_end, proc, None if apart else keeper)
    for descriptor in (told_end, proc):
        os.close(descriptor)
    silence(0, 1, 2)
    status = _stay(pid, alive, wake)
    late = {} if apart else process_tree.end_all()  # apart, the kernel does it
    status = late.get(pid, status)
    if status is not None:
        os.write(ended_end, str(status).encode())
    os._exit(0)


def _stay(pid: int, alive: int, wake: int) -> int | None:
    """Wait until the command ends and return its status; None if the guard ends first."""
    while True:
        ended = process_tree.reap()
        if pid in ended:
            return ended[pid]
        wait_s = 0.0 if len(ended) == process_tree.MOST_REAPED else None
        ready, _, _ = select.select([alive, wake], [], [], wait_s)
        if alive in ready:
            return None
        if wake in ready:
            os.read(wake, 4096)


def _become(
    spec: dict[str, Any], told: dict[str, Any], status_end: int, proc: int, keeper: int | None
) -> None:
    """Turn the forked child into the user's command; never returns."""
    try:
        os.setpgid(0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(_OOM_SCORE)  # a courtesy, not a promise
        told["notes"] += _confine(spec, keeper is None)
        told["pid"] = _pid_in(proc)
        if spec["isolation"] != "none":
            spec["env"][process_ancestry.SEAL_KEY] = process_ancestry.seal(keeper or 1)
        if keeper is not None:
            process_tree.die_with_parent()
    except Exception as error:
        _end(status_end, {**told, "failure": _words(error)}, 125)
    os.write(status_end, (json.dumps(told) + "\n").encode())
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, commands should not
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        told = {"exec": f"Cannot start {spec['argv'][0]!r}: {error.strerror}."}
        _end(status_end, told, 127 if missing else 126)


def _isolate(spec: dict[str, Any], apart: bool) -> list[str]:
    """Give the keeper and all that it starts their own namespaces."""
    if spec["isolation"] == "overlay":
        notes: list[str] = _import("overlay").isolate(
            spec["scratch"], spec["layers"], spec["cwd"], apart=apart
        )
        return notes
    if spec["isolation"] != "none" and (spec["cwd"] + "/").startswith(_REAL):
        raise OSError(errno.EPERM, "trials would write to the real", spec["cwd"])
    if apart:
        _import("namespaces").enter(apart=True)
        _import("overlay").cover_memory(spec["scratch"])
    return []


def _confine(spec: dict[str, Any], apart: bool) -> list[str]:
    """Deny the command what no namespace keeps it from."""
    if spec["isolation"] != "none":
        _import("namespaces").lower_rights()
    if spec["isolation"] != "redirect":
        return []
    notes: list[str] = _import("landlock").confine(spec["scratch"], apart=apart)
    _import("seccomp").refuse(messages=not apart)
    return notes


def _import(name: str) -> Any:
    return importlib.import_module(f"hasten.trials.isolation.{name}")


def _pid_in(proc: int) -> int:
    """Return the pid of this process in the namespace of a /proc."""
    try:
        return int(os.readlink("self", dir_fd=proc))
    except OSError:
        return os.getpid()


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror} {error.filename or ''}".rstrip()
    return f"{type(error).__name__}: {error}"


def _open_input(terminal: list[int] | None) -> int:
    """Open what the command is to read: nothing, from a terminal where the user's is one."""
    if terminal is not None:
        with contextlib.suppress(OSError, termios.error):  # there are no more of them, or no /dev
            return _open_terminal(terminal)
    return os.open(os.devnull, os.O_RDONLY)


def _open_terminal(size: list[int]) -> int:
    """Open a terminal at which nobody types, so that scripts can ask for its size.

    It controls no session: its readers are not stopped, and /dev/tty does not lead to it. It is
    there until this process ends, which holds the other end. `size` is lines and columns.
    """
    _, end = os.openpty()
    try:
        termios.tcsetwinsize(end, (size[0], size[1]))
        mode = termios.tcgetattr(end)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[6][termios.VMIN] = mode[6][termios.VTIME] = 0  # a read that finds nothing ends
        termios.tcsetattr(end, termios.TCSANOW, mode)
        # What is written to it nobody takes away, and a writer would wait for that.
        return os.open(os.ttyname(end), os.O_RDONLY | os.O_NOCTTY)
    finally:
        os.close(end)


def _end(status_end: int, told: dict[str, Any], code: int) -> None:
    os.write(status_end, (json.dumps(told) + "\n").encode())
    os._exit(code)


def silence(*streams: int) -> None:
    """Redirect descriptors to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)
    os.close(null)


def wake_on_signals() -> int:
    """Turn signals into bytes on a pipe, so that one `select` sees all that can happen."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    os.set_blocking(read_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *ENDING):
        if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return read_end
