"""The processes that descend from one: find them, wait for them, end them.

The guard and the keeper are subreapers, so a double fork hides nothing from them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import termios
import time

_PDEATHSIG, _SUBREAPER = 1, 36
MOST_REAPED = 256
PATIENCE_S = 20.0
"""How long a trial may take to end."""
# These clean up what killed processes left in shared memory once those are gone, then end.
_CLEANERS = (b"torch_shm_manager", b"multiprocessing.resource_tracker")
_CLEANING_S = 6.0  # torch's waits two seconds for somebody to come back, longer on a busy machine


def descendants(root: int) -> list[int]:
    """Return the living descendants of a process, without itself."""
    found: list[int] = []
    ahead = [root]
    while ahead:
        children = _children(ahead.pop())
        found += children
        ahead += children
    return found


def end_all() -> dict[int, int]:
    """Kill and reap every descendant, those that clean up last; return how they ended.

    Each is stopped as soon as it is found, so that none forks while another is looked for.
    """
    ended: dict[int, int] = {}
    begun_s = spare_until_s = time.monotonic()
    while (now_s := time.monotonic()) < begun_s + PATIENCE_S:
        left = _stopped(ended)
        if not left:
            break
        others = [pid for pid in left if not _cleans(pid)]
        if others and now_s < begun_s + PATIENCE_S / 4:
            spare_until_s = now_s + _CLEANING_S
        for pid in left:
            spared = now_s < spare_until_s and pid not in others
            kill(pid, signal.SIGCONT if spared else signal.SIGKILL)
        time.sleep(0.0 if others else 0.002)
    return ended


def _stopped(ended: dict[int, int]) -> list[int]:
    """Stop all descendants; return those that are left, and add to `ended` those that are not.

    Of a storm of forks thousands may have ended: they are reaped before anybody looks for their
    children.
    """
    left: list[int] = []
    ahead = _stop(_children(os.getpid()))
    ended.update(reap())
    while ahead:
        pid = ahead.pop()
        if pid not in ended:
            left.append(pid)
            ahead += _stop(_children(pid))
    return left


def _stop(pids: list[int]) -> list[int]:
    """Stop processes; one that leads a group with all of its group at once.

    Nobody in a group forks while that is stopped: of a storm, one would always get away otherwise.
    """
    for pid in pids:
        kill(-pid if _leads_a_group(pid) else pid, signal.SIGSTOP)
    return pids


def _leads_a_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except OSError:
        return False  # it has just ended


def _cleans(pid: int) -> bool:
    """Return whether a process cleans up, or may: one that is just being started has no name."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return False
    return not command or any(name in command for name in _CLEANERS)


def kill(pid: int, number: int) -> None:
    """Send a signal to a process, or to the group of a negative number, if it is still there."""
    try:
        os.kill(pid, number)
    except OSError:
        return  # it has just ended


def reap() -> dict[int, int]:
    """Return the status of each child that has ended since the last call, of `MOST_REAPED` at most.

    A storm of forks may end children faster than they are reaped: without a bound, who reaps them
    would do nothing else.
    """
    ended: dict[int, int] = {}
    while len(ended) < MOST_REAPED:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status
    return ended


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
        return int(_stat(pid)[1])
    except (IndexError, ValueError):
        return None


def cpu_s(root: int) -> float:
    """Return the CPU seconds of a process and its descendants, those that have ended included.

    The time of one that ends moves to the process that waits for it, so a difference of two
    readings is right whatever has started or ended in between.
    """
    ticks = 0
    for pid in (root, *descendants(root)):
        # user and system time, then those of the children that it has waited for
        ticks += sum(map(int, _stat(str(pid))[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def is_running(root: int) -> bool:
    """Return whether a process or one of its descendants runs, or waits for a core alone."""
    return any(_stat(str(pid))[:1] == ["R"] for pid in (root, *descendants(root)))


def _stat(pid: str) -> list[str]:
    """Return what follows the name in proc_pid_stat(5); nothing where the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def pid_within(pid: int) -> int:
    """Return the pid by which a process knows itself, whatever namespace it is in."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
            return int(next(x.split()[-1] for x in lines if x.startswith("NSpid:")))
    except (OSError, StopIteration):
        return pid


def leave_terminal() -> None:
    """Give up the terminal: nothing started from here can ask the user or write to the screen.

    A session of its own would do that too, and would change what is measured: where the kernel
    shares the CPUs among sessions (`sched_autogroup_enabled`, sched(7)), a trial beside a busy
    process would run many times faster or slower than the same script in the user's shell.
    """
    with contextlib.suppress(OSError):  # there is none, or no more
        terminal = os.open("/dev/tty", os.O_RDWR)
        try:
            fcntl.ioctl(terminal, termios.TIOCNOTTY)
        finally:
            os.close(terminal)


def become_subreaper() -> None:
    """Inherit the orphans among our descendants."""
    _prctl(_SUBREAPER, 1)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    _prctl(_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(option, value, 0, 0, 0)
