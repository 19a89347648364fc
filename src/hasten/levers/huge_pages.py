"""huge_pages: memory in 2 MB pages, of which a step needs and faults in far fewer.

Helps: steps over tensors of megabytes. The setting `torch` asks for them for each tensor of 2 MB
    or more, `glibc` for the whole heap.
Hurts: memory, which is rounded up to whole pages; the kernel clears more of it at a time, and has
    to move other memory first where it is fragmented. Under `torch` alone glibc may give such
    tensors back to the kernel sooner than others, and a step faults more.
Maths: exact. Only where the bytes live changes.
Source: https://github.com/pytorch/pytorch/pull/107697
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hasten.lever import COMPUTE_AND_DATA, Lever, in_shell, one_of
from hasten.records import Effect, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.lever import ScriptContext
    from hasten.records import Traits

_TUNABLE = "glibc.malloc.hugetlb"  # 1: the heap asks the kernel by madvise(2)
_GLIBC_SINCE = (2, 35)


def _has_tunable() -> bool:
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        return name == "glibc" and tuple(map(int, version.split("."))) >= _GLIBC_SINCE
    except (AttributeError, ValueError, OSError):
        return False


def settings(context: ScriptContext) -> tuple[str, ...]:
    """Return who may ask for huge pages, where the kernel gives them and faults cost enough."""
    if why_not(context):
        return ()
    has_heap = _has_tunable() and not _redundant_with("glibc", context.traits)
    return ("glibc", "torch") if has_heap else ("torch",)


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    mode = context.traits.huge_pages
    if mode is None:
        return "this kernel has no transparent huge pages"
    if mode not in ("madvise", "always"):
        return f"transparent huge pages are set to {mode} on this machine"
    return context.few_faults()


def _redundant_with(setting: str, traits: Traits) -> str:
    if setting == "glibc" and "malloc" in traits.preloaded:
        return "the heap is another allocator's"
    return ""


def env(env: Mapping[str, str], setting: str) -> Mapping[str, str]:
    """Add the variable that is asked for; what the user has set stays."""
    if setting == "torch":
        return {"THP_MEM_ALLOC_ENABLE": "1", **env}
    own = env.get("GLIBC_TUNABLES", "")
    if _TUNABLE in own:
        return env
    return {**env, "GLIBC_TUNABLES": f"{own}:{_TUNABLE}=1" if own else f"{_TUNABLE}=1"}


LEVER = Lever(
    name="huge_pages",
    phases=COMPUTE_AND_DATA,
    effect=Effect.EXACT,
    scope=Scope.LAUNCH,
    kind=str,
    validate=one_of("glibc", "torch"),
    settings=settings,
    gain_ratio=3.0,
    why_not=why_not,
    snippet=lambda setting: in_shell(env({}, setting)),
    promising=lambda _: False,
    redundant_with=_redundant_with,
    env=env,
)
