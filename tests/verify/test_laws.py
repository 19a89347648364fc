"""The gates that compare laws: of the samples, of the draws in a model.

Where a verdict rests on chance, the rate of errors is a test.
"""

from dataclasses import replace

import numpy as np
import pytest

from hasten.verify import distribution, gates, precision
from hasten.verify.recorded_run import RecordedRun

STEPS, SIZE, KIND = 24, 200, "torch.float32 (8, 3)"


def drawn(seed, *, dropout=0.1, scale=1.0, shift=0.0, moved=0.0):
    """Return the evidence of a model that draws: the same weights and batches, other masks."""
    chance, weights = np.random.default_rng(seed), np.random.default_rng(0)
    losses, gradients, moves = [], [], []
    for step in range(STEPS):
        level = 2.0 - step / STEPS
        losses.append(scale * (level + dropout * chance.normal()) + shift)
        gradient = weights.normal(size=SIZE)
        noisy = gradient * (1 + dropout * chance.normal(size=SIZE))
        gradients.append((scale * noisy).astype(np.float32))
        moves.append(((-0.1 - moved) * gradient).astype(np.float32))
    return RecordedRun(
        step_count=STEPS, batches=(), orders=(), structure=(), samples=(8,) * STEPS,
        losses=tuple(losses), losses_at=tuple(range(1, STEPS + 1)), weights="", sizes=(SIZE,),
        gradients=tuple(gradients), moves=tuple(moves), gradients_taught=True,
    )  # fmt: skip


def batches(seed, *, mean=0.0, spread=1.0, kind=KIND, count=STEPS, same=False):
    """Return the evidence of batches: the same samples, each with noise of its own."""
    samples, noise = np.random.default_rng(0), np.random.default_rng(seed)
    outlines, names = [], []
    for number in range(count):
        values = samples.normal(size=64) + mean + spread * noise.normal(size=64)
        outlines.append(((kind, float(values.mean()), float(values.std())), ("label", 1.0, 1.0)))
        names.append("same" if same else f"batch {seed} {number}")
    return replace(drawn(0), outlines=tuple(outlines), batches=tuple(names))


def test_other_draws_of_the_samples_are_believed_in_nearly_all_cases() -> None:
    verdicts = [distribution.same_law(batches(1), batches(seed)).passed for seed in range(2, 302)]
    assert verdicts.count(True) >= 298


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": 0.4}, "mean of tensor 1"),
        ({"spread": 1.5}, "spread of tensor 1"),
        ({"kind": "torch.float64 (8, 3)"}, "types or shapes in batch 1"),
        ({"same": True}, "more than once"),
    ],
)
def test_another_law_of_the_samples_is_told(change, message) -> None:
    gate = distribution.same_law(batches(1), batches(2, **change))
    assert gate.passed is False
    assert message in gate.message


def test_a_few_batches_are_not_judged_by_their_values() -> None:
    gate = distribution.same_law(batches(1, count=4), batches(2, count=4, mean=5.0))
    assert gate.passed is None
    assert "too few" in gate.message


def test_other_draws_of_the_model_are_believed_in_nearly_all_cases() -> None:
    own = [drawn(1), drawn(2), drawn(3)]
    verdicts = [distribution.within_draws(own[0], drawn(s), own[1:]).passed for s in range(4, 304)]
    assert verdicts.count(True) >= 294


@pytest.mark.parametrize(
    "change", [{"dropout": 0.0}, {"dropout": 0.3}, {"scale": 0.5}, {"shift": 0.3}]
)
def test_another_law_of_the_model_is_told(change) -> None:
    gate = distribution.within_draws(drawn(1), drawn(9, **change), [drawn(2), drawn(3)])
    assert gate.passed is False, gate.message


