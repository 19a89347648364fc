"""Thresholds of the families of arithmetic, on cases that are made by hand."""

from dataclasses import replace

import pytest

from upshift import machine
from upshift.diagnose import Case, discover
from upshift.diagnose.families.growth import sen_slope
from upshift.records import Phase, Profile, Step

STEP_S = 0.1
PHASES = {Phase.FORWARD: 0.04, Phase.BACKWARD: 0.04, Phase.OPTIMIZER: 0.02}
WATCHED = [2, 4, 6]


def step(factor=1.0, sample_count=1):
    ns = {phase: int(seconds * factor * 1e9) for phase, seconds in PHASES.items()}
    return Step(phase_ns=ns, sample_count=sample_count)


@pytest.fixture(scope="module")
def case():
    profile = Profile(
        step_s=STEP_S, step_low_s=STEP_S, step_high_s=STEP_S, sample_unit="samples",
        sample_count=1, phase_s=PHASES, step_count=20,
    )  # fmt: skip
    facts = machine.read(probe=lambda: None)
    return Case(machine=facts, profile=profile, steps=tuple(step() for _ in range(30)))


def find(case, name, *, traits=None, steps=None, **found):
    told = {key.replace("__", "."): value for key, value in found.items()}
    case = replace(case, traits=traits or {}, found={"operations.steps": WATCHED, **told})
    return discover()[name].find(case if steps is None else replace(case, steps=tuple(steps)))


