"""The ledger: every nanosecond belongs to exactly one phase, whatever the script does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.instrument.ledger import INDEX, PHASES, Followed, Ledger
from hasten.records import Phase


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(clock):
    return Ledger(clock)


MOVES = st.one_of(
    st.tuples(st.just("enter"), st.sampled_from(range(len(PHASES)))),
    st.tuples(
        st.sampled_from(["leave", "again", "commit", "commit_as_evaluation", "commit_as_loss",
                         "cut", "loop_begins"]),
        st.none(),
    ),
)  # fmt: skip


@given(st.lists(st.tuples(MOVES, st.integers(0, 10**12))))
def test_phases_add_up_to_the_wall_to_the_nanosecond(moves) -> None:
    clock = Clock()
    ledger = Ledger(clock)
    last_cut_ns = clock.now_ns
    for (move, phase), passing_ns in moves:
        clock.now_ns += passing_ns
        if move == "enter":
            ledger.enter(phase)
        elif move == "cut":
            assert sum(ledger.cut()) == clock.now_ns - last_cut_ns
            last_cut_ns = clock.now_ns
        elif move == "loop_begins":
            if ledger.current == INDEX[Phase.BETWEEN]:  # the first step begins here
                last_cut_ns = clock.now_ns
            ledger.loop_begins()
        else:
            getattr(ledger, move)()
    clock.now_ns += 5
    assert sum(ledger.cut()) == clock.now_ns - last_cut_ns


class Mark:
    """An event that is passed at a known time."""

    def __init__(self, at_ns) -> None:
        self.at_ns = at_ns

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, later) -> float:
        return (later.at_ns - self.at_ns) * 1e-6


class PromptDevice:
    """The timeline of a device that does at once what it is asked for."""

    def __init__(self, clock, *, captures=False) -> None:
        self.mark = lambda: Mark(clock.now_ns)
        self.is_capturing = lambda: captures

    def has_passed(self, mark) -> bool:
        return mark.query()


@given(st.lists(st.tuples(MOVES, st.integers(0, 10**6))), st.integers(0, 20))
def test_a_device_that_is_never_late_gives_the_steps_of_the_host(moves, before_count) -> None:
    clock = Clock()
    ledger, own = Ledger(clock), []

    def make(moves):
        for (move, phase), passing_ns in moves:
            clock.now_ns += passing_ns
            found = getattr(ledger, move)(*([phase] if move == "enter" else []))
            if move == "cut":
                own.append(found)

    make(moves[:before_count])
    ledger.cut()
    own.clear()
    ledger.follow(PromptDevice(clock))
    make(moves[before_count:])
    assert ledger.followed()[:2] == (own, 1.0 if own else None)
    assert ledger.followed() == Followed(), "it follows no more"


def test_time_does_not_run_backwards_where_marks_of_two_streams_are_passed_in_another_order(
    clock, ledger
) -> None:
    ledger.loop_begins()
    ledger.follow(PromptDevice(clock))
    for at_ns in (6_000, 4_000, 7_000):
        clock.now_ns = at_ns
        ledger.cut()
    assert [sum(step) for step in ledger.followed()[0]] == [5_000, 0, 1_000]


def spend(ledger, clock, phase, ns) -> None:
    ledger.enter(INDEX[phase])
    clock.now_ns += ns
    ledger.leave()


def cut(ledger):
    return {phase: ns for phase, ns in zip(PHASES, ledger.cut(), strict=True) if ns}


def test_an_inner_stretch_suspends_the_one_around_it(ledger, clock) -> None:
    ledger.loop_begins()
    ledger.enter(INDEX[Phase.OPTIMIZER])
    clock.now_ns += 3
    spend(ledger, clock, Phase.FORWARD, 20)
    clock.now_ns += 4
    ledger.leave()
    clock.now_ns += 1
    assert cut(ledger) == {Phase.OPTIMIZER: 7, Phase.FORWARD: 20, Phase.OTHER: 1}


def test_a_batch_that_an_evaluation_took_is_evaluation(ledger, clock) -> None:
    ledger.loop_begins()
    spend(ledger, clock, Phase.BACKWARD, 2)
    ledger.commit()
    spend(ledger, clock, Phase.DATA, 50)
    clock.now_ns += 5
    ledger.enter(INDEX[Phase.EVALUATION])
    ledger.commit_as_evaluation()
    clock.now_ns += 7
    ledger.leave()
    assert cut(ledger) == {Phase.BACKWARD: 2, Phase.EVALUATION: 62}


def test_unnamed_time_between_forward_and_backward_is_the_loss(ledger, clock) -> None:
    ledger.loop_begins()
    spend(ledger, clock, Phase.FORWARD, 10)
    clock.now_ns += 4
    ledger.enter(INDEX[Phase.LOSS])
    ledger.leave()
    ledger.commit_as_loss()
    clock.now_ns += 1
    assert cut(ledger) == {Phase.FORWARD: 10, Phase.LOSS: 4, Phase.OTHER: 1}


def test_time_before_the_loop_belongs_to_no_step(ledger, clock) -> None:
    clock.now_ns += 10**9
    ledger.loop_begins()
    clock.now_ns += 3
    assert cut(ledger) == {Phase.OTHER: 3}


def test_a_wait_between_two_turns_belongs_to_no_step(ledger, clock) -> None:
    ledger.loop_begins()
    ledger.enter(INDEX[Phase.OPTIMIZER])
    ledger.cut()
    clock.now_ns += 10**9
    ledger.start()
    clock.now_ns += 2
    ledger.leave()
    assert cut(ledger) == {Phase.OPTIMIZER: 2}


def test_a_device_is_followed_from_within_a_phase_and_learns_what_was_the_loss(
    clock, ledger
) -> None:
    def passes(move, *args):
        clock.now_ns += 100
        return move(*args)

    ledger.loop_begins()
    ledger.enter(INDEX[Phase.DATA])
    ledger.enter(INDEX[Phase.TRANSFER])
    ledger.cut()
    ledger.follow(PromptDevice(clock))
    passes(ledger.leave)  # the data, in which the transfer was
    passes(ledger.leave)
    passes(ledger.enter, INDEX[Phase.LOSS])
    ledger.commit_as_loss()
    own = passes(ledger.cut)
    assert own[INDEX[Phase.TRANSFER]] == own[INDEX[Phase.DATA]] == 100
    assert own[INDEX[Phase.LOSS]] == 200
    assert ledger.followed()[:2] == ([own], 1.0)


def test_nobody_waits_while_a_graph_is_captured(clock, ledger) -> None:
    ledger.loop_begins()
    ledger.follow(PromptDevice(clock, captures=True))
    clock.now_ns += 7
    assert sum(ledger.cut()) == 7
    assert not ledger.followed().steps, "the times of the host have to do"


class LateDevice(PromptDevice):
    """The timeline of a device that works for as long as `give` says, one piece after another."""

    def __init__(self, clock) -> None:
        self.clock, self.free_ns = clock, 0
        self.mark = lambda: Mark(max(self.clock.now_ns, self.free_ns))
        self.is_capturing = lambda: False

    def give(self, work_ns) -> None:
        self.free_ns = max(self.clock.now_ns, self.free_ns) + work_ns

    def wait(self) -> None:
        self.clock.now_ns = max(self.clock.now_ns, self.free_ns)


@pytest.mark.parametrize("marked", [True, False])
def test_work_that_is_given_and_waited_for_in_the_loop_is_no_idle_time_where_it_is_marked(
    clock, ledger, marked
) -> None:
    device = LateDevice(clock)
    ledger.loop_begins()
    ledger.enter(INDEX[Phase.FORWARD])
    ledger.follow(device)
    ledger.leave()
    device.give(10_000_000)  # a metric
    if marked:
        ledger.again()
    device.wait()
    clock.now_ns += 3_000_000
    ledger.cut()
    assert ledger.followed().idles_ns[Phase.OTHER] == [pytest.approx(3e6 if marked else 13e6)]


@pytest.mark.parametrize(
    ("waits", "phase", "idle_ms"),
    [
        (True, Phase.OTHER, [0, 3, 3]),
        (True, Phase.DATA, [0, 3, 3]),
        (False, Phase.OTHER, [0, 0, 0]),
        (None, Phase.OTHER, [0, 0, 0]),
    ],
)
def test_a_device_is_idle_from_the_end_of_a_wait_to_its_next_work(
    clock, ledger, waits, phase, idle_ms
) -> None:
    """Each step gives it 10 ms of work; the host works for 3 ms after a wait, before or without."""
    device = LateDevice(clock)
    ledger.loop_begins()
    device.give(1_000_000)
    ledger.follow(device)
    for step in range(3):
        if step and waits:
            device.wait()
        if step and phase is Phase.OTHER:
            clock.now_ns += 3_000_000
        if step and waits is None:
            device.wait()
        ledger.enter(INDEX[Phase.DATA])
        if step and phase is Phase.DATA:
            clock.now_ns += 3_000_000
        ledger.leave()
        ledger.enter(INDEX[Phase.FORWARD])
        device.give(10_000_000)
        clock.now_ns += 1_000
        ledger.leave()
        ledger.cut()
    found = ledger.followed().idles_ns
    assert [idle_ns / 1e6 for idle_ns in found.pop(phase)] == pytest.approx(idle_ms, abs=0.01)
    assert [idle_ns / 1e6 for (each,) in [found.values()] for idle_ns in each] == [0, 0, 0]
