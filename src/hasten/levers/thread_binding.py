"""thread_binding: keep each OpenMP thread on a physical core of its own.

Helps: jobs with all cores of their mask to themselves, where the kernel moves threads about or
    puts two of them on the two hardware threads of one core.
Hurts: loader workers, other ranks and neighbours on the same cores: a bound thread cannot make
    way, and all others wait for it at the end of every operation.
Maths: exact. Only where the threads run changes.
Source: https://github.com/pytorch/pytorch/issues/99625
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.kernel_files import id_list, number, text
from hasten.lever import COMPUTE, Lever, one_of, undo_all, unless
from hasten.records import Effect, Phase, Scope
from hasten.torch_threads import in_team

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.lever import ScriptContext, Training

_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_CPUS, _TASKS = Path("/sys/devices/system/cpu"), Path("/proc/self/task")
_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_EVERY_COUNT = 64  # root calls between two looks at the team, after the first few


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    budget, threads = context.machine.budget, context.traits.thread_count
    bound = [name for name in _BINDING if name in context.traits.openmp_variables]
    cores = budget.affinity_core_count
    if cores is None:
        return "which cores the job may use is not known here"
    if cores == 1:
        return "the job's mask covers 1 core"
    if budget.core_count < cores:
        return (
            f"the job may use {budget.core_count} of the {cores} cores in its mask "
            f"({budget.limited_by}), and none of them is its own"
        )
    if bound:
        return f"the environment binds the threads already: {' and '.join(bound)}"
    if threads is None:
        return "the threads of the script are not known"
    return "torch uses 1 thread" if threads == 1 else context.off_cpu()


@lru_cache(maxsize=1)
def _cores(mask: frozenset[int]) -> list[frozenset[int]]:
    """Return the logical CPUs of each core in a mask, socket by socket; none if unknown."""
    found = {}
    for cpu in mask:
        topology = _CPUS / f"cpu{cpu}" / "topology"
        siblings = id_list(text(topology / "thread_siblings_list"))
        socket = number(topology / "physical_package_id")
        if not siblings or socket is None:
            return []
        found[siblings & mask] = socket
    return sorted(found, key=lambda core: (found[core], min(core)))


def _team(count: int) -> list[int]:
    """Return the kernel's ids of the OpenMP threads that share an operation of this thread.

    Nothing but themselves can tell: they have no names, and other pools run beside them.
    """
    found: list[int] = []
    in_team(lambda: found.append(threading.get_native_id()), count)
    return found


class _Binding:
    """The threads that are bound, and the masks that they had."""

    def __init__(self) -> None:
        self._masks: dict[int, set[int]] = {}
        self._seen_count = 0

    def look(self) -> None:
        """Bind at the second root call, when the team is there, and look again now and then.

        Operations that take fewer threads end the others, and the next large one starts new ones.
        """
        self._seen_count += 1
        early = (self._seen_count - 1).bit_count() == 1 and self._seen_count <= _EVERY_COUNT
        if early or self._seen_count % _EVERY_COUNT == 0:
            self.bind()

    def bind(self) -> None:
        """Give every thread of the team but this one a core of its own.

        This one stays free: new threads and new processes start with its mask.
        """
        import torch

        count = torch.get_num_threads()
        cores = _cores(frozenset(os.sched_getaffinity(0)))
        if not 1 < count <= len(cores):
            self.release()
            return
        if len(os.listdir(_TASKS)) < count:  # starting a team is left to torch
            return
        others = sorted(set(_team(count)) - {threading.get_native_id()})
        for thread, core in zip(others, _turned(cores, count)[1:], strict=False):
            with suppress(OSError):  # it has ended
                self._masks.setdefault(thread, os.sched_getaffinity(thread))
                os.sched_setaffinity(thread, core)

    def release(self) -> None:
        """Give the threads that still run their masks back."""
        for thread, mask in self._masks.items():
            if (_TASKS / str(thread)).exists():
                with suppress(OSError):
                    os.sched_setaffinity(thread, mask)
        self._masks.clear()


def _turned(cores: Sequence[frozenset[int]], count: int) -> list[frozenset[int]]:
    ranks = [os.environ[name] for name in _RANKS if os.environ.get(name, "").isdecimal()]
    first = int(ranks[0]) * count % len(cores) if ranks else 0
    return [*cores[first:], *cores[:first]]


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Bind the threads once they are there."""
    binding = _Binding()

    def enter(phase: Phase) -> None:
        if phase is Phase.FORWARD:
            binding.look()

    return undo_all([training.on_phase(enter), binding.release])


LEVER = Lever(
    name="thread_binding",
    phases=COMPUTE,
    effect=Effect.EXACT,
    scope=Scope.PROCESS,
    kind=str,
    validate=one_of("cores"),
    settings=unless(why_not, "cores"),
    gain_ratio=1.5,
    shares_cpus=lambda _: True,
    why_not=why_not,
    snippet=lambda _: (
        "OMP_PROC_BIND=close python ...  # in the shell; loader workers inherit one core"
    ),
    promising=lambda context: False,
    settle_count=3,
    apply=apply,
    run_only=(
        "OMP_PROC_BIND would bind the main thread, too, and every loader worker with it to one core"
    ),
)
