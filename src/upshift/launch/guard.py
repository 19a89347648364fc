"""The guard: a small program between upshift and one trial, so that no trial outlives upshift.

Started as `python -I -S guard.py`, it reads one line of JSON from its standard input, starts the
user's command in its own session behind the wanted isolation, and stays. It ends the command,
every descendant (it is their subreaper, so a double fork hides nothing) and the trial's files when
the command ends, when its own standard input closes (upshift died, even by SIGKILL), or when it
is asked to end. What it knows it says as lines of JSON on its standard output.

Not covered: a process that somebody else starts on the trial's behalf (`systemd-run`, `at`, a
Docker daemon), and a set-user-id program that we may not kill.

Sources: https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html,
https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import select
import signal
import stat
import sys
import time
from typing import Any

_PDEATHSIG, _SUBREAPER = 1, 36
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_PATIENCE_S = 20.0
# A trial that fills the memory is the one the kernel should end, not the user's other work.
_OOM_SCORE = "700"
_REAL = ("/dev/", "/proc/", "/sys/")  # what redirection leaves as it is
# They clean up what killed processes leave in shared memory, once these are gone, and end.
_CLEANERS = (b"torch_shm_manager", b"multiprocessing.resource_tracker")
_CLEANING_S = 3.0  # torch's waits for two seconds whether somebody comes back


def descendants(root: int) -> list[int]:
    """Return the living descendants of a process, without itself."""
    found: list[int] = []
    ahead = [root]
    while ahead:
        children = _children(ahead.pop())
        found += children
        ahead += children
    return found


def wipe(path: str) -> None:
    """Remove a tree, whatever the modes in it: an overlay's `work/work` has mode 000."""
    try:
        mode = os.lstat(path).st_mode
        if not stat.S_ISDIR(mode):
            os.unlink(path)
            return
        os.chmod(path, stat.S_IMODE(mode) | 0o700)
        with os.scandir(path) as entries:
            inside = [entry.path for entry in entries]
        for entry in inside:
            wipe(entry)
        os.rmdir(path)
    except OSError:
        return  # gone already, or not ours: the parent wipes once more


def main() -> None:
    """Run one trial from the first line of standard input to the last process."""
    commands, reports = os.dup(0), os.dup(1)
    spec: dict[str, Any] = json.loads(_read_line(0))
    wake = _wake_on_signals()
    _prctl(_SUBREAPER, 1)
    status_end, child_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(spec, child_end)
    os.close(child_end)
    os.close(spec["out"])
    _silence(0, 1)
    _report(reports, {"pid": pid, **_status(status_end)})
    status, asked = _watch(pid, commands, wake)
    late = _end_all()
    _silence(0, 1, 2)  # all that can be written has been: let the reader see the end
    _report(reports, _exit_record(late.get(pid, status), asked))
    for folder in spec["layers"] + ([spec["scratch"]] if asked else []):
        wipe(folder)


def _become(spec: dict[str, Any], status_end: int) -> None:
    """Turn the forked child into the user's command; never returns."""
    told: dict[str, Any] = {"notes": []}
    try:
        os.setsid()
        _set_oom_score()
        told["notes"] = _isolate(spec)
        # After the name spaces: new credentials clear the signal (PR_SET_PDEATHSIG(2const)).
        _prctl(_PDEATHSIG, signal.SIGKILL)
        _open_streams(spec["out"])
        os.chdir(spec["cwd"])
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


def _isolate(spec: dict[str, Any]) -> list[str]:
    if spec["isolation"] == "none":
        return []
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.append(os.path.dirname(os.path.dirname(here)))
    if spec["isolation"] == "overlay":
        notes: list[str] = importlib.import_module("upshift.launch.overlay").isolate(
            spec["scratch"], spec["layers"], spec["cwd"]
        )
        return notes
    if (spec["cwd"] + "/").startswith(_REAL):
        raise OSError(errno.EPERM, "trials would write to the real", spec["cwd"])
    landlock = importlib.import_module("upshift.launch.landlock")
    refusal: str = landlock.restrict([spec["scratch"], "/dev", "/proc"])
    return [refusal] if refusal else []


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror} {error.filename or ''}".rstrip()
    return f"{type(error).__name__}: {error}"