NAMES = [
    "denormals", "page-faults", "slow-layout", "low-precision-without-hardware", "tf32-off",
    "per-parameter-loops", "step-reporting", "debug-mode", "float64", "tiny-batch",
    "graph-kept-alive", "growing-steps", "padding-waste",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_says_nothing_where_nothing_is_known(case, name) -> None:
    assert find(case, name) is None
    assert discover()[name].find(replace(case, steps=())) is None


def test_float64_costs_what_float32_would_not_take(case) -> None:
    seconds = {"float64": [0.04, 0.04, 0.04]}
    found = find(
        case, "float64", operations__seconds=seconds, operations__speed_ratio={"float64": 0.5}
    )
    assert found.share.mid_ratio == pytest.approx(0.2)
    equal = {"float64": 1.0}
    assert not find(case, "float64", operations__seconds=seconds, operations__speed_ratio=equal)


def test_a_model_of_doubles_gets_another_remedy(case) -> None:
    known = {
        "operations__seconds": {"float64": [0.04, 0.04, 0.04]},
        "operations__speed_ratio": {"float64": 0.5},
    }
    own = find(case, "float64", traits={"model.dtype": "float64"}, **known)
    entering = find(case, "float64", traits={"model.dtype": "float32"}, **known)
    assert "model.float()" in own.remedy
    assert "model.float()" not in entering.remedy


def test_some_double_numbers_cost_too_little_to_be_told(case) -> None:
    assert not find(
        case,
        "float64",
        operations__seconds={"float64": [0.001, 0.001, 0.001]},
        operations__speed_ratio={"float64": 0.5},
    )


def test_few_bits_are_told_only_where_they_are_slower(case) -> None:
    known = {"operations__seconds": {"product.bfloat16": [0.05] * 3, "cast": [0.01] * 3}}
    name = "low-precision-without-hardware"
    slow = find(case, name, operations__speed_ratio={"bfloat16": 0.2}, **known)
    assert slow.share.mid_ratio == pytest.approx(0.5)
    assert slow.lever is None
    assert not find(case, name, operations__speed_ratio={"bfloat16": 3.0}, **known)
    on_card = {"model.device": "cuda"}
    speeds = {"bfloat16": 0.2}
    assert not find(case, name, traits=on_card, operations__speed_ratio=speeds, **known)


def test_tf32_is_told_on_a_card_that_has_it_and_a_script_that_does_not_use_it(case) -> None:
    known = {"operations__seconds": {"product.float32": [0.06] * 3}}
    traits = {
        "model.device": "cuda", "fp32.precision": "highest", "tf32_inside.matmul_ratio": 4.0,
    }  # fmt: skip
    found = find(case, "tf32-off", traits=traits, **known)
    assert found.share.mid_ratio == pytest.approx(0.45)
    assert found.lever == "fp32_precision"
    for change in (
        {"fp32.precision": "high"}, {"tf32_inside.matmul_ratio": 1.0}, {"model.device": "cpu"},
    ):  # fmt: skip
        assert not find(case, "tf32-off", traits=traits | change, **known)


def test_a_layout_that_is_not_faster_is_left_alone(case) -> None:
    known = {"operations__seconds": {"convolution.float32": [0.05] * 3}}
    found = find(case, "slow-layout", operations__layout_s=[0.03] * 3, **known)
    assert "2.50x" in found.says
    assert found.lever == "channels_last"
    assert not find(case, "slow-layout", operations__layout_s=[-0.02] * 3, **known)


def test_denormals_of_one_measurement_are_not_told(case) -> None:
    assert find(case, "denormals", operations__denormal_s=[0.03, 0.03]).lever == "flush_denormals"
    assert not find(case, "denormals", operations__denormal_s=[0.03])
    assert not find(case, "denormals", operations__denormal_s=[-0.01, 0.01])


def test_faults_count_as_shared_by_the_threads_at_best(case) -> None:
    known = {"faults__fault_s": 1e-6, "faults__threads_count": 4}
    found = find(case, "page-faults", faults__counts=[40_000] * 30, **known)
    assert (found.share.low_ratio, found.share.mid_ratio) == pytest.approx((0.1, 0.25))
    assert not find(case, "page-faults", faults__counts=[4_000] * 30, **known)


def loop(count, tensors_count, *, in_optimizer, seconds=0.005):
    return {
        "path": "train.py", "line": 3, "count": count, "tensors_count": tensors_count,
        "in_optimizer": in_optimizer, "seconds": [seconds] * 3,
    }  # fmt: skip


def test_a_loop_of_the_optimizer_costs_its_phase_but_for_large_tensors(case) -> None:
    found = find(
        case,
        "per-parameter-loops",
        traits={"optimizer.name": "AdamW"},
        operations__loops=[loop(300, 60, in_optimizer=True)],
        operations__seconds={"large_update": [0.005] * 3},
    )
    assert found.share.mid_ratio == pytest.approx(0.15)
    assert found.lever == "fused_optimizer"


def test_a_loop_by_hand_costs_its_operations_without_our_timing(case) -> None:
    loops = [loop(120, 60, in_optimizer=False)]
    found = find(case, "per-parameter-loops", operations__loops=loops, operations__price_ratio=0.6)
    assert found.share.mid_ratio == pytest.approx(0.03)
    assert found.lever is None
    averaged = {"average.loop": True}
    assert find(case, "per-parameter-loops", traits=averaged, operations__loops=loops).lever == (
        "foreach_ema"
    )


def test_a_few_tensors_are_no_loop(case) -> None:
    few = [loop(100, 10, in_optimizer=True)]
    assert not find(case, "per-parameter-loops", operations__loops=few)


def test_debug_modes_without_a_measured_cost_are_not_told_where_it_was_measured(case) -> None:
    on = {"debug.anomaly_ratio": 1.0}
    cheap = {"operations__count": [10] * 3, "bookkeeping__traceback_s": [1e-5] * 30}
    dear = cheap | {"bookkeeping__traceback_s": [0.05] * 30}
    assert not find(case, "debug-mode", traits=on, **cheap)
    assert find(case, "debug-mode", traits=on, **dear).share.mid_ratio == pytest.approx(0.5)
    assert not find(case, "debug-mode", traits={"debug.anomaly_ratio": 0.0}, **dear)


def test_a_profiler_costs_what_it_adds_to_each_operation(case) -> None:
    known = {"operations__count": [1000] * 3, "bookkeeping__recording_s": 5e-6}
    found = find(case, "debug-mode", traits={"debug.profiler_ratio": 1.0}, **known)
    assert found.share.mid_ratio == pytest.approx(0.05)
    # One with a schedule looks at some steps, as its user wants.
    assert not find(case, "debug-mode", traits={"debug.profiler_ratio": 0.2}, **known)


def test_a_batch_is_tiny_where_operations_cost_the_same_on_a_single_number(case) -> None:
    known = {
        "operations__count": [4000] * 3, "operations__repeats_count": 20,
        "operations__price_s": 2e-6,
    }  # fmt: skip
    light, heavy = {"model_work": [0.01] * 3}, {"model_work": [0.06] * 3}
    found = find(case, "tiny-batch", operations__seconds=light, **known)
    assert found.share.mid_ratio == pytest.approx(0.7)
    assert not find(case, "tiny-batch", operations__seconds=heavy, **known)
    looping = known | {"operations__repeats_count": 500}
    assert not find(case, "tiny-batch", operations__seconds=light, **looping)


def test_time_that_operations_cannot_explain_is_no_tiny_batch(case) -> None:
    known = {"operations__count": [20] * 3, "operations__price_s": 2e-6}
    assert not find(case, "tiny-batch", operations__seconds={"model_work": [0.001] * 3}, **known)


@pytest.mark.parametrize(
    ("columns_count", "word"), [(50, "longest row"), (5, "like length")], ids=["fixed", "mixed"]
)
def test_padding_costs_its_share_of_the_passes(case, columns_count, word) -> None:
    found = find(case, "padding-waste", shapes__padding=[[100, 50, columns_count]] * 30)
    assert found.share.mid_ratio == pytest.approx(0.4)
    assert word in found.remedy
    assert not find(case, "padding-waste", shapes__padding=[[100, 5, 5]] * 30)


def look_at_growth(case, factors, cpu_factors=None, samples=None):
    steps = [step(f, n) for f, n in zip(factors, samples or [1] * len(factors), strict=True)]
    cpu_s = [STEP_S * f for f in cpu_factors or factors]
    return find(case, "growing-steps", steps=steps, growth__cpu_s=cpu_s)


def test_steps_that_grow_are_told_with_their_phase(case) -> None:
    found = look_at_growth(case, [1 + 0.01 * i for i in range(60)])
    assert found.share.low_ratio > 0.25
    assert "forward" in found.says or "backward" in found.says


def test_steps_that_grow_with_their_samples_do_the_same_work(case) -> None:
    factors = [1.0 + i for i in range(60)]
    assert not look_at_growth(case, factors, samples=[1 + i for i in range(60)])


def test_a_load_that_drifts_is_no_growth(case) -> None:
    factors = [1 + 0.01 * i for i in range(60)]
    assert not look_at_growth(case, factors, cpu_factors=[1.0] * 60)


def test_noise_a_jump_and_a_fall_are_no_growth(case) -> None:
    assert not look_at_growth(case, [1 + 0.3 * ((i * 7919) % 13) / 13 for i in range(60)])
    assert not look_at_growth(case, [1.0 if i < 30 else 1.5 for i in range(60)])
    assert not look_at_growth(case, [2 - 0.01 * i for i in range(60)])


def test_the_slope_of_a_line_is_its_slope() -> None:
    low, middle, high = sen_slope([2.0 + 0.5 * i for i in range(30)])
    assert (low, middle, high) == pytest.approx((0.5, 0.5, 0.5))


def test_a_graph_must_grow_in_each_step(case) -> None:
    known = {"growth__resident_bytes": [2**20 * i for i in range(30)], "growth__holder": "total"}
    found = find(case, "graph-kept-alive", growth__nodes_count=90, **known)
    assert found.share is None
    assert "total" in found.says
    assert "3 nodes" in found.says
    assert not find(case, "graph-kept-alive", growth__nodes_count=12, **known)
