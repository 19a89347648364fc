"""How many workers are worth a trial: the law as a table, and what it says of scenes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.lever import ScriptContext
from hasten.loader import worker_counts
from hasten.loader.worker_counts import Load, around, counts, fitting_count
from hasten.records import Phase
from hasten.testing import LAPTOP, SERVER, fed, sample_profile

MS = 1e-3
TIMES_S = st.floats(1e-5, 10.0)


def load(fetch_ms, cpu_ratio=1.0, rest_ms=10.0, cores=2, **more):
    return Load(
        fetch_s=fetch_ms * MS, fetch_cpu_ratio=cpu_ratio, rest_s=rest_ms * MS, core_count=cores,
        hand_over_s=0.3 * MS, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "fetch_ms", "cpu_ratio", "cores", "step_ms"),
    [
        (0, 30, 1.0, 2, 40),  # one after the other
        (1, 30, 1.0, 2, 30),  # the worker is the slowest
        (2, 30, 1.0, 2, 20),  # 40 ms of work for two cores
        (8, 30, 1.0, 2, 20),
        (4, 30, 1.0, 8, 10),  # hidden
        (4, 30, 0.1, 2, 10),  # who waits for storage needs no core
        (4, 80, 0.1, 2, 20),
        (1, 1, 1.0, 1, 11),  # a worker on the only core gives nothing
    ],
)
def test_a_step_takes_as_long_as_its_slowest_station(
    count, fetch_ms, cpu_ratio, cores, step_ms
) -> None:
    seen = replace(load(fetch_ms, cpu_ratio, cores=cores), hand_over_s=0.0)
    assert seen.predict(count) == pytest.approx(step_ms * MS)


@pytest.mark.parametrize(
    ("seen", "best"),
    [
        (load(30), 2),  # computing: never more than cores
        (load(300), 2),
        (load(30, cores=8), 4),  # with room for batches that differ
        (load(80, cores=8), 8),
        (load(2, cores=8), 1),
        (load(0.1, cores=8), 0),  # handing over costs more
        (load(50, cores=1), 0),
        (load(60, 0.05), 7),  # waiting: more than cores
        (load(900, 0.05), 32),
        (load(900, 0.05, most_count=5), 5),
        (load(30, rest_core_count=2.0), 2),
    ],
)
def test_the_best_count_is_the_fewest_that_keep_up(seen, best) -> None:
    assert fitting_count(seen) == best


def test_tries_two_probes_around_the_best_count_and_no_more() -> None:
    assert around(load(30, cores=8)) == (4, 3, 6)
    assert around(load(200, 0.05)) == (22, 17, 27)
    assert around(load(8, cores=8)) == (1, 3)
    assert around(load(0.4, cores=8)) == (1, 0, 3)
    assert around(load(0.1, cores=8)) == (0, 1)


@given(TIMES_S, st.floats(0.01, 1.0), TIMES_S, st.integers(1, 64), st.floats(1.0, 5.0))
def test_more_fetching_never_lowers_the_best_count(fetch_s, ratio, rest_s, cores, factor) -> None:
    both = [
        fitting_count(Load(fetch_s=s, fetch_cpu_ratio=ratio, rest_s=rest_s, core_count=cores))
        for s in (fetch_s, fetch_s * factor)
    ]
    assert both == sorted(both)


LOADS = st.builds(
    Load, fetch_s=TIMES_S, fetch_cpu_ratio=st.floats(0.0, 1.0), rest_s=TIMES_S,
    core_count=st.integers(1, 64), rest_core_count=st.floats(0.1, 1.0),
    most_count=st.integers(1, 100),
)  # fmt: skip


@given(LOADS)
def test_no_count_is_beyond_the_cores_that_it_can_use_or_the_memory(seen) -> None:
    found = around(seen)
    assert 1 <= len(found) <= 3
    assert len(set(found)) == len(found)
    assert all(0 <= count <= min(seen.limit, seen.most_count) for count in found)
    if seen.fetch_cpu_ratio == 1.0:
        assert max(found) <= seen.core_count


@given(TIMES_S, st.floats(0.0, 1.0), TIMES_S, st.integers(1, 64), st.integers(1, 200))
def test_more_workers_are_never_predicted_to_be_slower(fetch_s, ratio, rest_s, cores, n) -> None:
    seen = Load(fetch_s=fetch_s, fetch_cpu_ratio=ratio, rest_s=rest_s, core_count=cores)
    assert seen.predict(n + 1) <= seen.predict(n)


# ---- scenes


def context(data_ms=50.0, rest_ms=50.0, machine=SERVER, step_count=50, **loader):
    profile = sample_profile(
        {Phase.DATA: data_ms * MS, Phase.FORWARD: rest_ms * MS}, step_count=step_count
    )
    return ScriptContext(machine=machine, baseline=profile, traits=fed(**loader))


def test_a_loader_that_is_not_waited_for_costs_no_trial() -> None:
    idle = context(data_ms=0.5)
    assert counts(idle) == ()
    assert worker_counts.why_none(idle) == (
        "the loop waits for its loader only 0.99% of the time: it is not the bottleneck"
    )


def test_short_passes_whose_start_was_not_seen_are_worth_a_trial() -> None:
    def passing(count):
        return context(data_ms=0.5, worker_count=2, fetch_s=20 * MS, pass_batch_count=count)

    assert 2 in counts(passing(60))
    assert counts(passing(60_000)) == ()
    assert counts(passing(40)) == ()  # was seen


def test_what_a_batch_takes_inside_the_workers_counts_where_it_is_known() -> None:
    assert counts(context(worker_count=2, fetch_s=200 * MS))[0] == 5
    # Unknown: workers that are waited for are busy all the time, so it is 2 x 100 ms.
    assert counts(context(worker_count=2))[0] == 5


def test_several_batches_in_a_step_are_counted() -> None:
    one, four = (
        worker_counts.read_load(context()),
        worker_counts.read_load(context(step_batch_count=4)),
    )
    assert four.fetch_s == pytest.approx(one.fetch_s / 4)
    assert fitting_count(four) == fitting_count(one)


def test_the_script_s_own_number_is_tried_only_where_its_workers_end_with_each_pass() -> None:
    assert counts(context(worker_count=3, fetch_s=300 * MS)) == (7, 6, 9, 3)
    kept = context(worker_count=3, fetch_s=300 * MS, is_persistent=True)
    assert counts(kept) == (7, 6, 9)
    assert counts(context(worker_count=8, fetch_s=50 * MS, is_persistent=True)) == ()


def test_the_main_process_is_tried_where_a_batch_is_dearer_to_hand_over_than_to_make() -> None:
    cheap = context(data_ms=2.0, rest_ms=4.0, worker_count=4, fetch_s=0.2 * MS)
    assert counts(cheap) == (0, 4)
    assert worker_counts.speedup_of(cheap, 0) == pytest.approx(6 / 4.2)


def test_one_worker_is_tried_where_none_would_be_best_and_is_not_permitted() -> None:
    held = {"is_pure": True, "is_unchanged": False, "unproven": "the script holds it"}
    cheap = {"data_ms": 2.0, "rest_ms": 4.0, "fetch_s": 0.2 * MS, **held}
    assert counts(context(worker_count=4, **cheap)) == (1,)
    assert counts(context(worker_count=1, **cheap)) == ()


def test_workers_that_wait_for_a_core_are_not_taken_for_workers_that_wait_for_storage() -> None:
    crowded = context(worker_count=8, fetch_s=400 * MS, fetch_cpu_ratio=0.25, machine=LAPTOP)
    profile = sample_profile({Phase.DATA: 0.05, Phase.FORWARD: 0.05})
    free = {"core_count": 4, "fetch_cpu_ratio": 0.25, "fetch_s": 0.4}
    seen = worker_counts.read_load(crowded)
    assert {name: getattr(seen, name) for name in free} == free
    object.__setattr__(profile, "cores_ratio", 3.9)
    busy = worker_counts.read_load(
        ScriptContext(machine=LAPTOP, baseline=profile, traits=crowded.traits)
    )
    assert (busy.fetch_s, busy.fetch_cpu_ratio) == pytest.approx((0.1, 1.0))


def test_predicts_the_speed_up_of_the_whole_step() -> None:
    assert worker_counts.speedup_of(context(), 2) == pytest.approx(100 / 50.3)
    assert worker_counts.speedup_of(ScriptContext(machine=LAPTOP), 2) is None


# ---- threads of the loop beside workers


def beside(data_ms, rest_ms, busy_cores, core_count=2, threads=2, **loader):
    """Return a loop whose other phases keep `busy_cores` of a job's cores busy."""
    machine = replace(LAPTOP, budget=replace(LAPTOP.budget, core_count=core_count))
    one = context(data_ms=data_ms, rest_ms=rest_ms, machine=machine, **loader)
    used = (data_ms + rest_ms * busy_cores) / (data_ms + rest_ms)
    profile = replace(one.baseline, cores_ratio=used)
    return replace(one, baseline=profile, traits=replace(one.traits, thread_count=threads))


