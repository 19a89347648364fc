"""Refuse every write outside a few folders, by Landlock: the safety net for `redirect.py`.

Python's own writes are redirected; what a native library or another program writes can't be, and
is refused here by the kernel before it happens. Reading and executing stay free. What Landlock has
no right for (modes, owners, times) is refused by `seccomp.py`.

Not covered: writes to files that were open before. Needs Linux 5.19: Landlock before that can't
rename between folders.

Sources: https://docs.kernel.org/userspace-api/landlock.html,
https://man7.org/linux/man-pages/man7/landlock.7.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct

from hasten.trials.isolation.mounts import SHM
from hasten.trials.isolation.namespaces import call, lacks

# The numbers are the same on all architectures (syscalls(2)).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_CHANGES = sum(1 << bit for bit in range(4, 13))  # REMOVE_DIR ... MAKE_SYM
_ON_FILES = _WRITE_FILE | _TRUNCATE
_SCOPE_SIGNALS = 1 << 1
_FIRST_WITH_REFER, _FIRST_WITH_TRUNCATE, _FIRST_WITH_SCOPES = 2, 3, 6
# What libraries keep in shared memory under names that scripts do not know.
_ANONYMOUS = re.compile(r"torch_|psm_|sem\.|nccl-|cuda\.shm|__KMP_REGISTERED_LIB_")


def version() -> int:
    """Return the Landlock ABI of the running kernel, 0 where there is none."""
    if lacks("landlock"):
        return 0
    try:
        return _call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def confine(scratch: str, *, apart: bool) -> list[str]:
    """Deny this process and its children all writes except to the scratch folder and devices.

    Where they are `apart`, shared memory is the trial's own.

    Returns:
        One sentence for what cannot be written though trials may need it.

    Raises:
        OSError: there is no Landlock, or it refuses the rules.
    """
    kept = [] if apart else _kept_in_memory()
    own = [entry.path for entry in os.scandir("/dev") if not entry.is_symlink()]
    devices = [path for path in own if path not in (SHM, "/dev/mqueue")]
    restrict([scratch, "/proc", *devices, *([] if kept else [SHM])])
    return [f"{SHM} is read-only in trials, since {kept[0]} lies there."] if kept else []


def _kept_in_memory() -> list[str]:
    """Return files of the user's in shared memory, which trials could change."""
    try:
        entries = list(os.scandir(SHM))
    except OSError:
        return []
    named = [entry for entry in entries if not _ANONYMOUS.match(entry.name)]
    return [entry.name for entry in named if os.access(entry.path, os.W_OK)]


def restrict(paths: list[str]) -> None:
    """Deny this process and its children all writes that are not beneath `paths`.

    Where Landlock covers signals (Linux 6.12), those to processes outside are refused, too.

    Raises:
        OSError: there is no Landlock, or it refuses the rules.
    """
    abi = version()
    if abi < _FIRST_WITH_REFER:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock that would do")
    rights = _WRITE_FILE | _CHANGES | _REFER | (_TRUNCATE if abi >= _FIRST_WITH_TRUNCATE else 0)
    attribute = struct.pack("Q", rights)
    if abi >= _FIRST_WITH_SCOPES:  # no network rights are restricted
        attribute = struct.pack("QQQ", rights, 0, _SCOPE_SIGNALS)
    ruleset = _call(_CREATE_RULESET, attribute, ctypes.c_size_t(len(attribute)), 0)
    for path in paths:
        if os.path.exists(path):
            _allow(ruleset, path, rights)
    # Without this, ordinary users may not restrict themselves: it could fool set-user-id programs.
    call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH)
    # struct landlock_path_beneath_attr is packed: 12 bytes.
    wanted = rights if os.path.isdir(path) else rights & _ON_FILES
    rule = struct.pack("=Qi", wanted, descriptor)
    _call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result: int = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return result
