"""Which OpenMP runtimes are loaded, and which threads of this process belong to each."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

from hasten.instrument.processes import text

_RUNTIME = re.compile(r"lib(gomp|iomp5|omp)[.-]")
_STACK_BYTES = 4096
_TASKS = Path("/proc/self/task")

Ranges = dict[str, tuple[tuple[int, int], ...]]


def runtimes(maps: str | None = None) -> Ranges:
    """Return the address ranges of each OpenMP runtime's code, by the path of its file."""
    found: dict[str, list[tuple[int, int]]] = {}
    for line in (text(Path("/proc/self/maps")) if maps is None else maps).splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and "x" in words[1] and _RUNTIME.match(os.path.basename(words[5])):
            low, high = words[0].split("-")
            found.setdefault(words[5], []).append((int(low, 16), int(high, 16)))
    return {path: tuple(ranges) for path, ranges in found.items()}


def members(ranges: Ranges) -> dict[int, str]:
    """Return the runtime of each thread that waits in one, by the kernel's thread id.

    OpenMP's threads have no names. One that waits for work was started by its runtime, so
    its stack holds a return address into that; one that is running now is not reported.
    """
    found: dict[int, str] = {}
    try:
        names = os.listdir(_TASKS)
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return found
    try:
        for name in names:
            words = _stack(memory, _TASKS / name)
            owners = [p for p, parts in ranges.items() if _any_within(words, parts)]
            if len(owners) == 1:
                found[int(name)] = owners[0]
    finally:
        os.close(memory)
    return found


def _stack(memory: int, task: Path) -> tuple[int, ...]:
    """Return the instruction and the stack of a thread that waits in the kernel."""
    try:
        told = (task / "syscall").read_text().split()  # number, arguments, stack, instruction
        if len(told) < 3:
            return ()
        # Read through the kernel: if the thread ends meanwhile, its stack gives an error there
        # and would give a crash here.
        stack = os.pread(memory, _STACK_BYTES, int(told[-2], 16))
    except (OSError, OverflowError):
        return ()
    count = len(stack) // 8
    return (int(told[-1], 16), *struct.unpack(f"{count}Q", stack[: count * 8]))


def _any_within(words: tuple[int, ...], parts: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= word < high for word in words for low, high in parts)
