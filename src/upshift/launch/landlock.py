"""Refuse every write outside a few folders, by Landlock: the net under `redirect.py`.

Python's own writes are redirected; what a native library or another program writes can't be, and
is refused here by the kernel before it happens. Reading and executing stay free.

Not covered: changes of modes, owners and times by native code (Landlock has no right for them),
writes to files that were open before, and kernels older than 5.19 (no Landlock, or one that can't
rename between folders); there only Python's own writes are kept away from the user's files.

Sources: https://docs.kernel.org/userspace-api/landlock.html,
https://man7.org/linux/man-pages/man7/landlock.7.html
"""

from __future__ import annotations

import ctypes
import os
import struct

# The numbers are the same on all architectures (syscalls(2)).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_CHANGES = sum(1 << bit for bit in range(4, 13))  # REMOVE_DIR ... MAKE_SYM
_ON_FILES = _WRITE_FILE | _TRUNCATE
_FIRST_WITH_REFER, _FIRST_WITH_TRUNCATE = 2, 3


def version() -> int:
    """Return the Landlock ABI of the running kernel, 0 where there is none."""
    found: int = _libc().syscall(_CREATE_RULESET, None, 0, _VERSION)
    return max(0, found)


def restrict(paths: list[str]) -> str:
    """Refuse this process and its children all writes that are not beneath `paths`.

    Returns:
        Empty when it holds, else one sentence that says what is not covered.

    Raises:
        OSError: Landlock is there, but refuses the rules.
    """
    abi = version()
    if abi < _FIRST_WITH_REFER:
        return "Without Landlock, writes by native libraries and programs reach the real files."
    rights = _WRITE_FILE | _CHANGES | _REFER | (_TRUNCATE if abi >= _FIRST_WITH_TRUNCATE else 0)
    attribute = struct.pack("Q", rights)
    ruleset = _call(_CREATE_RULESET, attribute, ctypes.c_size_t(len(attribute)), 0)
    for path in paths:
        if os.path.exists(path):
            _allow(ruleset, path, rights)
    # Without it an ordinary user may not restrict itself: a set-user-id program could be fooled.
    if _libc().prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return ""


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH)
    # struct landlock_path_beneath_attr is packed: 12 bytes.
    wanted = rights if os.path.isdir(path) else rights & _ON_FILES
    rule = struct.pack("=Qi", wanted, descriptor)
    _call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    os.close(descriptor)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _call(number: int, *arguments: object) -> int:
    result: int = _libc().syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return result
