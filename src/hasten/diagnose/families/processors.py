"""Too many threads, or too few CPUs."""

from __future__ import annotations

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.shares import is_worth_telling
from hasten.diagnose.waits import blamed_share, quota_share, read_rivals
from hasten.records import CONTENDED, LEAST_RATIO, Finding, Interval
from hasten.units import counted, percent, times


def _tried(case: Case) -> tuple[int, Interval, Interval] | None:
    """Return another thread count, how much faster steps were with it, and the share saved."""
    count = case.found.get("threads.setting")
    if count is None:
        return None
    ratios = (case.found[f"threads.{end}_ratio"] for end in ("low", "mid", "high"))
    low, mid, high = (float(ratio) for ratio in ratios)
    if low < 1 + LEAST_RATIO:
        return None
    faster = Interval(low_ratio=low, mid_ratio=mid, high_ratio=high)
    share = Interval(low_ratio=1 - 1 / low, mid_ratio=1 - 1 / mid, high_ratio=1 - 1 / high)
    return int(count), faster, share


def _cost_of_threads(
    case: Case, waits: Interval | None, *, steps: str, loop: str
) -> tuple[Interval, str, bool] | None:
    """Return what too many threads cost, a phrase that says so, and whether it is of all time.

    It comes from steps with fewer threads if these were tried, else from the loop's own `waits`
    for a CPU that these threads occupy, a share of all time. The words say which `steps` were
    faster, and whose `loop` waits.
    """
    if (tried := _tried(case)) is not None:
        count, faster, share = tried
        return share, f"with {count} {steps} {times(faster.mid_ratio)} faster.", False
    if not is_worth_telling(waits):
        return None
    return waits, f"{loop} waits for a CPU {percent(waits.mid_ratio)} of the time.", True


def _oversubscribed_threads(case: Case) -> Finding | None:
    """Find more intra-op threads than cores, by trying fewer or by the loop's own waits."""
    threads, budget = case.traits.thread_count, case.machine.budget
    if threads is None or budget.limited_by == "unknown" or threads <= budget.core_count:
        return None
    if case.traits.local_rank_count > 1:
        return None
    cost = _cost_of_threads(case, blamed_share(case, "team"), steps="steps were", loop="the loop")
    if cost is None:
        return None
    share, message, is_of_all = cost
    return Finding(
        share=share,
        is_of_all=is_of_all,
        message=f"torch runs {counted(threads, 'thread')} on "
        f"{counted(budget.core_count, 'core')}: {message}",
        remedy=f"Call torch.set_num_threads({budget.core_count}), or set OMP_NUM_THREADS.",
    )


def _small_ops_threads(case: Case) -> Finding | None:
    """Find operations too small to split between threads, by trying one thread.

    Where the loop's threads wait for CPUs that others occupy, one thread may be faster for that
    reason alone, so the gain must exceed all of these waits together.
    """
    threads, budget = case.traits.thread_count, case.machine.budget
    tried = _tried(case)
    if tried is None or threads is None or not 1 < threads <= budget.core_count:
        return None
    count, faster, share = tried
    wall_s = case.found.get("processors.wall_s")
    waits_ratio = case.found.get("processors.own_wait_s", 0.0) / wall_s if wall_s else 0.0
    if count != 1 or share.low_ratio <= waits_ratio:
        return None
    return Finding(
        share=share,
        message=f"With 1 thread in place of {threads} steps were {times(faster.mid_ratio)} faster "
        f"({times(faster.low_ratio)} to {times(faster.high_ratio)}): the operations are too small "
        "to be shared.",
        remedy="Call torch.set_num_threads(1), or give the model larger batches.",
    )


def _cpu_quota(case: Case) -> Finding | None:
    """Find steps that were throttled by the cgroup's CPU quota."""
    share = quota_share(case)
    if not is_worth_telling(share):
        return None
    budget = case.machine.budget
    quota = f" of {budget.quota_cores_ratio:g} cores" if budget.quota_cores_ratio else ""
    return Finding(
        share=share,
        is_of_all=True,
        message=f"The quota{quota} of the control group holds the loop up for "
        f"{percent(share.mid_ratio)} of the time.",
        remedy=f"Run at most {budget.core_count} threads and workers together, or raise the quota.",
    )


