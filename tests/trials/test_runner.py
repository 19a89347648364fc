"""The bench on children of arithmetic: what a pair shows while a queue of batches is between."""

from itertools import cycle, islice
from types import SimpleNamespace

import pytest

from hasten.compare import signed_rank_interval
from hasten.errors import NoRoom
from hasten.lever import discover
from hasten.protocol import ReadCosts, Turn
from hasten.records import Entry, Phase, Plan, Scope, Workload
from hasten.testing import FakeScript, fed, steady
from hasten.trials import runner as runner_module
from hasten.trials.blocks import settle_count
from hasten.trials.process import Isolation
from hasten.trials.runner import TrialRunner

STEPPED = next(lever for lever in discover().values() if lever.scope is Scope.STEP)
FAST = Plan().with_lever(STEPPED.name, True)
SLOW_S, FAST_S = 0.010, 0.009
WORKLOAD = Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd="/", python="python")


def runner(script):
    return TrialRunner(WORKLOAD, isolation=Isolation.NONE, patience_s=1.0, make_trial=script.trial)


def computing(**details):
    """A script whose computing is 10% shorter under FAST."""
    return FakeScript(cost=lambda plan: FAST_S if plan == FAST else SLOW_S, **details)


def alone_s(plan, **details):
    """Seconds of a step where a plan has a child for itself."""
    with runner(computing(**details)) as own:
        own.steps(plan, 400)
        return own.pace.step_s


def raced(script, *, knows_queue=True, pair_count=24):
    """Return what pairs show, whether or not the bench knows of the queue."""
    with runner(script) as pairs_of:
        pairs_of.steps(Plan(), 4)
        if knows_queue:
            pairs_of.facts(Plan())
        coins = list(islice(cycle([True, False, False, True, True]), pair_count))
        pairs = pairs_of.pairs(Plan(), FAST, coins)
        assert script.launch_count == 1
    return signed_rank_interval([pair.log_ratio for pair in pairs])


@pytest.mark.parametrize(("pause_s", "watched_count"), [(0.0, 40), (30.0, 20)])
def test_what_lies_between_steps_is_part_of_the_time_to_watch_them(
    monkeypatch, pause_s, watched_count
) -> None:
    script = computing()
    with runner(script) as runs:
        runs.steps(Plan(), 4)
        trial, now_s = runs.children.trial(Plan()), [0.0]
        answered = trial.turns

        def paused(turns, **details):
            now_s[0] += pause_s * 40 * SLOW_S / 20
            return answered(turns, **details)

        monkeypatch.setattr(trial, "turns", paused)
        monkeypatch.setattr(runner_module.time, "monotonic", lambda: now_s[0])
        steps, _ = runs.steps(Plan(), 40)
        assert len(steps) == watched_count
        assert runs.children.trial(Plan()) is trial


@pytest.mark.parametrize("fetch_s", [0.012, 0.030, 0.060, 0.200])
@pytest.mark.parametrize("prefetch_count", [2, 4])
@pytest.mark.parametrize("noise", [steady(0.0), steady(0.02), steady(0.1)])
def test_a_race_over_a_queue_shows_what_each_plan_does_alone(
    fetch_s, prefetch_count, noise
) -> None:
    details = {
        "fetch_s": fetch_s, "worker_count": 4, "prefetch_count": prefetch_count, "noise": noise,
    }  # fmt: skip
    true_ratio = alone_s(Plan(), **details) / alone_s(FAST, **details)
    seen = raced(computing(**details))
    assert seen.low_ratio / 1.005 <= true_ratio <= seen.high_ratio * 1.005
    assert seen.high_ratio / seen.low_ratio < 1.12


def test_step_by_step_a_late_queue_would_be_read_wrong() -> None:
    # Both plans wait for the same workers: neither is faster.
    burst = {"fetch_s": 0.200, "worker_count": 4, "noise": steady(0.1)}
    assert raced(computing(**burst), knows_queue=False).low_ratio > 1.05
    single = {**burst, "prefetch_count": 1}
    seen = raced(computing(**single), knows_queue=False)
    assert seen.high_ratio / seen.low_ratio > 5
    assert raced(computing(**burst)).low_ratio < 1 < raced(computing(**burst)).high_ratio


