"""How many worker processes are worth a trial, judging by one profile.

The law is the utilisation law of operational analysis: no station of a queueing network is busy
for more than 100% of the time, so a loop takes no less per batch than its slowest station needs.
There are three: the loop itself, `n` workers together, and the cores that both share. Source:
Denning and Buzen 1978, https://doi.org/10.1145/356733.356735.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from hasten.loader.proof.verdict import ASSUMPTION
from hasten.records import Phase
from hasten.units import percent

if TYPE_CHECKING:
    from hasten.lever import ScriptContext

HAND_OVER_S = 0.0003
"""Seconds that the loop spends taking a batch from a worker, unless a profile has shown them."""

LEAST_WAIT_RATIO = 0.02
_HEADROOM_RATIO = 1.15  # batches vary: workers that are always busy are late now and then
_ALIKE_RATIO = 1.01
_LEAST_CPU_RATIO = 1 / 16
_SATURATED_RATIO = 0.9
_LONG_PASS_S = 10.0
_NEAR_RATIO = 1.1
_BUSY_RATIO = 0.5
_CHAIN_COUNT = 1  # the main process's random numbers go from batch to batch
_WORKING_RATIO = 0.8  # of the time of threads that share operations; they spin in the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a profile says about a loop and its loader, per batch.

    Attributes:
        fetch_s: seconds in which one process makes a batch.
        fetch_cpu_ratio: CPU seconds in each of those; the rest is waiting, mostly for storage.
        rest_s: seconds of the step that are not DATA.
        core_count: cores that the job may use.
        rest_core_count: cores that the rest of the step keeps busy.
        hand_over_s: seconds of the loop to take a batch from a worker.
        most_count: the most workers that fit into memory.
    """

    fetch_s: float
    fetch_cpu_ratio: float
    rest_s: float
    core_count: int
    rest_core_count: float = 1.0
    hand_over_s: float = HAND_OVER_S
    most_count: int = 1 << 10

    def predict(self, count: int) -> float:
        """Return the seconds per batch with `count` workers, by the utilisation law.

        It is a lower bound: queues between stations and other load on the machine add to it. With
        no workers, the loop itself fetches.

        >>> load = Load(
        ...     fetch_s=3.0, fetch_cpu_ratio=1.0, rest_s=1.0, core_count=2, hand_over_s=0.0
        ... )
        >>> [load.predict(count) for count in range(4)]
        [4.0, 3.0, 2.0, 2.0]
        >>> replace(load, fetch_cpu_ratio=0.1).predict(3)
        1.0
        """
        if not count:
            return self.rest_s + self.fetch_s
        computed_s = self.rest_s * min(self.rest_core_count, self.core_count)
        computed_s += self.fetch_s * self.fetch_cpu_ratio
        return max(
            self.rest_s + self.hand_over_s, self.fetch_s / count, computed_s / self.core_count
        )

    @property
    def limit(self) -> int:
        """The most workers that can be of use: each one that computes keeps a core busy."""
        ratio = max(self.fetch_cpu_ratio, _LEAST_CPU_RATIO)
        return max(1, min(ceil(self.core_count / ratio), self.most_count))


def fitting_count(load: Load) -> int:
    """Return n*: the fewest workers beyond which more would not help; 0 if none help.

    Without a limit, that is the time of a fetch over the rest of a step, with some headroom.
    """
    late = replace(load, fetch_s=_HEADROOM_RATIO * load.fetch_s)
    best_s = late.predict(load.limit)
    if load.predict(0) <= load.predict(load.limit):
        return 0
    counts = range(1, load.limit + 1)
    return next(n for n in counts if late.predict(n) <= _ALIKE_RATIO * best_s)


