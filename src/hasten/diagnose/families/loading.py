"""Waits for the loader: who makes the batches, how many workers, and how they are started."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from statistics import fmean, quantiles
from typing import TYPE_CHECKING

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import places_in, places_of
from hasten.diagnose.shares import is_worth_telling, ratio_of
from hasten.diagnose.waits import (
    busy_ratio,
    fetch_s,
    part_of,
    scaled,
    waiting,
    waits_s,
)
from hasten.records import LEAST_RATIO, Finding, Interval
from hasten.units import duration, percent, reaches, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.records import Place

_BUSY_RATIO = 0.7
_LEAST_GAIN_RATIO = 0.05
_IDLE_RATIO = 0.5
_ROOM_RATIO = 1.5
_LEAST_IDLE_CORES_RATIO = 0.3
_HAND_OVER_S = 0.0005
_SURPLUS_BYTES = 512 * 2**20
_LEAST_STARTS_COUNT = 3
_LEAST_START_S = 1.0
_LONG_START_S = 5.0
_CHEAP_ITEM_S = 0.0005
_LONG_WAIT_RATIO = 0.2
_NO_FORK_PYTHON = (3, 14)
_GUARD = (
    " Python 3.14 runs the script anew for each worker: what trains belongs below "
    "`if __name__ == '__main__'`."
)


def _best_s(case: Case, batch_s: float, wait_s: float) -> float:
    """Return the lowest possible seconds per batch with as many workers as there is room for.

    By the utilisation law (Denning and Buzen 1978, https://doi.org/10.1145/356733.356735) the
    loop cannot be faster than its own work, nor than the cores that it shares with workers.
    """
    cores = case.machine.budget.core_count
    used = case.profile.cores_ratio
    computed_s = batch_s * (1.0 if used is None else min(used, cores))
    return max(batch_s - wait_s + _HAND_OVER_S, computed_s / cores)


def _made_at(case: Case) -> tuple[Place, ...]:
    """Return the line on which the script creates its training loader."""
    return places_of(case.found.get("loading.made_at", ()))


def _few_workers(case: Case) -> Finding | None:
    """Find a loop that waits for batches while idle cores could make them."""
    loader, made_s, waits = case.traits.loader, fetch_s(case), waiting(case)
    if loader is None or not loader.is_map_style or made_s is None or waits is None:
        return None
    count, batch_s = loader.worker_count, case.step_s / loader.step_batch_count
    wait_s = waits.mid_ratio * batch_s
    used, cores = case.profile.cores_ratio, case.machine.budget.core_count
    busy = busy_ratio(case)
    if (
        used is None
        or cores - used < _LEAST_IDLE_CORES_RATIO
        or (busy is not None and busy < _BUSY_RATIO)
    ):
        return None
    gain_s = batch_s - _best_s(case, batch_s, wait_s)
    share = scaled(waits, max(0.0, min(1.0, gain_s / wait_s))) if wait_s else waits
    if share.mid_ratio < _LEAST_GAIN_RATIO:
        return None
    need = max(count + 1, ceil(made_s / max(batch_s - wait_s, made_s / cores)))
    starts_anew = reaches(case.machine.python_version, _NO_FORK_PYTHON)
    who = f"{count} busy workers" if count > 1 else "one busy worker" if count else "the loop"
    return Finding(
        share=share,
        message=(
            f"The loop waits for data {percent(waits.mid_ratio)} of the time: a batch takes "
            f"{duration(made_s)} to make in {who}, and the job uses {used:.1f} of {cores} cores."
        ),
        remedy=(
            f"Set num_workers={need} and persistent_workers=True in the DataLoader"
            f"{_unless_changed(case)}{'' if count or not starts_anew else _GUARD}{_doubt(case)}"
        ),
        places=_made_at(case),
    )


def _unless_changed(case: Case) -> str:
    """End a sentence that advises to keep workers: theirs is a copy of the dataset."""
    loader = case.traits.loader
    if loader is not None and loader.is_unchanged:
        return "."
    return ", unless the script changes its dataset between passes: workers that stay miss that."


def _doubt(case: Case) -> str:
    """Return why hasten itself would not let other processes make the items, as a sentence."""
    loader = case.traits.loader
    if loader is None or loader.is_pure is not False or not loader.unproven:
        return ""
    return f" hasten leaves that to you: {loader.unproven}."


def _idle_workers(case: Case) -> Finding | None:
    """Find workers that cost more time than they save the loop."""
    loader, made_s, waits = case.traits.loader, fetch_s(case), waiting(case)
    if loader is None or not loader.worker_count or made_s is None or waits is None:
        return None
    busy, count = busy_ratio(case), loader.worker_count
    if busy is None or busy > _IDLE_RATIO:
        return None
    # The wait common to nearly all steps: a busy machine delays single steps far more.
    wait_s = quantiles(waits_s(case), n=4)[0] / loader.step_batch_count
    waited_s = waits.mid_ratio * (case.step_s / loader.step_batch_count)
    lost_ratio = (wait_s - made_s) / waited_s if waited_s else 0.0
    share = scaled(waits, max(0.0, min(1.0, lost_ratio)))
    if share.mid_ratio >= LEAST_RATIO:
        run_s = sum(worker["run_s"] for worker in case.found.get("workers.each", ()))
        cpu_s = run_s / max(1, len(case.steps) * loader.step_batch_count)
        spent = f"; the workers spend {duration(cpu_s)} of CPU time on it" if cpu_s else ""
        return Finding(
            share=share,
            message=(
                f"A batch takes {duration(made_s)} to make, but the loop waits "
                f"{duration(wait_s)} to get it from {_workers(count)}{spent}."
            ),
            remedy=(
                "Set num_workers=0, without persistent_workers, prefetch_factor, timeout and "
                "multiprocessing_context: the main process makes such batches faster."
            ),
            places=_made_at(case),
        )
    return _surplus(case, count, busy)


def _surplus(case: Case, count: int, busy: float) -> Finding | None:
    """Find more workers than are needed, by the memory that they hold."""
    needed = max(1, ceil(_ROOM_RATIO * busy * count))
    each_bytes = case.found.get("workers.private_bytes")
    if each_bytes is None or (count - needed) * each_bytes < _SURPLUS_BYTES:
        return None
    return Finding(
        message=(
            f"{count} workers make batches {percent(busy)} of the time; "
            f"the {count - needed} that are not needed hold {size((count - needed) * each_bytes)}."
        ),
        remedy=f"Set num_workers={needed}.",
        places=_made_at(case),
    )


def _workers(count: float) -> str:
    return "a worker" if count == 1 else f"one of {count:.0f} workers"


def _per_sample_fetch(case: Case) -> Finding | None:
    """Find an in-memory dataset that is read row by row and collated again."""
    item_count, batch_s = case.found.get("loading.item_count"), fetch_s(case)
    plain = case.found.get("loading.collates_plainly")
    kinds = case.found.get("loading.kinds", {})
    outside = sum(kinds.get(kind, 0) for kind in ("storage", "store", "decode"))
    if not plain or not item_count or not batch_s or item_count < 2:
        return None
    loader = case.traits.loader
    if loader is None or not loader.is_map_style:
        return None
    if batch_s / item_count > _CHEAP_ITEM_S or outside > 0.1 * sum(kinds.values()):
        return None
    share = part_of(case, "lookup", "collate")
    if not is_worth_telling(share):
        return None
    dataset = loader.dataset or "the dataset"
    return Finding(
        share=share,
        message=(
            f"{dataset} is in memory, and a batch of {item_count:.0f} rows takes "
            f"{duration(batch_s)}: Python reads them one by one and stacks them again."
        ),
        remedy=(
            "Index the whole tensors once per batch, x[rows], or give the dataset "
            "__getitems__ and the loader a collate_fn that leaves its result alone."
        ),
        places=places_in(case, "loading.places", "lookup"),
    )


def _start_s(case: Case, start: Sequence[float]) -> float:
    """Return what a start cost beyond making the first batch."""
    _, begin_s, first_s, end_s = start
    return begin_s + max(0.0, first_s - (fetch_s(case) or 0.0)) + end_s


def _respawn_share(case: Case) -> Interval | None:
    """Return the share of the time, from start to start, that starting workers took."""
    starts = case.found.get("loading.starts", ())
    if len(starts) < _LEAST_STARTS_COUNT:
        return None
    walls = [after[0] - before[0] for before, after in pairwise(starts)]
    costs = [min(_start_s(case, start), w) for start, w in zip(starts, walls, strict=False)]
    return ratio_of(costs, walls) if min(walls) > 0 else None


def _worker_respawn(case: Case) -> Finding | None:
    """Find workers that end after each pass and are started again for the next."""
    share = _respawn_share(case)
    if not is_worth_telling(share):
        return None
    starts = case.found["loading.starts"]
    mean_s = fmean(_start_s(case, start) for start in starts[:-1])
    return Finding(
        share=share,
        is_of_all=True,
        message=(
            f"Workers were started {len(starts)} times, once for each pass over a loader, "
            f"which costs {duration(mean_s)} each time."
        ),
        remedy=(
            "Set persistent_workers=True in each DataLoader that is read more than once"
            f"{_unless_changed(case)}"
        ),
        places=_made_at(case),
    )


def _slow_worker_start(case: Case) -> Finding | None:
    """Find workers that are slow to start, by the wait for the first batch."""
    starts = case.found.get("loading.starts", ())
    count, method = case.found.get("loading.started_count"), case.found.get("loading.start_method")
    seen = [(_start_s(case, start), start[1]) for start in starts if start[2]]
    if not seen or not count:
        return None
    (start_s, begin_s), share = min(seen), _respawn_share(case)
    if share is not None and share.mid_ratio < LEAST_RATIO:
        return None
    if start_s < (_LONG_START_S if share is None else _LEAST_START_S):
        return None
    who = "one worker" if count == 1 else f"{count} workers"
    by = f" by {method}" if method else ""
    return Finding(
        share=share,
        is_of_all=True,
        message=(
            f"It takes {duration(start_s)} to start {who}{by}, "
            f"{duration(begin_s)} of it before they run at all."
        ),
        remedy=(
            "Keep what the script does on import below `if __name__ == '__main__'`, large objects "
            "out of the dataset, worker_init_fn short, and start fewer workers that persist."
        ),
        places=_made_at(case),
    )


def _data_wait(case: Case) -> Finding | None:
    """Find a long wait for data whose cause is not known; say what is known of it."""
    loader, waits = case.traits.loader, waiting(case)
    if loader is None or waits is None or waits.low_ratio < _LONG_WAIT_RATIO:
        return None
    kinds: Mapping[str, int] = case.found.get("loading.kinds", {})
    used, cores = case.profile.cores_ratio, case.machine.budget.core_count
    busy = "" if used is None else f". The job uses {used:.1f} of {cores} cores"
    return Finding(
        share=waits,
        message=(
            f"The loop waits for data {percent(waits.mid_ratio)} of the time"
            f"{_batch_said(case, kinds)}{busy}."
        ),
        remedy=_advised(case, kinds),
        places=places_in(case, "loading.places", *sorted(kinds, key=lambda kind: -kinds[kind]))[:3]
        or _made_at(case),
    )


def _batch_said(case: Case, kinds: Mapping[str, int]) -> str:
    """Say what a batch costs, as far as it is known."""
    loader, made_s = case.traits.loader, fetch_s(case)
    if loader is None or made_s is None:
        return ""
    item_count = case.found.get("loading.item_count")
    what = f"a batch of {item_count:.0f} samples" if item_count else "a batch"
    what = f"{what} of {loader.dataset}" if loader.dataset else what
    who = _workers(loader.worker_count) if loader.worker_count else "the loop itself"
    each = f", {duration(made_s / item_count)} a sample" if item_count else ""
    ratio = kinds.get("collate", 0) / max(1, sum(kinds.values()))
    collated = f", {percent(ratio)} of it in the collate function" if ratio else ""
    return f": {what} takes {who} {duration(made_s)}{each}{collated}"


def _advised(case: Case, kinds: Mapping[str, int]) -> str:
    """Return what may shorten a wait whose cause is not known for certain."""
    loader, used = case.traits.loader, case.profile.cores_ratio
    in_collate = kinds.get("collate", 0) > sum(kinds.values()) / 2
    cheaper = "Do less in the collate function" if in_collate else "Make each sample cheaper"
    if loader is not None and not loader.is_map_style and not loader.worker_count:
        return (
            f"{cheaper}, or set num_workers and let each worker read its own part of the stream "
            "(torch.utils.data.get_worker_info)."
        )
    if used is not None and case.machine.budget.core_count - used < _LEAST_IDLE_CORES_RATIO:
        return f"{cheaper}, or keep what is made: no core is idle that more workers could use."
    return f"{cheaper}, keep what is made, or try another num_workers and prefetch_factor."


_EXPLAINING = frozenset({
    "few-workers", "idle-workers", "per-sample-fetch", "worker-respawn", "slow-worker-start",
    "per-sample-transforms", "slow-decode", "repeated-decode", "random-access-store",
    "slow-storage", "nested-thread-pools", "worker-affinity",
})  # fmt: skip
SYMPTOMS = (
    Symptom(name="few-workers", find=_few_workers),
    Symptom(name="idle-workers", find=_idle_workers),
    Symptom(name="per-sample-fetch", find=_per_sample_fetch),
    Symptom(name="worker-respawn", find=_worker_respawn),
    Symptom(name="slow-worker-start", find=_slow_worker_start),
    Symptom(name="data-wait", find=_data_wait, explained_by=_EXPLAINING),
)
