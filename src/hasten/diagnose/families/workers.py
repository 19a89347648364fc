"""Loader workers that compete for CPUs, for memory, or for shared memory."""

from __future__ import annotations

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.shares import is_worth_telling
from hasten.diagnose.waits import starved_share
from hasten.records import Finding
from hasten.units import counted, percent, size

_POOL_RATIO = 1.4  # the thread that sends batches alternates with the one that makes them
_LEAST_COPIED_BYTES = 4 << 20
_DANGEROUS_RATIO = 0.05
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def _nested_thread_pools(case: Case) -> Finding | None:
    """Find workers that run several threads at once, by the cost of waiting for CPUs."""
    each = case.found.get("workers.each", ())
    if len(each) < 2 or case.traits.worker_count == 1:
        return None
    threads_ratio = case.found["workers.busy_ratio"]
    share = starved_share(case)
    if threads_ratio < _POOL_RATIO or not is_worth_telling(share):
        return None
    return Finding(
        share=share,
        message=f"Each loader worker runs {threads_ratio:.1f} threads at once on "
        f"{_cpus(case)}: waiting for a CPU takes {percent(share.mid_ratio)} of a step.",
        remedy="Limit the libraries in the workers to one thread: "
        "cv2.setNumThreads(0) or threadpoolctl.threadpool_limits(1) in worker_init_fn.",
    )


def _cpus(case: Case) -> str:
    cpus_count = len({cpu for worker in case.found["workers.each"] for cpu in worker["cpus"]})
    if not cpus_count:
        cpus_count = case.machine.budget.core_count
    return counted(cpus_count, "CPU")


def _worker_affinity(case: Case) -> Finding | None:
    """Find workers pinned to fewer CPUs than the job has, and fewer than there are workers."""
    each = case.found.get("workers.each", ())
    allowed = {cpu for worker in each for cpu in worker["cpus"]}
    given_count = case.machine.budget.affinity_count
    count = case.traits.worker_count or len(each)  # `each` has one more for each new start
    if given_count is None or not allowed or len(allowed) >= min(count, given_count):
        return None
    share = starved_share(case)
    if not is_worth_telling(share):
        return None
    bound = [name for name in _BINDING if name in case.traits.openmp_variables]
    return Finding(
        share=share,
        message=f"{counted(count, 'loader worker')} may use {_cpus(case)} of the {given_count} "
        f"that the job has: waiting for them takes {percent(share.mid_ratio)} of a step.",
        remedy=f"Unset {' and '.join(bound)}."
        if bound
        else "Call os.sched_setaffinity(0, ...) with the mask of the job in worker_init_fn.",
    )


def _copy_on_write_growth(case: Case) -> Finding | None:
    """Find workers that copy the main process's memory just by reading it."""
    copied_bytes = case.found.get("workers.copied_bytes")
    inherited_bytes = case.found.get("workers.inherited_bytes")
    available_bytes = case.machine.memory.available_bytes
    if copied_bytes is None or inherited_bytes is None or not available_bytes or not case.steps:
        return None
    # Batches move between private and shared memory as they are passed on: leave them out.
    copied_bytes -= _under_way_bytes(case)
    most_bytes = inherited_bytes + max(0, copied_bytes)
    count = case.found["workers.copiers_count"]
    object_bytes = case.found.get("workers.object_bytes")
    if object_bytes is not None:  # else there are many
        most_bytes = min(most_bytes, object_bytes * count)
    if copied_bytes < _LEAST_COPIED_BYTES or most_bytes < _DANGEROUS_RATIO * available_bytes:
        return None
    return Finding(
        message=f"{count} loader workers copied {size(copied_bytes)} of the main process' memory "
        f"in {len(case.steps)} steps; up to {size(most_bytes)} if they go on, and "
        f"{size(available_bytes)} are available.",
        remedy="Keep the samples in arrays or tensors, not in lists and dicts of Python objects.",
    )


def _under_way_bytes(case: Case) -> int:
    """Return the most bytes of batches that the workers hold ready at once."""
    loader = case.traits.loader
    return case.traits.cycle_count * loader.batch_bytes if loader and loader.worker_count else 0


def _shm_too_small(case: Case) -> Finding | None:
    """Find shared memory with too little free for another set of batches under way."""
    free_bytes, held_bytes = case.found.get("workers.shm_free_bytes"), _under_way_bytes(case)
    if free_bytes is None or not held_bytes or free_bytes >= held_bytes:
        return None
    total_bytes = case.machine.memory.shm_bytes
    whole = f" of {size(total_bytes)}" if total_bytes else ""
    return Finding(
        message=f"/dev/shm had {size(free_bytes)}{whole} free, and the loader's workers hold up to "
        f"{size(held_bytes)} in it: a second loader like this one dies of a bus error.",
        remedy="Start the container with --shm-size=8g or --ipc=host, or lower prefetch_factor.",
    )


SYMPTOMS = (
    Symptom(name="nested-thread-pools", find=_nested_thread_pools),
    Symptom(name="worker-affinity", find=_worker_affinity),
    Symptom(name="copy-on-write-growth", find=_copy_on_write_growth),
    Symptom(name="shm-too-small", find=_shm_too_small),
)
