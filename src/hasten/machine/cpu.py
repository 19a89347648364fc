"""The processors: sockets, physical cores and instruction sets, as the kernel reports them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.kernel_files import id_list, number, text, whole
from hasten.records import Cpu

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DEVICES = "sys/devices/system/cpu"
# What torch's kernels ask for: x86 first, then Arm's names for the same ideas.
_OF_INTEREST = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
    "bf16",
    "i8mm",
)
# What compilers build for by -march=native.
_KIND = ("model name", "flags", "CPU implementer", "CPU part", "Features")


def online_ids(root: Path) -> frozenset[int]:
    """Return the ids of the logical CPUs that are online; empty where that is unknown."""
    listed = id_list(text(root / _DEVICES / "online"))
    if listed:
        return listed
    named = (whole(processor.get("processor")) for processor in _processors(root))
    return frozenset(cpu for cpu in named if cpu is not None)


def sibling_sets(root: Path) -> dict[int, frozenset[int]]:
    """Return, for each online logical CPU, the CPUs that share its physical core.

    The kernel's sibling list is the only safe source: `core_id` repeats between sockets, and
    siblings are neighbours (0,1) in many virtual machines but far apart (0,64) on most servers.
    Where one CPU has no list the whole answer is empty: half a topology would be a guess.
    """
    online = online_ids(root)
    found = {}
    for cpu in online:
        listed = id_list(text(root / _DEVICES / f"cpu{cpu}/topology/thread_siblings_list"))
        found[cpu] = listed & online
    return found if all(cpu in siblings for cpu, siblings in found.items()) else {}


def cores_touched(ids: frozenset[int], siblings: Mapping[int, frozenset[int]]) -> int | None:
    """Return how many physical cores a set of logical CPUs touches, None where unknown.

    >>> pair, other = frozenset({0, 1}), frozenset({2, 3})
    >>> cores_touched(frozenset({0, 1, 2}), {0: pair, 1: pair, 2: other, 3: other})
    2
    """
    if not ids or not ids <= siblings.keys():
        return None
    return len({siblings[cpu] for cpu in ids})


def read_cpu(root: Path, siblings: Mapping[int, frozenset[int]]) -> Cpu:
    """Read the processors beneath `root`."""
    online = online_ids(root)
    first = next(iter(_processors(root)), {})
    flags = set((first.get("flags") or first.get("Features") or "").split())
    return Cpu(
        model=first.get("model name") or None,
        socket_count=_sockets(root, online),
        core_count=cores_touched(frozenset(siblings), siblings),
        thread_count=len(online) or None,
        instruction_sets=tuple(name for name in _OF_INTEREST if name in flags),
    )


def processor_kind(root: Path) -> str | None:
    """Return what decides whether code compiled for another processor runs here.

    None where the kernel does not say.
    """
    first = next(iter(_processors(root)), {})
    known = [f"{name}: {first[name]}" for name in _KIND if first.get(name)]
    return "\n".join(known) if {"flags", "Features"} & first.keys() else None


def _sockets(root: Path, online: frozenset[int]) -> int | None:
    packages = {
        number(root / _DEVICES / f"cpu{cpu}/topology/physical_package_id") for cpu in online
    }
    # Arm virtual machines answer -1: the firmware did not say.
    known = packages and None not in packages and -1 not in packages
    return len(packages) if known else None


def _processors(root: Path) -> list[dict[str, str]]:
    """Return the paragraphs of /proc/cpuinfo, one per online logical CPU."""
    paragraphs = (text(root / "proc/cpuinfo") or "").split("\n\n")
    return [
        {key.strip(): value.strip() for key, _, value in pairs}
        for pairs in ([line.partition(":") for line in p.splitlines()] for p in paragraphs)
        if pairs
    ]