def test_where_only_one_plan_outruns_the_workers_a_race_tells_the_computing_at_most() -> None:
    details = {"fetch_s": 0.038, "worker_count": 4}  # a batch each 9.5 ms, between both plans
    true_ratio = alone_s(Plan(), **details) / alone_s(FAST, **details)
    seen = raced(computing(**details))
    assert true_ratio - 0.005 <= seen.mid_ratio <= SLOW_S / FAST_S + 0.005


def test_where_workers_keep_up_plans_alternate_step_by_step() -> None:
    script = computing(fetch_s=0.012, worker_count=4, noise=steady(0.05))
    with runner(script) as own:
        own.facts(Plan())
        own.steps(Plan(), 40)
        assert own.pace.warm_count(Plan()) == 3 + 1
        own.prepare(Plan(), FAST)
        before_s = script.spent_s
        pairs = own.pairs(Plan(), FAST, [True, False] * 50)
    assert script.spent_s - before_s < 1.1 * 2 * 100 * (SLOW_S + FAST_S)  # one of two settles
    seen = signed_rank_interval([pair.log_ratio for pair in pairs])
    assert seen.low_ratio <= SLOW_S / FAST_S <= seen.high_ratio


@pytest.mark.parametrize(
    "late", [{"fetch_s": 0.060}, {"fetch_s": 0.044}, {"fetch_s": 0.012, "worker_count": 1}]
)
def test_where_the_loop_waits_now_and_then_blocks_hold_whole_cycles(late) -> None:
    script = computing(**{"worker_count": 4, "noise": steady(0.05), **late})
    with runner(script) as own:
        count = own.facts(Plan()).traits.cycle_count
        own.steps(Plan(), 80)
        assert own.pace.pair_s(Plan(), FAST) == pytest.approx(4 * count * own.pace.step_s)
        assert own.pace.warm_count(Plan()) == 3 + count


def test_a_plan_that_was_seen_to_wait_is_raced_in_whole_cycles_next_time() -> None:
    script = FakeScript(
        cost=lambda plan: 0.005 if plan == FAST else SLOW_S, fetch_s=0.036, worker_count=4
    )
    with runner(script) as own:
        count = own.facts(Plan()).traits.cycle_count
        own.steps(Plan(), 40)
        assert own.pace.pair_s(Plan(), FAST) == pytest.approx(4 * own.pace.step_s)
        own.pairs(Plan(), FAST, [True, False] * 100)
        own.rhythm.look(own.statistics, FAST)
        own.statistics.forget_steps()
        own.prepare(Plan(), FAST)
        assert own.pace.pair_s(Plan(), FAST) == pytest.approx(4 * count * own.pace.step_s)
        assert own.pace.pair_s(Plan(), Plan()) < own.pace.pair_s(Plan(), FAST)


def test_a_short_life_has_room_for_what_comes_after_the_longest_start_so_far() -> None:
    script = FakeScript(
        cost=lambda plan: 0.005 if plan == FAST else SLOW_S, fetch_s=0.036, worker_count=4
    )
    with runner(script) as own:
        count = own.facts(Plan()).traits.cycle_count
        own.pace.life_count = 100
        assert own.pace.room(100) == 100 - 1 - 3 - count
        own.steps(Plan(), 40)
        assert own.pace.room(100) == 100 - 1 - 3 - 1
        assert [own.pace.is_spent(at, 92) for at in (8, 9)] == [False, True]
        own.rhythm.know_late(FAST, {Phase.DATA: 1.0, Phase.FORWARD: 1.0})
        assert own.pace.room(100) == 100 - 1 - 3 - count
        assert not own.pace.is_spent(9, 92)
        assert own.pace.warm_count(Plan()) == 3 + 1


def test_a_lever_of_the_loader_is_raced_behind_the_batches_that_are_on_their_way() -> None:
    script = computing(fetch_s=0.012, worker_count=4)
    fetching = Plan().with_lever("batched_fetch", True)
    replaced = Plan().with_lever("loader_workers", 0)
    with runner(script) as own:
        count = own.facts(Plan()).traits.cycle_count
        own.steps(Plan(), 40)
        assert own.pace.pair_s(Plan(), fetching) == pytest.approx(4 * count * own.pace.step_s)
        own.prepare(Plan(), replaced)
        own.prepare(Plan(), Plan())
        drained = settle_count(Plan(), replaced, count)
        assert own.prepare_s(Plan(), replaced) == pytest.approx(drained * own.pace.step_s)
        assert drained > count + 1