def around(load: Load) -> tuple[int, ...]:
    """Return n* and the two probes around it, as far as they can be of use."""
    best = fitting_count(load)
    if not best:
        return (0, 1) if load.predict(1) <= _NEAR_RATIO * load.predict(0) else (0,)
    more = min(best + max(2, best // 4), load.limit)
    fewer = best - max(1, best // 4)
    if not fewer and load.predict(0) > _NEAR_RATIO * load.predict(best):
        return tuple(dict.fromkeys((best, more)))
    return tuple(dict.fromkeys((best, fewer, more)))


def read_load(context: ScriptContext) -> Load | None:
    """Return the load that a script's profile shows, None if it does not answer the question."""
    loader, seen = context.traits.loader, context.baseline
    if loader is None or not loader.is_map_style or seen is None:
        return None
    own = loader.worker_count
    cpu_ratio = 1.0 if loader.fetch_cpu_ratio is None else loader.fetch_cpu_ratio
    step_s = sum(s for phase, s in seen.phase_s.items() if Phase(phase).in_step)
    batch_s = step_s / loader.step_batch_count
    wait_s = batch_s * seen.share_ratio(Phase.DATA)
    rest_s = batch_s - wait_s
    fetch_s = loader.fetch_s
    if fetch_s is None:
        # Workers that the loop waits for are always busy, so each takes this long per batch.
        fetch_s = own * batch_s if own else wait_s
    cores = context.machine.budget.core_count
    if own and seen.cores_ratio is not None and seen.cores_ratio >= _SATURATED_RATIO * cores:
        # They may be waiting for a core: only their computing time is known for sure.
        fetch_s, cpu_ratio = fetch_s * cpu_ratio, 1.0
    busy = 1.0
    if seen.cores_ratio is not None and rest_s > 0:
        busy = (seen.cores_ratio * batch_s - fetch_s * cpu_ratio) / rest_s
    keeps_up = own and fetch_s < own * rest_s / _HEADROOM_RATIO and not _passes_are_short(context)
    return Load(
        fetch_s=fetch_s,
        fetch_cpu_ratio=cpu_ratio,
        rest_s=rest_s,
        core_count=cores,
        rest_core_count=min(max(busy, 0.1), cores),
        hand_over_s=wait_s if keeps_up else HAND_OVER_S,
        most_count=max(own, 1, _fitting_memory(context)),
    )


def unproven(context: ScriptContext, *, repeats_only: bool = False) -> str:
    """Say what forbids making batches elsewhere; empty if nothing does.

    Args:
        context: what the search knows.
        repeats_only: they are made where the script makes them, at most twice.
    """
    loader = context.traits.loader
    if ASSUMPTION in context.assumed or loader is None or loader.is_pure is None:
        return ""
    if loader.is_pure and (repeats_only or loader.is_unchanged):
        return ""
    return f"{loader.unproven}; --assume {ASSUMPTION} permits it all the same"


def counts(context: ScriptContext) -> tuple[int, ...]:
    """Return the worker counts to try, the most promising first.

    Those around n*, and the script's own number if its workers end with each pass: under a
    lever they stay. Workers that the script itself keeps are never reduced in number.
    """
    load, loader = read_load(context), context.traits.loader
    if load is None or loader is None or _is_waited_for_little(context):
        return ()
    own = loader.worker_count
    if unproven(context, repeats_only=own > 0):
        return ()
    if own and unproven(context):  # they restart with each pass, as without hasten
        # Without any is not permitted; with fewer, less has to be started.
        fewer = dict.fromkeys(max(1, count) for count in around(load))
        return tuple(count for count in fewer if count != own)
    if not own or loader.is_persistent:
        return tuple(count for count in around(load) if count > own)
    return tuple(dict.fromkeys((*around(load), own)))


def replayable_counts(context: ScriptContext) -> tuple[int, ...]:
    """Return the worker counts to try that can make the script's own batches."""
    loader, found = context.traits.loader, counts(context)
    if found and loader is not None and loader.draws and not loader.worker_count:
        found = (_CHAIN_COUNT,)
    return tuple(count for count in found if replayable(context, count))


def threads_beside(context: ScriptContext) -> int | None:
    """Return how many threads the loop keeps if workers get their own cores, None for all.

    A multithreaded operation ends when its last thread does: one core that a busy worker also
    uses makes all threads wait, for up to as long again.
    """
    load, seen = read_load(context), context.baseline
    workers = next(filter(None, replayable_counts(context)), 0)
    if load is None or seen is None or not workers or context.traits.worker_count:
        return None
    busy_count = load.fetch_s * load.fetch_cpu_ratio / load.predict(workers)
    count = max(1, int(load.core_count - busy_count))
    if count >= (context.traits.thread_count or 0) or seen.share_ratio(Phase.TRANSFER):
        return None
    alone_ratio = max(1.0, _WORKING_RATIO * load.rest_core_count / count)
    is_crowded = busy_count >= _BUSY_RATIO and alone_ratio <= 1.0 + min(1.0, busy_count)
    return count if is_crowded else None


def speedup_of(context: ScriptContext, count: int) -> float | None:
    """Return how many times faster the whole step should be, None if that cannot be known.

    It holds for the script as it was profiled: a lever that shortens the step or the fetching
    changes it.
    """
    load = read_load(context)
    if load is None or context.baseline is None:
        return None
    data_ratio = context.baseline.share_ratio(Phase.DATA)
    whole_s = load.rest_s / max(1e-9, 1 - data_ratio)
    return whole_s / max(1e-9, load.predict(count))


def replayable(context: ScriptContext, count: int) -> bool:
    """Return whether `count` workers can make exactly the batches that the script makes."""
    loader = context.traits.loader
    if loader is None:
        return True
    if loader.worker_count:
        return count <= loader.worker_count or not loader.draws
    chains = count <= _CHAIN_COUNT and not context.traits.loop_draws
    return not loader.has_own_order and (chains or not loader.draws)


def why_none(context: ScriptContext) -> str:
    """Say why no number of workers is worth a trial."""
    loader = context.traits.loader
    if loader is None:
        return "the loop takes its batches from no DataLoader"
    if context.baseline is None:
        return "there is no profile yet that says how long a batch takes"
    if not loader.is_map_style:
        return "an iterable dataset splits its stream by worker: its samples would change"
    if why := unproven(context, repeats_only=loader.worker_count > 0):
        return why
    if _is_waited_for_little(context):
        share = percent(context.baseline.share_ratio(Phase.DATA))
        return f"the loop waits for its loader only {share} of the time: it is not the bottleneck"
    if not loader.worker_count:
        return "a batch is made about as fast as a worker could hand it over"
    return "the script's own number of workers is the only one that fits this machine"


def _is_waited_for_little(context: ScriptContext) -> bool:
    assert context.baseline is not None  # noqa: S101  # asked for by the callers
    little = context.baseline.share_ratio(Phase.DATA) < LEAST_WAIT_RATIO
    return little and not _passes_are_short(context)


def _passes_are_short(context: ScriptContext) -> bool:
    """Return whether starting workers may cost time that the profile has not seen.

    A profile that covered a whole pass has seen it, as DATA.
    """
    loader, seen = context.traits.loader, context.baseline
    if loader is None or not loader.worker_count or loader.is_persistent:
        return False
    if not loader.pass_batch_count or seen is None:
        return False
    step_count = loader.pass_batch_count / loader.step_batch_count
    return seen.step_count < step_count and step_count * seen.step_s < _LONG_PASS_S


def _fitting_memory(context: ScriptContext) -> int:
    """Return how many workers fit in memory if each ends up as a full copy of the process."""
    available_bytes = context.machine.memory.available_bytes
    used_bytes = context.baseline.peak_rss_bytes if context.baseline else None
    if available_bytes is None or not used_bytes:
        return 1 << 10
    return max(1, available_bytes // used_bytes)
