"""The guard of a real run speaks of what has gone plainly wrong, and of nothing else."""

import math
from statistics import median
from threading import get_ident
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from upshift.attach.guard import STEP_COUNT, Guard, astray_said, judge  # noqa: E402
from upshift.attach.live import LiveTraining  # noqa: E402
from upshift.attach.vitals import WINDOW_COUNT, Vitals  # noqa: E402
from upshift.records import Band  # noqa: E402
from upshift.verify.band import band_of  # noqa: E402

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
    return SimpleNamespace(live=LiveTraining(), inside=[False], thread=get_ident())


def record(script, seed, **options):
    torch.manual_seed(seed)
    watch = watched()
    vitals = Vitals(watch)
    script(watch.live, **options)
    message = vitals.message
    vitals.close()
    torch.ones(1, requires_grad=True).sum().backward()
    return message


def band(message, *, count=RECORDED_COUNT):
    """Return what a proof would have seen, which records fewer steps."""
    kept = dict(message, losses=[row for row in message["losses"] if row[0] < count])
    if message["updates"]:
        return band_of([kept | {"moves": message["moves"][: count // 8], "updates": count}])
    return band_of([dict(message, losses=message["losses"][:count])])


def said(script, seed, held_against, **options):
    """Return what the guard of a run says; None where it is content."""
    torch.manual_seed(seed)
    watch, heard = watched(), []
    Guard(watch, held_against, astray=lambda *wrong: heard.append(wrong), slow=lambda *s: None)
    script(watch.live, **options)
    torch.ones(1, requires_grad=True).sum().backward()
    assert len(heard) <= 1
    return heard[0] if heard else None


@pytest.mark.parametrize(
    "script",
    [supervised, tiny_batch, accumulating, adversarial, denoising, rewarded, by_hand],
    ids=lambda script: script.__name__,
)
def test_says_nothing_of_the_same_training_under_another_seed(script) -> None:
    known = band(record(script, 1000))
    assert known.losses
    assert [found for seed in SEEDS if (found := said(script, seed, known))] == []


@pytest.mark.parametrize("script", [supervised, tiny_batch, by_hand])
def test_speaks_of_a_learning_rate_that_is_far_too_high(script) -> None:
    known = band(record(script, 1000))
    step, wrong = said(script, 1, known, lr=2.0 if script is not by_hand else 200.0)
    assert step <= STEP_COUNT
    assert "loss" in wrong


def test_names_the_step_at_which_a_loss_is_no_number() -> None:
    known = band(record(supervised, 1000))
    step, wrong = said(
        supervised, 1, known, spoil=lambda step, loss: loss * (math.nan if step == 11 else 1.0)
    )
    assert step == 12
    assert "nan" in wrong


def test_speaks_of_weights_that_do_not_move() -> None:
    known = band(record(supervised, 1000))
    _, wrong = said(supervised, 1, known, spoil=lambda step, loss: loss * 0.0)
    assert wrong == "the weights do not move"


def test_says_nothing_where_the_script_itself_has_no_learning_rate() -> None:
    assert said(supervised, 1, band(record(supervised, 1000)), lr=0.0, steps=20) is None


@pytest.mark.parametrize("levels", [[0.5] * 6, [0.5, 0.2, 0.1, 0.1, 0.1, 0.1], [-50.0] * 6])
def test_a_loss_below_the_band_is_no_fault_as_in_a_resumed_training(levels) -> None:
    known = band(record(supervised, 1000))
    for count in range(1, 7):
        assert judge(known, levels[:count], start=levels[0], moved=100.0) is None


def test_a_run_that_begins_higher_and_goes_down_is_no_fault() -> None:
    known = Band(losses=(2.0, 1.5), spreads=(0.1, 0.1), losses_range=(1.4, 2.2))
    assert judge(known, [19.0], start=20.0, moved=None) is None
    assert judge(known, [40.0], start=20.0, moved=None) is not None


def test_a_loss_that_stays_where_it_began_is_told_at_the_end() -> None:
    known = Band(
        losses=(2.0, 1.5, 1.2, 1.0), spreads=(0.05,) * 4, losses_range=(0.9, 2.2), moves=(0.1,) * 4
    )
    assert judge(known, [2.0] * 5, start=2.0, moved=0.1) is None
    assert "stays" in str(judge(known, [2.0] * 6, start=2.0, moved=0.1))
    assert judge(known, [2.0, 1.9, 1.8, 1.7, 1.6, 1.5], start=2.0, moved=0.1) is None


def test_leaves_torch_as_it_was_after_its_steps() -> None:
    from torch.optim import optimizer

    hooks = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
    before = torch.autograd.backward, [len(group) for group in hooks]
    said(supervised, 1, band(record(supervised, 1000)))
    assert (torch.autograd.backward, [len(group) for group in hooks]) == before


def test_a_script_that_ends_early_or_has_no_loss_of_one_number_is_left_alone() -> None:
    known = band(record(supervised, 1000))
    assert said(supervised, 1, known, steps=3) is None

    def several(live):
        weight = nn.Parameter(torch.ones(3))
        optimizer = made(live, torch.optim.SGD([weight], 0.1))
        for _ in range(STEP_COUNT):
            (weight * 2).backward(gradient=torch.ones(3))
            optimizer.step()

    assert said(several, 1, known) is None
    assert band(record(several, 1)).losses == ()


def test_a_failure_of_its_own_is_not_the_script_s() -> None:
    called = []

    def breaks(*wrong):
        called.append(wrong)
        raise RuntimeError("planted")

    watch = watched()
    Guard(watch, Band(losses=(1.0,), spreads=(0.1,)), astray=breaks, slow=breaks)
    supervised(watch.live, spoil=lambda step, loss: loss * math.nan)
    assert len(called) == 1


def test_a_run_that_is_slower_than_without_levers_is_told_once() -> None:
    watch, heard = watched(), []
    known = Band(step_s=1e-9)
    Guard(watch, known, astray=lambda *w: None, slow=lambda *seconds: heard.append(seconds))
    supervised(watch.live, steps=STEP_COUNT + 2)
    assert len(heard) == 1


def test_the_draws_of_the_script_stay_as_they_are() -> None:
    def last_draw(guarded):
        torch.manual_seed(3)
        watch = watched()
        if guarded:
            Guard(watch, Band(), astray=lambda *w: None, slow=lambda *s: None)
        supervised(watch.live)
        return torch.rand(1).item()

    assert last_draw(True) == last_draw(False)


def test_a_band_needs_a_window_of_steps_and_losses_that_are_numbers() -> None:
    row = [(step, 1.0 + step % 2, False) for step in range(WINDOW_COUNT)]
    seen = {"losses": row, "moves": [0.1], "updates": WINDOW_COUNT, "steps": 4}
    found = band_of([seen], step_s=0.5)
    assert found is not None
    assert (found.losses, found.losses_range, found.step_s) == ((1.5,), (1.0, 2.0), 0.25)
    assert found.losses[0] == median(value for _, value, _ in row)
    assert band_of([seen | {"updates": 3, "moves": [], "losses": row[:3]}]) is None
    assert band_of([seen | {"losses": [*row, (7, math.inf, False)]}]) is None
    assert band_of([]) is None


def test_the_sentence_names_the_step_the_figure_and_the_levers() -> None:
    text = astray_said(16, "the loss is nan", ["a=True"], ["b=2"])
    assert text.startswith("upshift: step 16: the loss is nan. Put back: a=True.")
    assert "b=2" in text
    assert text.endswith("\n")
    assert "Put back" not in astray_said(16, "the loss is nan", [], ["b=2"]).split("Only")[0]


def test_what_somebody_else_put_before_it_stays_there(monkeypatch) -> None:
    from functools import wraps

    watch, seen = watched(), []
    Guard(watch, Band(), astray=lambda *w: None, slow=lambda *s: None)
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
    vitals = Vitals(watch)
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(MemoryError) as raised:
        Failing([weight], 0.1).step()
    supervised(watch.live, steps=3)
    assert vitals.update_count == 3
    assert raised.tb is not None  # it keeps the frames of the step
    vitals.close()
    torch.ones(1, requires_grad=True).sum().backward()


def test_nothing_is_read_while_a_graph_is_captured(monkeypatch) -> None:
    known = band(record(supervised, 1000))
    watch, heard = watched(), []
    guard = Guard(watch, known, astray=lambda *w: heard.append(w), slow=lambda *s: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    supervised(watch.live, spoil=lambda step, loss: loss * math.nan)
    assert (guard._vitals.losses, guard._vitals.ends_ns, heard) == ([], [], [])