def test_without_workers_plans_alternate_step_by_step() -> None:
    script = computing(fetch_s=0.002)
    with runner(script) as own:
        own.steps(Plan(), 4)
        own.facts(Plan())
        count = 2 * (STEPPED.settle_count + 1)
        assert own.pace.pair_s(Plan(), FAST) == pytest.approx(count * own.pace.step_s)
        own.prepare(Plan(), FAST)
        before_s = script.spent_s
        own.pairs(Plan(), FAST, [True] * 5)
    assert script.spent_s - before_s == pytest.approx(5 * count * 0.0115, rel=0.01)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("worker_count", [0, 3])
def test_a_pair_takes_as_long_as_was_said(worker_count, apart) -> None:
    script = computing(fetch_s=0.002, worker_count=worker_count, start_s=3.0)
    with runner(script) as own:
        own.steps(Plan(), 40)
        own.facts(Plan())
        own.prepare(Plan(), FAST, apart=apart)
        before_s = script.spent_s
        own.pairs(Plan(), FAST, [True, False] * 10, apart=apart)
        said_s = 20 * own.pace.pair_s(Plan(), FAST, apart=apart)
    assert script.spent_s - before_s == pytest.approx(said_s, rel=0.1)


def test_bringing_children_to_life_takes_as_long_as_was_said() -> None:
    script = computing(worker_count=2, start_s=3.0)
    with runner(script) as own:
        own.steps(Plan(), 40)
        own.facts(Plan())
        own.children.clear()
        own.prepare(Plan(), Plan())
        own.children.trial(
            FAST.with_lever("allocator", "jemalloc"), slot=1
        )  # one of two, so that one is left
        said_s, before_s = own.prepare_s(Plan(), Plan()), script.spent_s
        own.prepare(Plan(), Plan())
        assert script.spent_s - before_s == pytest.approx(said_s, rel=0.02)
        assert own.prepare_s(Plan(), Plan()) == 0


GIB = 1 << 30


