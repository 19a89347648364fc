"""Refuse the system calls that change a file without writing it, by seccomp.

Landlock has no right for modes, owners, times and extended attributes, so every call that changes
them is refused with EACCES, whatever the file; so are, where the trial has no namespace
for them, System V and POSIX messages, semaphores and shared memory, which would stay behind.
`redirect.py` does change modes, owners and times in the trial's scratch folder: it marks its calls
in the upper half of an argument of which the kernel reads the lower half only.

io_uring would bypass the filter, so it is reported as missing, as are the calls of other
architectures.

Sources: https://man7.org/linux/man-pages/man2/seccomp.2.html,
https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from typing import Any

from hasten.trials.isolation.namespaces import call

MARK = 0x75707368
"""The upper half of the first argument of a call that is permitted."""
# From the kernel's syscall tables; numbers from 424 on are the same everywhere.
_NUMBERS = {
    "x86_64": {
        "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92, "fchown": 93, "lchown": 94,
        "fchownat": 260, "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280,
        "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197,
        "lremovexattr": 198, "fremovexattr": 199, "ioctl": 16,
        "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66,
        "semtimedop": 220, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71,
        "mq_open": 240, "mq_unlink": 241,
    },
    "aarch64": {
        "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88,
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15,
        "fremovexattr": 16, "ioctl": 29,
        "shmget": 194, "shmctl": 195, "shmat": 196, "semget": 190, "semctl": 191,
        "semtimedop": 192, "semop": 193, "msgget": 186, "msgctl": 187, "msgrcv": 188,
        "msgsnd": 189, "mq_open": 180, "mq_unlink": 181,
    },
}  # fmt: skip
_NEW = {"fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469}
_IO_URING = (425, 426, 427)
_MESSAGES = ("shm", "sem", "msg", "mq_")
_MARKABLE = ("fchmod", "fchmodat", "utimensat", "fchown", "fchownat")
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
# What file systems are told by ioctl(2), mostly through a file that is open for reading: flags,
# versions, encryption, subvolumes. By the direction (to the kernel) and the letter of the request:
# f, v, X, and Btrfs's, of which only copies (FICLONE, FICLONERANGE) require write access.
_TO_FILE_SYSTEMS = (0x40006600, 0x40007600, 0x40005800, 0x40009400)
_DIRECTION_AND_LETTER = 0xC000FF00
_COPIES = (0x40049409, 0x4020940D)
# Instructions of classic BPF: load a word, mask it, compare, answer (linux/bpf_common.h).
_LOAD, _MASK, _EQUAL, _AT_LEAST, _ANSWER = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _SPEC_ALLOW, _NO_NEW_PRIVS = 1, 4, 38
_NUMBER, _ARCH, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # struct seccomp_data
_AT_FDCWD, _SYMLINK_NOFOLLOW = -100, 0x100


def refuse(*, messages: bool) -> None:
    """Deny these calls to this process and its children, those that share `messages`, too.

    Raises:
        OSError: the kernel has no such filter, or its numbers are not known here.
    """
    machine = os.uname().machine
    if machine not in _NUMBERS or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"no filter of system calls is known for {machine}")
    code = b"".join(_program(machine, messages))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    # Without _SPEC_ALLOW, older kernels slow down every branch in the trial.
    if libc.syscall(_SECCOMP[machine], _SET_MODE_FILTER, _SPEC_ALLOW, program) != 0:
        raise OSError(ctypes.get_errno(), "seccomp: the kernel refuses a filter of system calls")


def _program(machine: str, messages: bool) -> list[bytes]:
    numbers = {**_NUMBERS[machine], **_NEW}
    unknown = _answer(_ERROR | errno.ENOSYS)
    lines = [_load(_ARCH), _step(_EQUAL, _ARCHITECTURE[machine], 1, 0), unknown, _load(_NUMBER)]
    lines += [_step(_AT_LEAST, _X32, 0, 1), unknown]
    for number in _IO_URING:
        lines += [_step(_EQUAL, number, 0, 1), unknown]
    denied = _answer(_ERROR | errno.EACCES)
    for name, number in numbers.items():
        if name.startswith(_MESSAGES):
            lines += [_step(_EQUAL, number, 0, 1), denied] if messages else []
        elif name == "ioctl":
            then = [_load(_SECOND_ARGUMENT)]
            for request in _COPIES:
                then += [_step(_EQUAL, request, 0, 1), _answer(_ALLOW)]
            then += [_step(_MASK, _DIRECTION_AND_LETTER, 0, 0)]
            for kind in _TO_FILE_SYSTEMS:
                then += [_step(_EQUAL, kind, 0, 1), denied]
            then += [_answer(_ALLOW)]
            lines += [_step(_EQUAL, number, 0, len(then)), *then]
        elif name in _MARKABLE:
            then = [_load(_FIRST_ARGUMENT + 4), _step(_EQUAL, MARK, 0, 1), _answer(_ALLOW), denied]
            lines += [_step(_EQUAL, number, 0, len(then)), *then]
        else:
            lines += [_step(_EQUAL, number, 0, 1), denied]
    return [*lines, _answer(_ALLOW)]


def _load(offset: int) -> bytes:
    return struct.pack("HBBI", _LOAD, 0, 0, offset)


def _step(comparison: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("HBBI", comparison, if_true, if_false, value)


def _answer(value: int) -> bytes:
    return struct.pack("HBBI", _ANSWER, 0, 0, value)


# ---- the calls of redirect.py


def chmod(path: Any, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
    """Do as os.chmod does, marked."""
    if not follow_symlinks:
        raise NotImplementedError("chmod: follow_symlinks unavailable on this platform")
    _marked("fchmod", "fchmodat", path, dir_fd, ctypes.c_uint(mode))


def utime(
    path: Any, times: Any = None, *, ns: Any = None, dir_fd: int | None = None,
    follow_symlinks: bool = True,
) -> None:  # fmt: skip
    """Do as os.utime does, marked."""
    if ns is None and times is not None:
        ns = tuple(round(second * 10**9) for second in times)
    stamps = b"" if ns is None else struct.pack("4q", *(x for t in ns for x in divmod(t, 10**9)))
    flags = 0 if follow_symlinks else _SYMLINK_NOFOLLOW
    if isinstance(path, int):
        _call("utimensat", path, None, stamps or None, 0, name=path)
        return
    where = _AT_FDCWD if dir_fd is None else dir_fd
    _call("utimensat", where, os.fsencode(path), stamps or None, flags, name=path)


def chown(
    path: Any, user: int, group: int, *, dir_fd: int | None = None, follow_symlinks: bool = True
) -> None:
    """Do as os.chown does, marked."""
    flags = 0 if follow_symlinks else _SYMLINK_NOFOLLOW
    _marked("fchown", "fchownat", path, dir_fd, user, group, flags)


def lchown(path: Any, user: int, group: int) -> None:
    """Do as os.lchown does, marked."""
    chown(path, user, group, follow_symlinks=False)


def _marked(by_file: str, by_path: str, path: Any, dir_fd: int | None, *arguments: Any) -> None:
    if isinstance(path, int):
        _call(by_file, path, *arguments, name=path)
        return
    where = _AT_FDCWD if dir_fd is None else dir_fd
    _call(by_path, where, os.fsencode(path), *arguments, name=path)


def _call(call: str, first: int, *arguments: Any, name: Any) -> None:
    number = _NUMBERS[os.uname().machine][call]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    marked = ctypes.c_ulonglong(MARK << 32 | first & 0xFFFFFFFF)
    if libc.syscall(ctypes.c_long(number), marked, *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)


MARKED: dict[str, Any] = {
    "chmod": chmod, "fchmod": chmod, "utime": utime, "chown": chown, "fchown": chown,
    "lchown": lchown,
} if os.uname().machine in _NUMBERS else {}  # fmt: skip
"""The calls of redirect.py by their names in `os`."""