def _set_oom_score() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(_OOM_SCORE)
    except OSError:
        return  # a courtesy, not a promise


def _open_streams(out: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.close(out)


def _end(status_end: int, told: dict[str, Any], code: int) -> None:
    os.write(status_end, (json.dumps(told) + "\n").encode())
    os._exit(code)


def _silence(*streams: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)
    os.close(null)


def _status(descriptor: int) -> dict[str, Any]:
    """Return what the child said before it became the user's command."""
    text = b""
    while part := os.read(descriptor, 65536):
        text += part
    os.close(descriptor)
    told: dict[str, Any] = {}
    for line in text.splitlines():
        told.update(json.loads(line))
    return told or {"failure": "the child died before it could start the command"}


def _watch(pid: int, commands: int, wake: int) -> tuple[int | None, bool]:
    """Wait for the command's end or for the wish to end it."""
    while True:
        ended = _reap()
        if pid in ended:
            return ended[pid], False
        ready, _, _ = select.select([commands, wake], [], [])
        if commands in ready and not os.read(commands, 4096):
            return None, True
        if wake in ready and set(os.read(wake, 4096)) & set(_ENDING):
            return None, True


def _end_all() -> dict[int, int]:
    """Kill and reap every descendant, those that clean up last; return how they ended."""
    ended: dict[int, int] = {}
    begun_s = spare_until_s = time.monotonic()
    while (now_s := time.monotonic()) < begun_s + _PATIENCE_S:
        ended.update(_reap())
        left = descendants(os.getpid())
        if not left:
            break
        others = [pid for pid in left if not _cleans(pid)]
        if others and now_s < begun_s + _PATIENCE_S / 4:
            spare_until_s = now_s + _CLEANING_S
        for pid in left:  # one that cleans up may have been stopped
            spared = now_s < spare_until_s and pid not in others
            _kill(pid, signal.SIGCONT if spared else signal.SIGKILL)
        time.sleep(0.002)
    return ended


def _cleans(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return False
    return any(name in command for name in _CLEANERS)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return  # it has just ended


def _reap() -> dict[int, int]:
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def _children(pid: int) -> list[int]:
    """Return the children of all threads of one process (proc_pid_task(5))."""
    if not os.path.exists("/proc/thread-self/children"):  # a kernel built without it
        return _children_by_scan(pid)
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    except OSError:
        return found  # it has just ended
    return found


def _children_by_scan(parent: int) -> list[int]:
    return [int(p) for p in os.listdir("/proc") if p.isdigit() and parent_of(p) == parent]


def parent_of(pid: str) -> int | None:
    """Return the parent of a process, 0 for one outside of our view, None where that is unknown."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _exit_record(status: int | None, asked: bool) -> dict[str, Any]:
    if status is None:
        return {"code": None, "signal": None, "killed": asked}
    code = os.waitstatus_to_exitcode(status)
    return {
        "code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "killed": asked,
    }


def _wake_on_signals() -> int:
    """Turn signals into bytes on a pipe, so that one `select` sees all that can happen."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    os.set_blocking(read_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_ENDING):
        if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return read_end


def _prctl(option: int, value: int) -> None:
    import ctypes  # here, since children that only look at processes need none of it

    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(option, value, 0, 0, 0)


def _report(descriptor: int, record: dict[str, Any]) -> None:
    try:
        os.write(descriptor, (json.dumps(record) + "\n").encode())
    except OSError:
        return  # nobody is left to read it


def _read_line(descriptor: int) -> bytes:
    text = bytearray()
    while not text.endswith(b"\n"):
        part = os.read(descriptor, 65536)
        if not part:
            raise SystemExit(1)
        text += part
    return bytes(text)


if __name__ == "__main__":
    main()