@pytest.mark.parametrize(
    ("available_bytes", "resident_bytes", "spare_bytes", "alone"),
    [
        (None, 100 * GIB, None, False),
        (16 * GIB, 8 * GIB, None, True),
        (64 * GIB, 8 * GIB, None, False),
        (64 * GIB, 8 * GIB, 8 * GIB, False),
        (64 * GIB, 8 * GIB, GIB // 2, True),
        (None, GIB, -GIB, True),
    ],
)
def test_children_live_one_by_one_where_memory_or_a_device_holds_one(
    available_bytes, resident_bytes, spare_bytes, alone
) -> None:
    with runner(computing()) as own:
        own.pace._available_bytes = available_bytes
        own.pace.check_memory(resident_bytes, spare_bytes)
        assert own.pace.single_process is alone


@pytest.mark.parametrize(("single_process", "starts_count"), [(False, 1), (True, 2)])
def test_two_children_start_at_once_where_memory_holds_both(single_process, starts_count) -> None:
    script = computing(start_s=3.0)
    with runner(script) as own:
        own.steps(Plan(), 4)
        own.children.clear()
        own.pace.single_process = single_process
        said_s, before_s = own.prepare_s(Plan(), Plan()), script.spent_s
        own.prepare(Plan(), Plan())
        assert script.spent_s - before_s == pytest.approx(3.0 * starts_count, rel=0.05)
        assert said_s == pytest.approx(3.9 if starts_count == 1 else 6.0, rel=0.05)
        assert script.launch_count == 3
        assert own.starts.start_s == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize(
    ("needed_bytes", "alone"), [(40, False), (60, True), (101, None)], ids=["two", "one", "none"]
)
def test_children_that_do_not_fit_on_a_device_together_live_one_by_one(needed_bytes, alone) -> None:
    script, held = computing(), {}

    def trial(workload, plan, **details):
        made = script.trial(workload, plan, **details)
        begin, close = made.begin, made.close

        def begins():
            held[id(made)] = needed_bytes if plan.settings else 50
            if sum(held.values()) > 100:
                raise NoRoom("no memory", remedy="Wait.")
            begin()

        def closes():
            held.pop(id(made), None)
            close()

        made.begin, made.close = begins, closes
        return made

    script_of = SimpleNamespace(trial=trial)
    other = Plan().with_lever("malloc_retention", True)
    with runner(script_of) as own:
        own.steps(Plan(), 4)
        if alone is None:
            with pytest.raises(NoRoom):
                own.prepare(Plan(), other)
        else:
            own.prepare(Plan(), other)
            assert len(own.pairs(Plan(), other, [True, False])) == 2
        assert own.pace.single_process is bool(alone)


def test_a_device_that_is_full_of_one_child_is_not_tried_again() -> None:
    script = computing()

    def trial(workload, plan, **details):
        made = script.trial(workload, plan, **details)

        def begins():
            raise NoRoom("no memory", remedy="Wait.")

        made.begin = begins
        return made

    with runner(SimpleNamespace(trial=trial)) as own:
        with pytest.raises(NoRoom):
            own.steps(Plan(), 4)
        assert script.launch_count == 1


def test_blocks_of_two_children_begin_when_both_are_warm_again() -> None:
    script = computing()
    with runner(script) as own:
        own.steps(Plan(), 4)
        shape = own.pace.shape(Plan(), Plan())
        assert (shape.relay, shape.skip_counts, shape.block_count) == (True, (1, 1), 3)
        own.pace.step_s = 0.002
        shape = own.pace.shape(Plan(), Plan().with_lever("loader_workers", 3))
        assert (shape.skip_counts, shape.block_count) == ((3, 6), 11)


def test_only_what_changes_the_loader_and_what_is_published_counts_pauses_between_passes() -> None:
    with runner(computing()) as own:
        own.steps(Plan(), 4)
        own.rhythm.pause_count = 40
        memory, workers = (
            Plan().with_lever(*one) for one in (("malloc_retention", True), ("loader_workers", 3))
        )
        assert own.pace.shape(Plan(), memory).block_count < 40
        assert own.pace.shape(Plan(), memory, apart=True).block_count == 40
        assert own.pace.shape(Plan(), workers).block_count == 40


@pytest.mark.parametrize(
    ("step_s", "raced", "published"),
    [(0.002, 3, 3), (0.014, 1, 1), (0.06, 0, 1), (0.4, 0, 0)],
    ids=["tiny", "short", "middle", "long"],
)
def test_a_published_figure_has_no_cold_step_where_it_would_show(step_s, raced, published) -> None:
    script = computing()
    with runner(script) as own:
        own.steps(Plan(), 4)
        own.pace.step_s = step_s
        other = Plan().with_lever("malloc_retention", True)
        assert own.pace.shape(Plan(), other).skip_counts == (raced, raced)
        assert own.pace.shape(Plan(), other, apart=True).skip_counts == (published, published)


def test_a_plan_that_is_many_times_quicker_is_cold_for_more_steps() -> None:
    quick = Plan().with_lever("malloc_retention", True)
    script = FakeScript(cost=lambda plan: 0.002 if plan == quick else 0.024)
    with runner(script) as own:
        own.steps(Plan(), 4)
        assert own.pace.shape(Plan(), quick, apart=True).skip_counts == (1, 1), "nobody knows yet"
        own.pairs(Plan(), quick, [True, False], apart=True)
        assert own.pace.shape(Plan(), quick, apart=True).skip_counts == (1, 3)
        assert own.pace.shape(Plan(), quick).skip_counts == (0, 3)


def test_page_faults_are_counted_for_each_launch_of_a_plan() -> None:
    script = computing(faults=lambda launch: 100.0 * launch)
    with runner(script) as own:
        own.steps(Plan(), 20)
        own.children.clear()
        own.pairs(Plan(), Plan(), [True] * 10, apart=True)
        assert own.statistics.faults(Plan()) == [100.0, 200.0, 300.0]
        other = Plan().with_lever("malloc_retention", True)
        own.pairs(Plan(), other, [True], apart=True)
        assert own.statistics.faults(other) == []  # of a few steps nothing is told


def test_page_faults_under_another_plan_are_not_those_of_the_first() -> None:
    script = computing(faults=lambda launch: 100.0)
    with runner(script) as own:
        own.pairs(Plan(), Plan(), [True] * 40, apart=True)
        before = own.statistics.faults(Plan())
        script.faults = lambda launch: 900.0  # of children to come
        for child in own.children.under(Plan()):
            child._step_faults = 900.0
            child.turns([Turn(0, 0, 5, True)])
        own.pairs(Plan(), Plan(), [True], apart=True)
        assert before == own.statistics.faults(Plan()) == [100.0, 100.0]


def test_workers_are_raced_in_whole_passes_where_these_are_short() -> None:
    script = computing(fetch_s=0.002, traits=fed(pass_batch_count=20))
    with runner(script) as own:
        own.facts(Plan())
        own.steps(Plan(), 40)
        workers = Plan().with_lever("loader_workers", 1)
        assert own.pace.shape(Plan(), workers).block_count == 20
        fetching = Plan().with_lever("batched_fetch", True)
        assert own.pace.shape(Plan(), fetching, apart=True).block_count == 2
        assert own.pace.shape(workers, workers.with_lever("allocator", "jemalloc")).block_count == 2
        assert own.pace.shape(Plan(), Plan().with_lever("allocator", "jemalloc")).block_count == 2
    long = computing(fetch_s=0.002, traits=fed(pass_batch_count=300))
    with runner(long) as own:
        own.facts(Plan())
        own.steps(Plan(), 40)
        assert own.pace.shape(Plan(), Plan().with_lever("loader_workers", 1)).block_count == 2


@pytest.mark.parametrize(
    ("count", "seen_count", "launch_count"), [(120, 60, 1), (300, 70, 1), (500, 80, 2)]
)
def test_what_was_watched_of_a_short_life_is_not_watched_again(
    count, seen_count, launch_count
) -> None:
    script = computing(life_count=100)
    with runner(script) as own:
        steps, _ = own.steps(Plan(), count)
        assert script.launch_count == launch_count
        assert own.pace.life_count == 100
        assert seen_count <= len(steps) < 100
        own.steps(Plan(), 10)
        assert script.launch_count == launch_count + 1


def test_a_pair_that_one_life_cannot_hold_is_shared_by_two_children() -> None:
    script = computing(worker_count=4, fetch_s=0.002)
    with runner(script) as own:
        own.steps(Plan(), 4)
        own.facts(Plan())
        own.pace.life_count = 40
        assert own.pairs(Plan(), FAST, [True, False])
    assert script.launch_count > 1


def test_the_first_start_counts_only_while_it_is_the_only_one() -> None:
    script = computing(start_s=20.0)
    with runner(script) as own:
        own.steps(Plan(), 4)
        assert own.starts.start_s == pytest.approx(20.0, abs=0.1)
        script.start_s = 2.0
        own.prepare(Plan(), Plan())
        assert own.starts.start_s == pytest.approx(2.0, abs=0.1)


def test_what_was_paid_once_is_asked_without_a_look_at_the_whole_script(monkeypatch) -> None:
    script = computing()
    with runner(script) as runs:
        runs.steps(FAST, 4)
        asked, answered = [], runs.children.trial(FAST).ask

        def ask(command, *details):
            asked.append(command)
            return answered(command, *details)

        monkeypatch.setattr(runs.children.trial(FAST), "ask", ask)
        runs.note_costs(FAST)
        assert asked == [ReadCosts()]


def test_steps_that_are_watched_tell_what_passes_outside_of_steps() -> None:
    phases = {Phase.FORWARD: 0.01, Phase.EVALUATION: 0.02}
    with runner(FakeScript(cost=lambda plan: 0.01, phases=lambda plan: phases)) as own:
        own.steps(Plan(), 4)
        assert own.statistics.outside_s(Plan(), Plan())[0] == pytest.approx(0.02)


def test_a_life_without_room_for_a_single_pair_has_none() -> None:
    script = computing(life_count=40, fetch_s=0.02, worker_count=4)
    turns = (Turn(0, 20, 20, True), Turn(0, 20, 20, True))
    with runner(script) as short:
        short.steps(Plan(), 4)
        short.facts(Plan())
        short.pace.life_count = 40
        assert short.within((Plan(),), 5, turns) == []