def test_a_missing_dropout_is_told_where_one_step_outweighs_the_others() -> None:
    def weighed(seed, **change):
        first, *rest = drawn(seed).gradients[:1] + drawn(seed, **change).gradients[1:]
        return replace(drawn(seed), gradients=(1000 * first, *rest), losses=(2.0,) * STEPS)

    own = [weighed(seed) for seed in (1, 2, 3)]
    gate = distribution.within_draws(own[0], weighed(9, dropout=0.0), own[1:])
    assert gate.passed is False, gate.message
    assert distribution.within_draws(own[0], weighed(9), own[1:]).passed is True


def bent(seed, bend, *, every=4):
    """Return the evidence of a model that draws, with every fourth step changed by `bend`."""
    run = drawn(seed)
    steps = [
        bend(loss, row, index) if index % every == 0 else (loss, row)
        for index, (loss, row) in enumerate(zip(run.losses, run.gradients, strict=True))
    ]
    losses, gradients = zip(*steps, strict=True)
    return replace(run, losses=losses, gradients=gradients)


@pytest.mark.parametrize(
    ("bend", "message"),
    [
        (lambda loss, row, index: (loss, 0 * row), "the gradients lie"),
        (lambda loss, row, index: (loss + 50 * (-1) ** (index // 4), row), "the losses spread"),
        (lambda loss, row, index: (loss, row * np.float32(np.nan)), "a gradient is not a number"),
    ],
)
def test_a_plan_that_is_far_off_in_some_steps_alone_is_told(bend, message) -> None:
    own = [drawn(seed) for seed in (1, 2, 3)]
    gate = distribution.within_draws(own[0], bent(9, bend), own[1:])
    assert gate.passed is False
    assert message in gate.message


def test_steps_in_which_the_scripts_own_gradients_are_no_numbers_are_left_out() -> None:
    """A scaler of float16 begins with overflows."""

    def bend(loss, row, index):
        return loss, row * np.float32(np.inf)

    own = [bent(seed, bend) for seed in (1, 2, 3)]
    gate = distribution.within_draws(own[0], bent(9, bend), own[1:])
    assert gate.passed is True, gate.message
    assert "nan" not in gate.message


def test_rounding_in_steps_that_draw_nothing_is_no_spread() -> None:
    """A layer is skipped now and then; the plan sums in another order, too."""

    def still(seed, rounding=0.0):
        run, same = drawn(seed), drawn(0, dropout=0.0)
        rows = zip(run.gradients, same.gradients, strict=True)
        gradients = [
            row if index % 6 == 0 else one * np.float32(1 + rounding)
            for index, (row, one) in enumerate(rows)
        ]
        losses = [run.losses[i] if i % 6 == 0 else same.losses[i] for i in range(STEPS)]
        return replace(run, losses=tuple(losses), gradients=tuple(gradients))

    own = [still(seed) for seed in (1, 2, 3)]
    verdicts = [
        distribution.within_draws(own[0], still(s, 2.0**-21), own[1:]) for s in range(4, 54)
    ]
    assert [gate.passed for gate in verdicts].count(False) <= 1


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_draws_seen_in_a_few_steps_alone_are_seldom_blamed(count) -> None:
    def few(seed):
        run = drawn(seed)
        return replace(
            run, step_count=count, losses=run.losses[:count], losses_at=run.losses_at[:count],
            gradients=run.gradients[:count], moves=run.moves[:count], samples=run.samples[:count],
        )  # fmt: skip

    own = [few(1), few(2), few(3)]
    verdicts = [distribution.within_draws(own[0], few(s), own[1:]).passed for s in range(4, 304)]
    assert verdicts.count(False) <= 21
    assert (None in verdicts) is (count < 8)


def test_draws_that_matter_for_nothing_must_change_nothing() -> None:
    still = [drawn(seed, dropout=0.0) for seed in (1, 2, 3)]
    assert distribution.within_draws(still[0], drawn(4, dropout=0.0), still[1:]).passed is True
    assert distribution.within_draws(still[0], drawn(4, scale=1.1), still[1:]).passed is False


def test_an_optimizer_is_compared_on_the_same_gradients() -> None:
    floor = replace(drawn(5), moves=tuple(m * np.float32(1 + 2.0**-23) for m in drawn(5).moves))
    assert precision.same_update(drawn(1), drawn(2), [floor]).passed is True
    assert precision.same_update(drawn(1), drawn(2, moved=0.0005), [floor]).passed is False
    skipped = drawn(2)
    skipped = replace(skipped, moves=(*skipped.moves[:-1], 0 * skipped.moves[-1]))
    gate = precision.same_update(drawn(1), skipped, [floor])
    assert gate.passed is False
    assert f"step {STEPS}" in gate.message
    untaught = replace(drawn(2), gradients_taught=False)
    assert precision.same_update(drawn(1), untaught, [floor]).passed is None


@pytest.mark.parametrize(
    ("change", "passed"),
    [({}, True), ({"scale": 0.97}, False), ({"scale": -1.0}, False), ({"dropout": 0.3}, False)],
)
def test_fewer_bits_neither_turn_nor_stretch_the_gradients(change, passed) -> None:
    plain = drawn(1, dropout=0.0)
    floor, narrow = drawn(2, dropout=0.004), drawn(3, **{"dropout": 0.004, **change})
    gate = precision.within_precision(plain, narrow, [floor], epsilon_ratio=2.0**-8)
    assert gate.passed is passed, gate.message


@pytest.mark.parametrize(
    ("floor", "change", "message"),
    [
        (0.05, {"dropout": 0.2}, "cosine of the gradients"),
        (0.05, {"scale": 1.02}, "the gradients are longer"),
        (0.05, {"scale": 0.98}, "the gradients are shorter"),
        (0.004, {"dropout": 0.04}, "times what a change of each weight"),
    ],
)
def test_each_way_of_differing_more_than_fewer_bits_must_is_told(floor, change, message) -> None:
    narrow = drawn(3, **{"dropout": floor, **change})
    shaken = [drawn(2, dropout=floor)]
    gate = precision.within_precision(drawn(1, dropout=0.0), narrow, shaken, epsilon_ratio=2.0**-8)
    assert gate.passed is False
    assert message in gate.message


def overflowed(*steps, count=STEPS):
    """Return the evidence of fewer bits, with steps that overflowed."""
    narrow = drawn(3, dropout=0.004)
    gradients = [
        np.full_like(one, np.inf) if step in steps else one
        for step, one in enumerate(narrow.gradients)
    ]
    return replace(narrow, gradients=tuple(gradients), overflows=steps, step_count=count)


def test_the_first_steps_may_overflow_until_the_scale_has_settled() -> None:
    plain, floor = drawn(1, dropout=0.0), drawn(2, dropout=0.004)
    gate = precision.within_precision(plain, overflowed(0, 1, 13), [floor], epsilon_ratio=2.0**-8)
    assert gate.passed is True, gate.message
    assert gate.message.endswith("3 of 24 steps overflowed and were left out")
    gate = precision.within_precision(plain, overflowed(0, 12, 15), [floor], epsilon_ratio=2.0**-8)
    assert gate.passed is False
    assert gate.message.startswith("the gradients of step 16 overflowed")


def test_a_loss_that_is_no_number_is_not_fewer_bits() -> None:
    narrow = drawn(3, dropout=0.004)
    lost = replace(narrow, losses=(float("nan"), *narrow.losses[1:]))
    gate = precision.within_precision(
        drawn(1, dropout=0.0), lost, [drawn(2, dropout=0.004)], epsilon_ratio=2.0**-8
    )
    assert (gate.passed, gate.message) == (False, "a loss is not a number")


def test_fewer_bits_are_not_blamed_for_what_the_script_does_to_itself() -> None:
    """Two launches differ by most of a gradient: that is no gradient of rounding alone."""
    plain, narrow = drawn(1, dropout=0.8), drawn(9, dropout=0.8)
    floors = [drawn(seed, dropout=0.8) for seed in (2, 3, 4)]
    for varies, passed in ((True, True), (False, False)):
        gate = precision.within_precision(
            plain, narrow, floors, epsilon_ratio=2.0**-8, varies=varies
        )
        assert gate.passed is passed, gate.message


def followed(values):
    """Return evidence with running averages: nobody says in which order they are found."""
    return replace(drawn(1), averages=tuple(("(4,)", np.float32(v) * np.ones(4)) for v in values))


def test_averages_are_compared_with_the_nearest_whatever_their_order() -> None:
    baseline, floor = followed([1.0, 2.0]), followed([1.0, 2.0])
    assert gates.within_floor(baseline, followed([2.0, 1.0, 7.0]), [floor]).passed is True
    assert gates.within_floor(baseline, followed([1.0, 2.001]), [floor]).passed is False
    assert gates.within_floor(baseline, followed([]), [floor]).passed is False
    assert followed([2.0, 1.0]).equals(baseline)
    assert not followed([1.0, 2.001]).equals(baseline)


def outlined(figures, names=None):
    """Return the evidence of batches with these figures: (batches, tensors, mean and spread)."""
    outlines = tuple(tuple((KIND, *map(float, part)) for part in batch) for batch in figures)
    names = names or tuple(map(str, range(len(figures))))
    return replace(drawn(0), outlines=outlines, batches=names)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("figure", ["mean of tensor 1", "spread of tensor 1", "mean of tensor 2"])
@pytest.mark.parametrize(
    ("count", "errors", "passed"),
    [
        (16, 5.9, True),
        (16, 6.1, False),
        (15, 11.9, True),
        (15, 12.1, False),
        (8, 11.9, True),
        (8, 12.1, False),
        (7, 12.1, None),
    ],
)
def test_samples_lie_six_standard_errors_apart_and_twelve_of_few_batches(
    sign, figure, count, errors, passed
) -> None:
    signs = np.resize([1.0, -1.0], count)
    signs[count - count % 2 :] = 0.0
    shift = errors * np.std(signs, ddof=1) / count**0.5
    own, other = np.zeros((2, count, 2, 2))
    other[:, int(figure[-1]) - 1, int("spread" in figure)] = sign * (shift + signs)
    gate = distribution.same_law(outlined(own), outlined(other))
    assert gate.passed is passed
    assert passed is not False or f"the {figure} in a batch" in gate.message


def test_samples_that_are_all_shifted_alike_are_of_another_law() -> None:
    own = np.zeros((8, 1, 2))
    assert distribution.same_law(outlined(own), outlined(own + 0.5)).passed is False


def test_a_batch_may_come_again_where_it_does_in_the_script() -> None:
    figures, again = np.zeros((8, 1, 2)), ("0", "0", *map(str, range(2, 8)))
    twice, once = outlined(figures, again), outlined(figures)
    assert distribution.same_law(twice, twice).passed is True
    assert distribution.same_law(twice, once).passed is True
    gate = distribution.same_law(once, twice)
    assert gate.passed is False
    assert "more than once" in gate.message


def valued(losses, lengths):
    """Return a run with these losses and with gradients of these lengths."""
    rows = tuple(np.float32([length]) for length in lengths)
    at = tuple(range(1, len(rows) + 1))
    return replace(
        drawn(0), sizes=(1,), losses=tuple(losses), losses_at=at, gradients=rows, moves=rows
    )


@pytest.mark.parametrize("word", ["losses", "gradients"])
@pytest.mark.parametrize(
    ("shift", "spread", "passed"),
    [
        (4.4, 0.75, True),
        (-4.4, 0.75, True),
        (4.6, 0.75, False),
        (-4.6, 0.75, False),
        (0.0, 0.29, False),
        (0.0, 0.31, True),
        (0.0, 3.4, True),
        (0.0, 3.6, False),
    ],
)
def test_draws_shift_and_spread_as_under_other_seeds(word, shift, spread, passed) -> None:
    """Three runs around 10 have a variance of 1; of one run around their middle it is 4/3."""
    count = 4 * STEPS
    own = [valued([level] * count, [level] * count) for level in (9.0, 10.0, 11.0)]
    share = (3 * spread + 1) / (4 * spread + 12)
    away = (2 * share / (9 / 16 - 3 / 4 * share)) ** 0.5
    signs = np.resize([1.0, -1.0], count)
    usual = 10 + signs
    other = 10 + shift * (4 / 3 / count) ** 0.5 + away * signs
    candidate = valued(other, usual) if word == "losses" else valued(usual, other)
    gate = distribution.within_draws(own[0], candidate, own[1:])
    assert gate.passed is passed, gate.message
    assert passed or gate.message.startswith(f"the {word} ")
    if not passed and shift:
        assert gate.distance_ratio == pytest.approx(4.6 / 4.5, rel=1e-3)


@pytest.mark.parametrize("law", ["normal", "standard_t", "lognormal"])
def test_draws_are_seldom_blamed_whatever_their_law(law) -> None:
    """Steps vary by different factors, and some draws lie far out."""

    def varied(seed):
        chance, levels = np.random.default_rng(seed), np.random.default_rng(0)
        draw = {"normal": (), "standard_t": (3,), "lognormal": (0.0, 1.0)}[law]
        values = getattr(chance, law)(*draw, size=STEPS) * levels.lognormal(0.0, 1.2, STEPS)
        return valued(10 + values, 100 + values)

    verdicts = [
        distribution.within_draws(*map(varied, (at, at + 1)), [*map(varied, (at + 2, at + 3))])
        for at in range(1, 1200, 4)
    ]
    assert [gate.passed for gate in verdicts].count(False) <= 3


def by_draws(own, other):
    return distribution.within_draws(own, other, [drawn(2), drawn(3)])


def by_precision(own, other):
    return precision.within_precision(own, other, [drawn(2)], epsilon_ratio=2.0**-8)


@pytest.mark.parametrize("judge", [by_draws, by_precision])
def test_what_cannot_be_compared_is_not_the_same(judge) -> None:
    own, other = drawn(1), drawn(4)
    for change in ({"sizes": (SIZE - 1, 1)}, {"losses": other.losses[:-1]}):
        gate = judge(own, replace(other, **change))
        assert gate.passed is False
        assert gate.message == "the plan changes the parameters or the number of losses"
    lost = replace(other, losses=(*other.losses[:-1], float("nan")))
    gate = judge(own, lost)
    assert (gate.passed, gate.message) == (False, "a loss is not a number")


EPSILON = 2.0**-8


def aimed(*row, **details):
    """Return a run in which each step has that gradient; `sizes` may make tensors of it."""
    rows = (np.float32(row),) * STEPS
    given = {"sizes": (len(row),), "losses": (1.0,) * STEPS, "moves": rows, **details}
    return replace(drawn(0), gradients=rows, **given)


def narrowed(own, other, floors):
    return precision.within_precision(own, other, floors, epsilon_ratio=EPSILON)


@pytest.mark.parametrize(
    ("floors", "cosine", "passed"),
    [
        ([0.98], 0.961, True),
        ([0.98], 0.959, False),
        ([0.999], 0.991, True),
        ([0.999], 0.989, False),
        ([0.999, 0.98], 0.961, True),
        ([0.98, 0.999], 0.961, True),
    ],
)
def test_gradients_may_turn_twice_as_far_as_under_the_floor(floors, cosine, passed) -> None:
    """As long along the script's as those are, and so far aside."""

    def turned(cosine):
        return aimed(1.0, (1 / cosine**2 - 1) ** 0.5)

    gate = narrowed(aimed(1.0, 0.0), turned(cosine), [turned(one) for one in floors])
    assert gate.passed is passed, gate.message
    assert passed or "the cosine of the gradients is" in gate.message


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("floors", "stretch", "passed"),
    [
        ([0.0], 0.0038, True),
        ([0.0], 0.0040, False),
        ([0.002], 0.0098, True),
        ([0.002], 0.0102, False),
        ([-0.002], 0.0098, True),
        ([0.0, 0.002], 0.0098, True),
    ],
)
def test_gradients_may_stretch_by_one_bit_or_five_times_the_floor(
    sign, floors, stretch, passed
) -> None:
    shaken = [aimed(1 + one, 0.05) for one in floors]
    gate = narrowed(aimed(1.0, 0.0), aimed(1 + sign * stretch, 0.05), shaken)
    assert gate.passed is passed, gate.message
    assert passed or f"are {'longer' if sign > 0 else 'shorter'} by" in gate.message


@pytest.mark.parametrize(("times", "passed"), [(4.9, True), (-4.9, True), (5.1, False)])
def test_a_sixteenth_of_a_bit_is_the_least_floor_of_fewer_bits(times, passed) -> None:
    own = aimed(1.0, 0.05)
    other = replace(own, losses=(1 + times * EPSILON / 16,) * STEPS)
    gate = narrowed(own, other, [own])
    assert gate.passed is passed
    assert gate.distance_ratio == pytest.approx(abs(times), rel=1e-6)


@pytest.mark.parametrize(
    ("shaken", "size", "passed"), [(0.55, 4.9, True), (0.55, 5.1, False), (0.45, 4.9, False)]
)
def test_a_gradient_that_a_floor_takes_half_as_far_only_has_to_stay_small(
    shaken, size, passed
) -> None:
    """Such as that of a bias before the norm of a batch; `size` is in thousandths of all."""
    rest = {"sizes": (1, 1, 1)}
    own, floor = aimed(1.0, 0.001, 0.001, **rest), 0.001 * (1 + shaken)
    other = aimed(1.0, 0.001 * size, 0.001 * size, **rest)
    assert narrowed(own, other, [aimed(1.0, floor, floor, **rest)]).passed is passed


def test_where_an_optimizer_had_gradients_of_its_own_its_weights_are_fewer_bits_too() -> None:
    own, floor = aimed(1.0, 0.0), aimed(1.0, 0.05)
    twice = replace(floor, moves=tuple(2 * move for move in own.moves))
    assert narrowed(own, twice, [floor]).passed is True
    gate = narrowed(own, replace(twice, gradients_taught=False), [floor])
    assert gate.passed is False
    assert "weights differ by" in gate.message


@pytest.mark.parametrize(
    ("factors", "passed", "ratio"),
    [
        ((9.8, 9.8, 9.8), True, 9.8),
        ((10.2, 10.2, 10.2), False, 10.2),
        ((1.0, 1.0, 98.0), True, 9.8),
        ((1.0, 1.0, 102.0), False, 10.2),
        ((0.0, 0.0, -1e5), False, 1e4),  # frozen: too small a part to show in the whole
    ],
)
def test_an_update_is_that_of_the_typical_tensor_and_of_the_worst(factors, passed, ratio) -> None:
    """In units of a floor far above the rounding of 32 bits."""

    def updated(*factors):
        moves = np.float32([8.0, 1.0, 1.0]) * np.float32([1 + 1e-5 * one for one in factors])
        return aimed(1.0, 1.0, 1.0, sizes=(1, 1, 1), moves=(moves,) * STEPS)

    gate = precision.same_update(updated(0.0, 0.0, 0.0), updated(*factors), [updated(1, 1, 1)])
    assert gate.passed is passed, gate.message
    assert gate.distance_ratio == pytest.approx(ratio, rel=0.02)


def test_an_update_is_not_judged_by_gradients_that_it_did_not_get() -> None:
    floor = drawn(5)
    assert precision.same_update(drawn(1), drawn(2, scale=3.0), [floor]).passed is True