def _contended_machine(case: Case) -> Finding | None:
    """Find other processes on the CPUs of the loop."""
    share, rivals = blamed_share(case, "others"), read_rivals(case)
    if rivals is None or not is_worth_telling(share) or case.traits.local_rank_count > 1:
        return None
    tried, advised = _fewer_threads(case)
    return Finding(
        share=share,
        is_of_all=True,
        message=f"Other processes keep {rivals.others_ratio:.1f} of "
        f"{counted(int(case.found['processors.cpus_count']), 'CPU')} busy: the loop waits for one "
        f"{percent(share.mid_ratio)} of the time.{tried}",
        remedy="Stop what else runs here, give the job cores of its own, or let threads that wait "
        f"for others sleep sooner.{advised}",
    )


def _fewer_threads(case: Case) -> tuple[str, str]:
    """Say that fewer threads are faster beside others, and what to do where these stay.

    Empty where it is not so, or where another finding says it: then it is so without them, too.
    """
    tried, threads = _tried(case), case.traits.thread_count
    if tried is None or threads is None or tried[0] >= threads:
        return "", ""
    if _small_ops_threads(case) or _oversubscribed_threads(case):
        return "", ""
    count, faster, _ = tried
    return (
        f" Beside them steps were {times(faster.mid_ratio)} faster with {counted(count, 'thread')} "
        f"in place of {threads}.",
        f" While they stay, call torch.set_num_threads({count}): without them that may be slower.",
    )


def _ranks_oversubscribed(case: Case) -> Finding | None:
    """Find ranks that each start a thread for every core of the machine."""
    threads, ranks = case.traits.thread_count, case.traits.local_rank_count
    if threads is None or ranks < 2 or case.machine.budget.limited_by == "unknown":
        return None
    cores = case.machine.budget.cores_per_rank(ranks)
    if threads <= cores:
        return None
    waits = blamed_share(case, "team", "others")  # for its own threads, or other ranks
    cost = _cost_of_threads(case, waits, steps="this one was", loop="this one")
    if cost is None:
        return None
    share, message, is_of_all = cost
    return Finding(
        share=share,
        is_of_all=is_of_all,
        message=f"Each of {ranks} ranks runs {counted(threads, 'thread')} on "
        f"{counted(cores, 'core')}: {message}",
        remedy=f"Start the job with OMP_NUM_THREADS={cores}.",
    )


def _ranks_one_thread(case: Case) -> Finding | None:
    """Find ranks that torchrun limits to one thread although they have more cores."""
    tried, ranks = _tried(case), case.traits.local_rank_count
    cores = case.machine.budget.cores_per_rank(ranks)
    if tried is None or ranks < 2 or case.traits.thread_count != 1 or cores < 2:
        return None
    if case.found.get("processors.omp_num_threads") != "1":
        return None
    count, faster, share = tried
    return Finding(
        share=share,
        message=f"OMP_NUM_THREADS=1 leaves this rank 1 of its {counted(cores, 'core')}: with "
        f"{count} threads steps were {times(faster.mid_ratio)} faster.",
        remedy=f"Start the job with OMP_NUM_THREADS={cores}: torchrun sets 1 where nobody says.",
    )


SYMPTOMS = (
    Symptom(name="oversubscribed-threads", find=_oversubscribed_threads),
    Symptom(name="small-ops-threads", find=_small_ops_threads),
    Symptom(name="cpu-quota", find=_cpu_quota),
    Symptom(name=CONTENDED, find=_contended_machine),
    Symptom(name="ranks-oversubscribed", find=_ranks_oversubscribed),
    Symptom(name="ranks-one-thread", find=_ranks_one_thread),
)