def test_a_loop_leaves_the_workers_that_are_busy_a_core_each() -> None:
    assert worker_counts.threads_beside(beside(160, 100, 1.2)) == 1
    assert worker_counts.threads_beside(beside(48, 27, 1.95)) == 1
    # Three workers are busy while the loop computes: 13 of 16 cores are left to it.
    assert worker_counts.threads_beside(beside(150, 50, 12, core_count=16, threads=16)) == 13


@pytest.mark.parametrize(
    "healthy",
    [
        beside(60, 200, 1.9),  # its worker would be idle most of the time
        beside(160, 160, 1.95, core_count=3, threads=2),  # there is a core for each
        beside(160, 100, 1.2, worker_count=2),  # the script's own workers
        beside(160, 100, 1.2, has_own_order=True),  # no workers can be had
        beside(160, 100, 1.2, threads=1),
        beside(1.0, 100, 1.2),
        ScriptContext(machine=LAPTOP),
    ],
)
def test_a_loop_that_has_use_for_its_threads_keeps_them(healthy) -> None:
    assert worker_counts.threads_beside(healthy) is None


def test_the_threads_of_a_loop_that_waits_for_an_accelerator_are_left_alone() -> None:
    seen = sample_profile({Phase.DATA: 0.16, Phase.TRANSFER: 0.01, Phase.FORWARD: 0.09})
    one = beside(160, 100, 1.2)
    assert (
        worker_counts.threads_beside(replace(one, baseline=replace(seen, cores_ratio=1.1))) is None
    )
