"""A trial's own namespaces: mounts, processes, host name, shared memory, and users if need be.

Runs in the guard's child between `fork` and `exec`, so it uses only the standard library.

Sources: https://man7.org/linux/man-pages/man7/pid_namespaces.7.html,
https://man7.org/linux/man-pages/man7/user_namespaces.7.html,
https://man7.org/linux/man-pages/man7/ipc_namespaces.7.html
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os

SYS_ADMIN = 21
"""The capability that namespaces require without a user namespace."""
NOT_APART = "no name space of processes"
"""The message of an error after which the same without a process namespace may work."""
_NEWNS, _NEWUTS, _NEWIPC = 0x00020000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID = 0x10000000, 0x20000000
_BIND, _REC, _PRIVATE = 4096, 16384, 1 << 18
_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_CAPBSET_DROP = 24
_SYS_PTRACE = 19
# What else changes the machine: kernel modules, raw memory, the network, reboot, the clock.
_MACHINE = (16, 17, 12, 22, 25)
_SETTINGS = "/proc/sys"
_READ_ONLY, _REMOUNT = 1, 32
_QUEUES = "/dev/mqueue"
_WITHOUT = "HASTEN_WITHOUT"  # for tests: mechanisms that this machine is to lack


def lacks(mechanism: str) -> bool:
    """Whether a test wants this machine to be without `overlay`, `namespaces` or `landlock`."""
    return mechanism in os.environ.get(_WITHOUT, "").split(",")


def enter(*, apart: bool) -> None:
    """Enter the namespaces, `apart` also one for processes; mounts are private from here on.

    Only a child enters that of processes, so the caller goes on in a child, whose end is the end of
    every process in the namespace.

    Raises:
        OSError: the kernel refuses; with the message `NOT_APART` if `apart` may be the cause.
    """
    user, group = os.geteuid(), os.getegid()
    flags = _NEWNS | _NEWUTS | _NEWIPC | (_NEWPID if apart else 0)
    ours = has_capability(SYS_ADMIN)
    try:
        call("unshare", flags if ours else flags | _NEWUSER)
    except OSError as error:
        raise OSError(error.errno, NOT_APART) if apart else error from None
    if not ours:
        # Without `deny` the kernel refuses a gid map to an ordinary user (user_namespaces(7)).
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    if apart and os.fork():
        os._exit(0)
    mount("none", "/", "", _REC | _PRIVATE)
    if apart:
        try:  # in a container that masks parts of /proc, a user namespace cannot mount a new one
            mount("proc", "/proc", "proc", _NOSUID_NODEV_NOEXEC)
        except OSError as error:
            raise OSError(error.errno, NOT_APART) from None
    with contextlib.suppress(OSError):
        mount("mqueue", _QUEUES, "mqueue", _NOSUID_NODEV_NOEXEC)
    if ours:  # root owns the settings of the kernel, whatever its capabilities
        _protect_settings()


def _protect_settings() -> None:
    with contextlib.suppress(OSError):
        mount(_SETTINGS, _SETTINGS, "", _BIND)
        mount("none", _SETTINGS, "", _READ_ONLY | _REMOUNT | _BIND | _NOSUID_NODEV_NOEXEC)


def lower_rights() -> None:
    """Take away root's rights to look into processes outside, and to change the machine.

    `/proc/PID/root` of a process outside leads out of the overlay (ptrace(2)).
    """
    for capability in (_SYS_PTRACE, *_MACHINE):
        if has_capability(capability):
            call("prctl", _CAPBSET_DROP, capability, 0, 0, 0)


def has_capability(bit: int) -> bool:
    """Whether this process has a capability (capabilities(7))."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        effective = next((x.split()[1] for x in lines if x.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> bit & 1)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system, or change a mount."""
    call(
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        os.fsencode(options) or None,
        what=target,
    )


def call(name: str, *arguments: object, what: str = "") -> None:
    """Call a function of the C library that returns 0 on success.

    Raises:
        OSError: it does not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, f"{name}: {os.strerror(errno.ENOSYS)}", what)
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}", what)
