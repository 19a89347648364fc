"""The guard of a real run speaks of what has gone plainly wrong, and of nothing else."""

import math
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from threading import get_ident
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.hooks import RemovableHandle  # noqa: E402

from hasten.instrument import loss_guard  # noqa: E402
from hasten.instrument.live import LiveTraining  # noqa: E402
from hasten.instrument.loss_guard import STEP_COUNT, Guard, astray_said, judge, slow_said, stuck  # noqa: E402
from hasten.instrument.training_health import WINDOW_COUNT, TrainingHealthMonitor  # noqa: E402
from hasten.rank import Rank  # noqa: E402
from hasten.records import LossEnvelope  # noqa: E402
from hasten.verify.loss_envelope import envelope_of  # noqa: E402

RECORDED_COUNT, SEEDS = 32, range(8)
INPUTS = torch.randn(256, 16, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS @ torch.randn(16, 4, generator=torch.Generator().manual_seed(1))).argmax(1)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(out=4):
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, out))


def made(live, optimizer):
    live.optimizers.add(optimizer)
    return optimizer


def drawn(count):
    index = torch.randint(0, len(INPUTS), (count,))
    return INPUTS[index], LABELS[index]


def supervised(
    live, *, batch=16, lr=1e-2, pieces=1, steps=STEP_COUNT, spoil=lambda step, loss: loss
):
    model = network()
    optimizer = made(live, torch.optim.Adam(model.parameters(), lr))
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(pieces):
            inputs, labels = drawn(batch)
            loss = functional.cross_entropy(model(inputs), labels) / pieces
            spoil(step, loss).backward()
        optimizer.step()


def tiny_batch(live, **options):
    supervised(live, batch=1, **options)


def accumulating(live, **options):
    supervised(live, batch=4, pieces=4, **options)


def adversarial(live):
    maker, judge_ = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    for_maker = made(live, torch.optim.Adam(maker.parameters(), 2e-2, betas=(0.5, 0.999)))
    for_judge = made(live, torch.optim.Adam(judge_.parameters(), 2e-2, betas=(0.5, 0.999)))
    one, zero = torch.ones(16, 1), torch.zeros(16, 1)
    loss = functional.binary_cross_entropy_with_logits
    for _ in range(STEP_COUNT // 2):
        fake = maker(torch.randn(16, 4))
        for_judge.zero_grad()
        loss(judge_(torch.randn(16, 2) + 2), one).backward()
        loss(judge_(fake.detach()), zero).backward()
        for_judge.step()
        for_maker.zero_grad()
        loss(judge_(fake), one).backward()
        for_maker.step()


def denoising(live):
    model = nn.Sequential(nn.Linear(17, 32), nn.SiLU(), nn.Linear(32, 16))
    optimizer = made(live, torch.optim.AdamW(model.parameters(), 1e-3))
    for _ in range(STEP_COUNT):
        (inputs, _), time, noise = drawn(16), torch.rand(16, 1), torch.randn(16, 16)
        mixed = torch.cat([(1 - time) * inputs + time * noise, time], 1)
        optimizer.zero_grad()
        functional.mse_loss(model(mixed), noise).backward()
        optimizer.step()


def rewarded(live):
    model = network()
    optimizer = made(live, torch.optim.Adam(model.parameters(), 1e-2))
    for _ in range(STEP_COUNT):
        inputs, labels = drawn(4)
        choice = torch.distributions.Categorical(logits=model(inputs))
        action = choice.sample()
        reward = (action == labels).float() * torch.randn(4).exp() * 10 - 1
        optimizer.zero_grad()
        (-(choice.log_prob(action) * reward).mean()).backward()
        optimizer.step()


def by_hand(live, *, lr=0.1):
    model = network()
    live.roots.add(model)
    for _ in range(STEP_COUNT):
        inputs, labels = drawn(16)
        functional.cross_entropy(model(inputs), labels).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(lr * weight.grad)
                weight.grad = None


def watched():
    return SimpleNamespace(live=LiveTraining(), thread=get_ident())


def record(script, seed, **options):
    torch.manual_seed(seed)
    watch = watched()
    health = TrainingHealthMonitor(watch)
    script(watch.live, **options)
    message = health.message
    health.close()
    torch.ones(1, requires_grad=True).sum().backward()
    return message


def envelope(message, *, count=RECORDED_COUNT):
    """Return what a proof would have seen, which records fewer steps."""
    kept = dict(message, losses=[row for row in message["losses"] if row[0] < count])
    if message["updates"]:
        return envelope_of([kept | {"moves": message["moves"][: count // 8], "updates": count}])
    return envelope_of([dict(message, losses=message["losses"][:count])])


def said(script, seed, held_against, **options):
    """Return what the guard of a run says; None where it is content."""
    torch.manual_seed(seed)
    watch, heard = watched(), []
    guard = Guard(
        watch, held_against, astray=lambda *wrong: heard.append(wrong), slow=lambda *s: None
    )
    script(watch.live, **options)
    guard._health.close()
    torch.ones(1, requires_grad=True).sum().backward()
    assert len(heard) <= 1
    return heard[0] if heard else None


@pytest.mark.parametrize(
    "script",
    [supervised, tiny_batch, accumulating, adversarial, denoising, rewarded, by_hand],
    ids=lambda script: script.__name__,
)
def test_says_nothing_of_the_same_training_under_another_seed(script) -> None:
    known = envelope(record(script, 1000))
    assert known.losses
    assert [found for seed in SEEDS if (found := said(script, seed, known))] == []


@pytest.mark.parametrize("script", [supervised, tiny_batch, by_hand])
def test_speaks_of_a_learning_rate_that_is_far_too_high(script) -> None:
    known = envelope(record(script, 1000))
    step, wrong = said(script, 1, known, lr=2.0 if script is not by_hand else 200.0)
    assert step <= STEP_COUNT
    assert "loss" in wrong


def test_names_the_step_at_which_a_loss_is_no_number() -> None:
    known = envelope(record(supervised, 1000))
    step, wrong = said(
        supervised, 1, known, spoil=lambda step, loss: loss * (math.nan if step == 11 else 1.0)
    )
    assert step == 12
    assert wrong == "the loss is nan, and without levers it was finite"


@pytest.mark.parametrize(
    ("spoilt_at", "wrong"),
    [(11, "the loss is nan; it was last known good at step 11"), (0, "the loss is nan")],
)
def test_what_was_recorded_of_other_arguments_says_nothing_of_a_loss(spoilt_at, wrong) -> None:
    known = envelope(record(supervised, 1000)).only_what_is_sure()
    spoil = lambda step, loss: loss * (math.nan if step == spoilt_at else 1.0)  # noqa: E731
    assert said(supervised, 1, known, spoil=spoil) == (spoilt_at + 1, wrong)


def test_hooks_that_the_script_registers_keep_their_numbers() -> None:
    before = RemovableHandle.next_id
    assert said(supervised, 1, envelope(record(supervised, 1000))) is None
    assert RemovableHandle.next_id == before


def test_the_losses_of_other_ranks_than_the_first_are_not_known(monkeypatch) -> None:
    known = envelope(record(supervised, 1000))
    monkeypatch.setattr(loss_guard, "own_rank", lambda: Rank(1, 2, 2))
    assert said(supervised, 1, known, lr=2.0) is None


def test_speaks_of_weights_that_do_not_move() -> None:
    known = envelope(record(supervised, 1000))
    _, wrong = said(supervised, 1, known, spoil=lambda step, loss: loss * 0.0)
    assert wrong == "the weights do not move"


def test_says_nothing_where_the_script_itself_has_no_learning_rate() -> None:
    assert said(supervised, 1, envelope(record(supervised, 1000)), lr=0.0, steps=20) is None


@pytest.mark.parametrize("levels", [[0.5] * 6, [0.5, 0.2, 0.1, 0.1, 0.1, 0.1], [-50.0] * 6])
def test_a_loss_below_the_envelope_is_no_fault_as_in_a_resumed_training(levels) -> None:
    known = envelope(record(supervised, 1000))
    for count in range(1, 7):
        assert judge(known, levels[:count], start=levels[0], moved=100.0) is None


def test_a_run_that_begins_higher_and_goes_down_is_no_fault() -> None:
    known = LossEnvelope(losses=(2.0, 1.5), spreads=(0.1, 0.1), losses_range=(1.4, 2.2))
    assert judge(known, [19.0], start=20.0, moved=None) is None
    assert judge(known, [40.0], start=20.0, moved=None) is not None


def test_a_loss_that_stays_where_it_began_is_told_at_the_end() -> None:
    known = LossEnvelope(
        losses=(2.0, 1.5, 1.2, 1.0), spreads=(0.05,) * 4, losses_range=(0.9, 2.2), moves=(0.1,) * 4
    )
    assert judge(known, [2.0] * 5, start=2.0, moved=0.1) is None
    assert "stays" in str(judge(known, [2.0] * 6, start=2.0, moved=0.1))
    assert judge(known, [2.0, 1.9, 1.8, 1.7, 1.6, 1.5], start=2.0, moved=0.1) is None


def test_leaves_torch_as_it_was_once_it_has_spoken() -> None:
    from torch.optim import optimizer

    hooks = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
    before = torch.autograd.backward, [len(group) for group in hooks]
    spoilt = envelope(record(supervised, 1000))
    assert said(supervised, 1, spoilt, spoil=lambda step, loss: loss * math.nan)
    assert (torch.autograd.backward, [len(group) for group in hooks]) == before


def test_a_script_that_ends_early_or_has_no_loss_of_one_number_is_left_alone() -> None:
    known = envelope(record(supervised, 1000))
    assert said(supervised, 1, known, steps=3) is None

    def several(live):
        weight = nn.Parameter(torch.ones(3))
        optimizer = made(live, torch.optim.SGD([weight], 0.1))
        for _ in range(STEP_COUNT):
            (weight * 2).backward(gradient=torch.ones(3))
            optimizer.step()

    assert said(several, 1, known) is None
    assert envelope(record(several, 1)).losses == ()


def test_a_failure_of_its_own_is_not_the_script_s() -> None:
    called = []

    def breaks(*wrong):
        called.append(wrong)
        raise RuntimeError("planted")

    watch = watched()
    Guard(watch, LossEnvelope(losses=(1.0,), spreads=(0.1,)), astray=breaks, slow=breaks)
    supervised(watch.live, spoil=lambda step, loss: loss * math.nan)
    assert len(called) == 1


def test_a_run_that_is_slower_than_without_levers_is_told_once() -> None:
    watch, heard = watched(), []
    known = LossEnvelope(step_s=1e-9)
    Guard(watch, known, astray=lambda *w: None, slow=lambda *seconds: heard.append(seconds))
    supervised(watch.live, steps=STEP_COUNT + 2)
    assert len(heard) == 1


def test_steps_that_wait_for_other_machines_are_not_called_slow(monkeypatch) -> None:
    rank = Rank(number=0, local_count=1, total_count=2)
    monkeypatch.setattr("hasten.instrument.loss_guard.own_rank", lambda: rank)
    watch, heard = watched(), []
    known = LossEnvelope(step_s=1e-9)
    Guard(watch, known, astray=lambda *w: None, slow=lambda *seconds: heard.append(seconds))
    supervised(watch.live, steps=STEP_COUNT + 2)
    assert not heard


def test_the_draws_of_the_script_stay_as_they_are() -> None:
    def last_draw(guarded):
        torch.manual_seed(3)
        watch = watched()
        if guarded:
            Guard(watch, LossEnvelope(), astray=lambda *w: None, slow=lambda *s: None)
        supervised(watch.live)
        return torch.rand(1).item()

    assert last_draw(True) == last_draw(False)


def test_an_envelope_needs_a_window_of_steps_and_losses_that_are_numbers() -> None:
    row = [(step, 1.0 + step % 2, False) for step in range(WINDOW_COUNT)]
    seen = {"losses": row, "moves": [0.1], "updates": WINDOW_COUNT, "steps": 4}
    found = envelope_of([seen], step_s=0.5)
    assert found is not None
    assert (found.losses, found.losses_range, found.step_s) == ((1.5,), (1.0, 2.0), 0.25)
    assert found.losses[0] == median(value for _, value, _ in row)
    assert envelope_of([seen | {"updates": 3, "moves": [], "losses": row[:3]}]) is None
    assert envelope_of([seen | {"losses": [*row, (7, math.inf, False)]}]) is None
    assert envelope_of([]) is None


def test_an_envelope_is_of_all_runs_as_far_as_all_went_and_holds_their_tails() -> None:
    def run(level, move, count):
        row = [(step, level, False) for step in range(count)]
        return {"losses": row, "moves": [move], "updates": count, "steps": count}

    found = envelope_of([run(1.0, 0.1, WINDOW_COUNT), run(3.0, 0.3, 2 * WINDOW_COUNT)])
    assert found is not None
    assert (found.losses, found.losses_range, found.moves) == ((2.0,), (1.0, 3.0), (0.3,))
    calm = run(1.0, 0.1, WINDOW_COUNT)
    rare = calm | {"losses": [*calm["losses"][:-1], (WINDOW_COUNT - 1, 9.0, False)]}
    told = envelope_of([rare])
    assert told is not None
    assert told.spreads[0] > 1.0  # half a standard deviation: seven of eight are the same


def test_the_sentence_names_the_step_the_figure_and_the_levers() -> None:
    text = astray_said(16, "the loss is nan", ["a=True"], ["b=2"])
    assert text.startswith("hasten: step 16: the loss is nan. Disabled: a=True.")
    assert "b=2" in text
    assert text.endswith("\n")
    assert "Disabled" not in astray_said(16, "the loss is nan", [], ["b=2"]).split("Only")[0]


def test_what_somebody_else_put_before_it_stays_there(monkeypatch) -> None:
    from functools import wraps

    watch, seen = watched(), []
    Guard(watch, LossEnvelope(), astray=lambda *w: None, slow=lambda *s: None)
    ours = torch.autograd.backward

    @wraps(ours)
    def theirs(*args, **kwargs):
        seen.append(1)
        return ours(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", theirs)
    supervised(watch.live, steps=STEP_COUNT + 5)
    assert torch.autograd.backward is theirs
    assert len(seen) == STEP_COUNT + 5


def test_a_new_optimizer_after_a_step_that_raised_is_counted() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise MemoryError

    watch = watched()
    health = TrainingHealthMonitor(watch)
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(MemoryError) as raised:
        Failing([weight], 0.1).step()
    supervised(watch.live, steps=3)
    assert health.update_count == 3
    assert raised.tb is not None  # it keeps the frames of the step
    health.close()
    torch.ones(1, requires_grad=True).sum().backward()


def test_nothing_is_read_while_a_graph_is_captured(monkeypatch) -> None:
    known = envelope(record(supervised, 1000))
    watch, heard = watched(), []
    guard = Guard(watch, known, astray=lambda *w: heard.append(w), slow=lambda *s: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    supervised(watch.live, spoil=lambda step, loss: loss * math.nan)
    assert (guard._health.losses, guard._health.ends_ns, heard) == ([], [], [])


@pytest.mark.parametrize("seed", range(3))
def test_says_nothing_of_a_long_run_that_goes_on_as_it_began(seed) -> None:
    assert said(supervised, seed, envelope(record(supervised, 1000)), steps=900) is None


@pytest.fixture(params=["long steps", "short steps"])
def short_steps(request, monkeypatch) -> bool:
    """Whether steps count as so short that most of them are not looked at."""
    is_short = request.param == "short steps"
    monkeypatch.setattr(loss_guard, "_SHORT_STEP_S", math.inf if is_short else 0.0)
    return is_short


def test_a_loss_that_is_no_number_long_after_the_first_steps_is_told_with_the_last_good_one(
    short_steps,
) -> None:
    known = envelope(record(supervised, 1000))
    step, wrong = said(
        supervised, 1, known, steps=400, spoil=lambda s, loss: loss * (math.nan if s > 200 else 1)
    )
    # Of short steps the last eight of each 64 are looked at.
    assert step == (249 if short_steps else 202)
    good_count = 192 if short_steps else 201
    assert wrong == f"the loss is nan; it was last known good at step {good_count}"


def test_a_loss_that_stays_far_above_all_that_the_run_has_seen_is_told(short_steps) -> None:
    known = envelope(record(supervised, 1000))
    step, wrong = said(
        supervised, 1, known, steps=2000, spoil=lambda s, loss: loss * (1e5 if s > 520 else 1)
    )
    # Once four windows are known, every 256th step ends one of short steps.
    assert step == (1536 if short_steps else 768)
    assert "last known good at step 512" in wrong


def test_the_losses_of_most_short_steps_are_not_read(short_steps) -> None:
    watch, heard, read = watched(), [], []
    guard = Guard(watch, LossEnvelope(), astray=heard.append, slow=heard.append)
    take = guard._health._take
    guard._health._take = lambda losses, is_grad: (read.append(losses), take(losses, is_grad))
    supervised(watch.live, steps=640)
    assert guard._health.step_count == 640
    assert len(read) == (64 + 8 * 4 if short_steps else 640)
    assert heard == []


@pytest.fixture
def told_slow(monkeypatch):
    """Return what a guard says of steps of that many seconds, some of which take one more."""

    def run(envelope_, step_s):
        watch, heard, now_ns = watched(), [], [5 * 10**9]
        monkeypatch.setattr(
            "hasten.instrument.training_health.time.perf_counter_ns", lambda: now_ns[0]
        )
        Guard(watch, envelope_, astray=lambda *w: None, slow=lambda *s: heard.append(s))

        def passes(step, loss):
            now_ns[0] += int(1e9 * (step_s + (step in (10, 20, 30))))
            return loss

        torch.manual_seed(0)
        supervised(watch.live, spoil=passes)
        torch.ones(1, requires_grad=True).sum().backward()
        return heard

    return run


@pytest.mark.parametrize(
    ("usual_s", "step_s", "told"),
    [
        (0.1, 0.1, False),
        (0.1, 0.149, False),
        (0.1, 0.151, True),
        (0.1, 0.00016, False),
        (0.002, 0.004, True),
        (5.0, 8.0, True),
        (5.0, 5.0, False),
    ],
)
def test_a_slow_run_is_told_in_seconds_and_a_usual_one_is_not(
    told_slow, usual_s, step_s, told
) -> None:
    heard = told_slow(LossEnvelope(step_s=usual_s), step_s)
    assert heard == ([(pytest.approx(step_s, rel=1e-3), usual_s)] if told else [])


def test_an_envelope_without_times_says_nothing_of_them(told_slow) -> None:
    assert told_slow(LossEnvelope(), 100.0) == []


def test_the_seconds_are_told_as_they_are() -> None:
    text = slow_said(0.15, 0.1)
    assert "150 ms" in text
    assert "100 ms" in text


KNOWN = LossEnvelope(
    losses=(2.0, 1.9, 1.8, 1.7), spreads=(0.05, 0.1, 0.02, 0.05), losses_range=(1.6, 2.2),
    moves=(0.01, 0.02, 0.01, 0.01),
)  # fmt: skip


@pytest.mark.parametrize(
    ("levels", "start", "wrong"),
    [
        # 2.2 at most, and half of the first loss above it
        ([3.19], 2.0, False),
        ([3.21], 2.0, True),
        # a run that began higher has that much more room
        ([3.9], 3.0, False),
        ([4.01], 3.0, True),
        # behind the four recorded windows less is known: six windows, one and a half times
        ([2.0] * 5 + [3.6], 2.0, False),
        ([2.0] * 5 + [3.75], 2.0, True),
        ([math.nan], 2.0, False),
    ],
)
def test_the_envelope_has_a_width_that_is_known(levels, start, wrong) -> None:
    said = judge(KNOWN, levels, start=start, moved=None)
    assert (said is not None) is wrong
    if wrong:
        assert said.startswith(f"the loss is {levels[-1]:.4g}, and without levers it was 2.2")


def test_an_envelope_of_noisy_losses_is_six_spreads_wide() -> None:
    noisy = replace(KNOWN, losses=(0.1, 0.1), spreads=(0.3, 0.5), losses_range=(-0.2, 0.4))
    assert judge(noisy, [3.3], start=0.1, moved=None) is None
    assert judge(noisy, [3.5], start=0.1, moved=None) is not None
    falling = replace(KNOWN, losses=(9.0, 1.0), spreads=(0.1, 0.1), losses_range=(0.9, 9.5))
    assert judge(falling, [17.4], start=9.0, moved=None) is None
    assert judge(falling, [17.6], start=9.0, moved=None) is not None


@pytest.mark.parametrize(
    ("level", "moved", "wrong"),
    [
        (2.5, 0.21, True),  # above 2.0 + 4 spreads + a quarter of the fall, and ten times as far
        (2.5, 0.19, False),
        (2.45, 0.21, False),
        (2.5, None, False),
    ],
)
def test_a_higher_loss_counts_sooner_where_the_weights_move_far(level, moved, wrong) -> None:
    said = judge(KNOWN, [level], start=2.0, moved=moved)
    assert (said is not None) is wrong
    if wrong:
        assert "the weights move 10.5 times as far" in said


def test_weights_that_hardly_moved_are_no_measure_of_moving_far() -> None:
    resting = replace(KNOWN, moves=(0.0, 0.0, 0.0, 0.0))
    assert judge(resting, [2.5], start=2.0, moved=9e-7) is None
    assert judge(resting, [2.5], start=2.0, moved=1.1e-6) is not None
    assert judge(replace(KNOWN, moves=()), [2.5], start=2.0, moved=100.0) is None


FALLING = LossEnvelope(losses=(2.0, 1.5, 1.2, 1.0), spreads=(0.05,) * 4, losses_range=(0.9, 2.2))


@pytest.mark.parametrize(
    ("envelope_", "levels", "told"),
    [
        (FALLING, [1.97] * 6, True),
        (FALLING, [1.94] * 6, False),
        (FALLING, [2.0] * 5, False),
        (FALLING, [2.03, 2.0, 2.0, 2.0, 2.0, 1.99], True),
        (FALLING, [2.05, 2.0, 2.0, 2.0, 2.0, 1.99], False),
        (replace(FALLING, losses=(2.0, 1.5, 1.0)), [2.0] * 6, False),  # too few windows
        (replace(FALLING, losses=(2.0, 1.9, 1.7, 1.0)), [2.0] * 6, False),  # late
        (replace(FALLING, spreads=(0.11,) * 4), [2.0] * 6, False),  # not clear
        (replace(FALLING, losses=(2.0, 1.9, 1.85, 1.81)), [2.0] * 6, False),  # less than a tenth
    ],
)
def test_a_loss_that_does_not_fall_is_told_where_it_fell_clearly_and_soon(
    envelope_, levels, told
) -> None:
    assert (judge(envelope_, levels, start=2.0, moved=None) is not None) is told


@pytest.mark.parametrize(
    ("known", "moves", "told"),
    [
        (KNOWN, [0.0, 0.0], True),
        (KNOWN, [0.0], False),
        (KNOWN, [0.0, 1e-9], False),
        (replace(KNOWN, moves=()), [0.0, 0.0], False),
        (replace(KNOWN, moves=(0.1, 1e-8)), [0.0, 0.0], False),
        (replace(KNOWN, moves=(0.1, 1e-7)), [0.0, 0.0], True),
    ],
)
def test_weights_that_rest_are_told_where_they_moved_without_levers(known, moves, told) -> None:
    assert (stuck(known, moves) is not None) is told


@pytest.mark.parametrize(
    ("known", "levels", "moved", "told"),
    [
        # behind the first window the usual loss is that of the same window
        (KNOWN, [2.0, 2.0, 2.25], 0.21, False),
        (KNOWN, [2.0, 2.0, 2.3], 0.21, True),
        # half of the size of the first loss is a margin below zero, too
        (replace(KNOWN, losses=(-2.0, -2.0), losses_range=(-2.1, -1.9)), [-0.95], None, False),
        (replace(KNOWN, losses=(-2.0, -2.0), losses_range=(-2.1, -1.9)), [-0.85], None, True),
        # a fall of a tenth is clear where the losses are calm
        (replace(FALLING, losses=(2.0, 1.9, 1.85, 1.81), spreads=(0.001,)), [2.0] * 6, None, False),
        (replace(FALLING, losses=(2.0, 1.9, 1.85, 1.79), spreads=(0.001,)), [2.0] * 6, None, True),
    ],
)
def test_a_run_is_held_against_the_same_part_of_the_recorded_one(
    known, levels, moved, told
) -> None:
    start = known.losses[0]
    assert (judge(known, levels, start=start, moved=moved) is not None) is told


@pytest.fixture
def guard_of():
    """Return guards that are fed by hand, and take them out of torch in the end."""
    guards = []

    def make(known):
        guards.append(
            Guard(watched(), known, astray=lambda *wrong: None, slow=lambda *seconds: None)
        )
        return guards[-1]

    yield make
    for guard in guards:
        guard._health.close()
    torch.ones(1, requires_grad=True).sum().backward()


def test_a_window_is_judged_by_its_own_losses_and_moves(guard_of) -> None:
    guard = guard_of(KNOWN)
    health = guard._health
    health.losses[:] = [(step, 2.0, False) for step in range(8)]
    health.moves[:] = [0.01]
    assert guard._leaves_the_envelope(0) is None
    health.losses += [(step, 2.5, False) for step in range(8, 16)]
    health.moves.append(0.3)
    step, wrong = guard._leaves_the_envelope(1)
    assert step == 16
    assert "the weights move 15 times as far" in wrong


@pytest.mark.parametrize(
    ("first", "levels", "window"),
    [
        # the highest known loss, and ten times the reach of all known ones
        (0.0, [1.0] * 4 + [10.9] * 9, None),
        (0.0, [1.0] * 4 + [11.1] * 9, 8),
        (3.0, [1.0] * 4 + [30.9] * 9, None),
        (3.0, [1.0] * 4 + [31.1] * 9, 8),
        (-3.0, [1.0] * 4 + [31.1] * 9, 8),
        (0.0, [1.0, -1.0] * 2 + [20.9] * 9, None),
        (0.0, [1.0, -1.0] * 2 + [21.1] * 9, 8),
        # four windows are known, and four in a row are high
        (0.0, [1.0] * 3 + [100.0] * 9, None),
        (0.0, [1.0] * 4 + [100.0, 100.0, 100.0, 1.0] * 3, None),
        (0.0, [1.0] * 4 + [1e6, 100.0, 100.0, 100.0], 8),
        (0.0, [5.0] + [1.0] * 30 + [54.9] * 4, None),
        (0.0, [5.0] + [1.0] * 30 + [55.1] * 4, 35),
    ],
)
def test_a_run_explodes_where_it_stays_far_above_all_that_it_has_seen(
    guard_of, first, levels, window
) -> None:
    guard = guard_of(LossEnvelope())
    guard._health.losses[:] = [(0, first, False)]
    assert guard._not_finite() is None
    said = [guard._highs.exceeded(level, 64 * i, 0) for i, level in enumerate(levels, start=1)]
    told = [i for i, wrong in enumerate(said, start=1) if wrong]
    assert told[:1] == ([] if window is None else [window])
    assert not told or f"last known good at step {64 * (window - 4)}" in said[window - 1]


@pytest.mark.parametrize(("stage_count", "is_told"), [(1, True), (2, False)])
def test_a_second_stage_has_losses_of_its_own(guard_of, stage_count, is_told) -> None:
    highs = guard_of(LossEnvelope())._highs
    stages = [(0.01, 1)] * 20 + [(2.3, stage_count)] * 8
    said = [highs.exceeded(level, 64 * i, count) for i, (level, count) in enumerate(stages)]
    assert any(said) is is_told


def test_stages_are_told_apart_by_their_optimizers() -> None:
    watch = watched()
    health = TrainingHealthMonitor(watch)
    for _ in range(3):
        supervised(watch.live)
    assert health.role_count == 1
    adversarial(watch.live)
    assert health.role_count > 1
    health.close()
    torch.ones(1, requires_grad=True).sum().backward()


def test_a_guard_of_a_long_run_keeps_what_it_has_not_looked_at_alone(monkeypatch) -> None:
    monkeypatch.setattr(loss_guard, "_SHORT_STEP_S", 0.0)
    watch = watched()
    guard = Guard(watch, LossEnvelope(), astray=lambda *wrong: None, slow=lambda *s: None)
    supervised(watch.live, steps=70)
    health = guard._health
    assert (health.step_count, len(health.losses), len(health.ends_ns)) == (70, 6, 6)
    health.close()
    torch.ones(1, requires_grad=True).sum().backward()


def test_a_fork_of_the_run_says_nothing(monkeypatch) -> None:
    watch, heard = watched(), []
    Guard(watch, LossEnvelope(), astray=lambda *wrong: heard.append(wrong), slow=lambda *s: None)
    monkeypatch.setattr("hasten.instrument.loss_guard.os.getpid", lambda: -1)
    supervised(watch.live, spoil=lambda step, loss: loss * math.nan)
    assert heard == []


def test_losses_by_grad_are_of_the_band_only_where_there_is_no_optimizer() -> None:
    plain = [(step, 1.0, False) for step in range(WINDOW_COUNT)]
    penalty = [(step, 100.0, True) for step in range(WINDOW_COUNT)]
    seen = {"losses": plain + penalty, "moves": [], "updates": WINDOW_COUNT, "steps": WINDOW_COUNT}
    found, bare = envelope_of([seen]), envelope_of([seen | {"updates": 0}])
    assert (found.by_hand, found.losses, found.losses_range) == (False, (1.0,), (1.0, 1.0))
    assert (bare.by_hand, bare.losses, bare.losses_range) == (True, (1.0, 100.0), (1.0, 100.0))


def test_a_band_lies_around_medians_and_is_a_normal_law_s_deviation_wide() -> None:
    def band(*losses):
        rows = [(step, value, False) for step, value in enumerate(losses)]
        return envelope_of([{"losses": rows, "moves": [], "updates": 8, "steps": 8}])

    assert band(*[1.0, 2.0] * 4).spreads == pytest.approx((1.4826 * 0.5,))
    assert band(*[1.0] * 7, 9.0).losses == (1.0,)
    assert band(*[1.0] * 7, 9.0).spreads == pytest.approx((7**0.5 / 2,))


def test_a_window_without_a_loss_leaves_no_band_of_losses() -> None:
    rows = [(step, 1.0, False) for step in range(8, 16)]
    found = envelope_of([{"losses": rows, "moves": [0.1, 0.2], "updates": 16, "steps": 16}])
    assert (found.losses, found.spreads, found.moves) == ((), (), (0.1, 0.2))


@contextmanager
def monitored(**options):
    """Read the vital signs, and leave torch as it was."""
    watch = watched()
    health = TrainingHealthMonitor(watch, **options)
    try:
        yield watch, health
    finally:
        health.close()
        torch.ones(1, requires_grad=True).sum().backward()


def test_a_movement_is_a_share_of_the_weights_a_window_before() -> None:
    with monitored() as (watch, health):
        weight = nn.Parameter(torch.ones(4))
        optimizer = made(watch.live, torch.optim.SGD([weight], 1 / 16))
        for _ in range(16):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
    assert health.moves == pytest.approx([(15 - 8) / 15, 8 / 8])


@pytest.mark.parametrize(
    ("by_hand", "losses"),
    [(None, [(0, 3.0, True), (0, 2.0, False)]), (False, [(0, 2.0, False)])],
)
def test_a_loss_that_is_asked_for_by_grad_is_marked(by_hand, losses) -> None:
    with monitored(by_hand=by_hand) as (_, health):
        weight = nn.Parameter(torch.ones(1))
        # By name: tests of twins read the code of the modules that are loaded.
        vars(torch.autograd)["grad"]((3 * weight).sum(), [weight])
        (2 * weight).sum().backward()
        assert health.losses == losses


def test_a_script_that_makes_losses_without_end_is_not_watched(monkeypatch) -> None:
    monkeypatch.setattr("hasten.instrument.training_health._MOST_LOSSES_COUNT", 3)
    with monitored() as (_, health):
        weight = nn.Parameter(torch.ones(1))
        for _ in range(6):
            (2 * weight).sum().backward()
        assert len(health.losses) == 4


def test_steps_inside_another_optimizer_s_and_of_other_threads_are_none() -> None:
    weight = nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([weight], 0.1)

    class Around(torch.optim.SGD):
        def step(self, closure=None):
            inner.step()

    outer = Around([weight], 0.1)
    with monitored() as (watch, health):
        for _ in range(3):
            outer.step()
        assert health.update_count == health.step_count == 3
        watch.thread += 1
        outer.step()
        assert health.update_count == health.step_count == 3
