"""Thresholds of the families of arithmetic, on cases that are made by hand."""

import random
from dataclasses import replace

import pytest

from hasten import machine
from hasten.diagnose import Case, discover
from hasten.diagnose.families.growth import sen_slope
from hasten.records import (
    LoaderTraits,
    ModelTraits,
    OptimizerTraits,
    Phase,
    PrecisionTraits,
    ProductSpeed,
    Profile,
    Step,
    Traits,
)

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
    facts = machine.read()
    return Case(machine=facts, profile=profile, steps=tuple(step() for _ in range(30)))


def find(case, name, *, traits=None, steps=None, **found):
    told = {key.replace("__", "."): value for key, value in found.items()}
    found = {"operations.steps": WATCHED, **told}
    case = replace(case, traits=traits or Traits(), found=found)
    return discover()[name].find(case if steps is None else replace(case, steps=tuple(steps)))


NAMES = [
    "denormals", "page-faults", "slow-layout", "low-precision-without-hardware", "tf32-off",
    "per-parameter-loops", "step-reporting", "debug-mode", "float64", "tiny-batch",
    "graph-kept-alive", "growing-steps", "padding-waste", "synchronize-in-loop", "other-libraries",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_says_nothing_where_nothing_is_known(case, name) -> None:
    assert find(case, name) is None
    assert discover()[name].find(replace(case, steps=())) is None


@pytest.mark.parametrize(
    ("kind", "speed", "share", "slower"),
    [
        ("float64.products", 0.5, 0.2, "2.00x"),
        ("float64.products", 0.1, 0.36, "10.00x"),
        ("float64.others", 0.8, 0.08, "1.25x"),
        ("float64.others", 0.1, 0.2, "2.00x"),  # twice the bytes
    ],
)
def test_float64_costs_what_float32_would_not_take(case, kind, speed, share, slower) -> None:
    seconds = {kind: [0.04, 0.04, 0.04]}
    found = find(
        case, "float64", operations__seconds=seconds, operations__speed_ratio={"float64": speed}
    )
    assert found.share.mid_ratio == pytest.approx(share)
    assert f"are {slower} slower" in found.message
    longer = {kind: [0.15, 0.15, 0.15]}  # than the step, by threads that spin
    capped = find(
        case, "float64", operations__seconds=longer, operations__speed_ratio={"float64": speed}
    )
    assert capped.share.mid_ratio == pytest.approx(share / 0.4)
    equal = {"float64": 1.0}
    assert not find(case, "float64", operations__seconds=seconds, operations__speed_ratio=equal)


def test_waits_for_cpus_leave_less_of_a_step_by_their_part_of_the_time_they_were_read_over(
    case,
) -> None:
    known = {
        "operations__seconds": {"float64.products": [0.02] * 3},
        "operations__speed_ratio": {"float64": 0.5},
        "processors__waits_s": [STEP_S] * 30,
    }
    found = find(case, "float64", processors__spans_s=[2 * STEP_S] * 30, **known)
    assert found.share.mid_ratio == pytest.approx(0.2)


def test_a_model_of_doubles_gets_another_remedy(case) -> None:
    known = {
        "operations__seconds": {"float64.products": [0.04, 0.04, 0.04]},
        "operations__speed_ratio": {"float64": 0.5},
    }
    own = find(case, "float64", traits=Traits(model=ModelTraits(dtype="float64")), **known)
    entering = find(case, "float64", traits=Traits(model=ModelTraits(dtype="float32")), **known)
    assert "model.float()" in own.remedy
    assert "model.float()" not in entering.remedy


def test_some_double_numbers_cost_too_little_to_be_told(case) -> None:
    assert not find(
        case,
        "float64",
        operations__seconds={"float64.products": [0.001, 0.001, 0.001]},
        operations__speed_ratio={"float64": 0.5},
    )


def test_few_bits_are_told_only_where_they_are_slower(case) -> None:
    known = {"operations__seconds": {"product.bfloat16": [0.05] * 3, "cast": [0.01] * 3}}
    name = "low-precision-without-hardware"
    slow = find(case, name, operations__speed_ratio={"bfloat16": 0.2}, **known)
    assert slow.share.mid_ratio == pytest.approx(0.5)
    assert not find(case, name, operations__speed_ratio={"bfloat16": 3.0}, **known)
    on_card = Traits(model=ModelTraits(device="cuda"))
    speeds = {"bfloat16": 0.2}
    assert not find(case, name, traits=on_card, operations__speed_ratio=speeds, **known)


def test_tf32_is_told_on_a_card_that_has_it_and_a_script_that_does_not_use_it(case) -> None:
    known = {"operations__seconds": {"product.float32": [0.06] * 3}}

    def seen(device="cuda", matmul="highest", ratio=4.0):
        precision = PrecisionTraits(matmul=matmul, inside=ProductSpeed(matmul_ratio=ratio))
        traits = Traits(model=ModelTraits(device=device), precision=precision)
        return find(case, "tf32-off", traits=traits, **known)

    assert seen().share.mid_ratio == pytest.approx(0.45)
    for change in ({"matmul": "high"}, {"ratio": 1.0}, {"device": "cpu"}):
        assert not seen(**change)


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (ModelTraits(), "the model and its images to memory_format=torch.channels_last."),
        (
            ModelTraits(has_conv2d=True, conv_input_dimension_count=4),
            "the model and its images to memory_format=torch.channels_last.",
        ),
        (
            ModelTraits(has_conv3d=True, conv_input_dimension_count=5),
            "the model and its inputs to memory_format=torch.channels_last_3d.",
        ),
        (
            ModelTraits(conv_input_dimension_count=5),
            "the model and its inputs to memory_format=torch.channels_last_3d.",
        ),
        # torch refuses the layout of images for waveforms and for clips.
        (
            ModelTraits(has_conv2d=True, conv_input_dimension_count=2),
            "the model to memory_format=torch.channels_last.",
        ),
        (
            ModelTraits(has_conv2d=True, conv_input_dimension_count=5),
            "the model to memory_format=torch.channels_last.",
        ),
        (
            ModelTraits(has_conv3d=True, conv_input_dimension_count=0),
            "the model to memory_format=torch.channels_last_3d.",
        ),
    ],
)
def test_a_layout_is_advised_for_what_has_as_many_dimensions(case, model, remedy) -> None:
    known = {"operations__seconds": {"convolution.float32": [0.05] * 3}}
    traits = Traits(model=model)
    found = find(case, "slow-layout", traits=traits, operations__layout_s=[0.03] * 3, **known)
    assert found.remedy == f"Convert {remedy}"


def test_a_layout_that_is_not_faster_is_left_alone(case) -> None:
    known = {"operations__seconds": {"convolution.float32": [0.05] * 3}}
    found = find(case, "slow-layout", operations__layout_s=[0.03] * 3, **known)
    assert "2.50x" in found.message
    assert not find(case, "slow-layout", operations__layout_s=[-0.02] * 3, **known)


def test_denormals_of_one_measurement_are_not_told(case) -> None:
    assert find(case, "denormals", operations__denormal_s=[0.03, 0.03])
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
        traits=Traits(optimizer=OptimizerTraits(name="AdamW")),
        operations__loops=[loop(300, 60, in_optimizer=True)],
        operations__seconds={"large_update": [0.005] * 3},
        operations__optimizer_forms=["foreach", "fused"],
    )
    assert found.share.mid_ratio == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("name", "forms", "words"),
    [
        ("AdamW", ["foreach", "fused"], "Pass fused=True"),
        ("RMSprop", ["foreach"], "Pass foreach=True"),
        ("Adafactor", ["foreach"], "Pass foreach=True"),
        ("AdamW", [], "torch._foreach_mul_"),  # of another library
        ("Lion", [], "torch._foreach_mul_"),
        ("AdamW", None, "torch._foreach_mul_"),  # nobody looked
    ],
)
def test_an_optimizer_is_only_asked_for_what_it_takes(case, name, forms, words) -> None:
    known = {} if forms is None else {"operations__optimizer_forms": forms}
    found = find(
        case,
        "per-parameter-loops",
        traits=Traits(optimizer=OptimizerTraits(name=name)),
        operations__loops=[loop(300, 60, in_optimizer=True)],
        operations__seconds={"large_update": [0.005] * 3},
        **known,
    )
    assert words in found.remedy
    assert {"fused=True", "foreach=True"} & {*found.remedy.split()} == {*words.split()[1:]}


def test_a_fused_form_is_not_asked_for_where_gradients_are_sparse(case) -> None:
    found = find(
        case,
        "per-parameter-loops",
        traits=Traits(optimizer=OptimizerTraits(name="SGD", has_sparse_gradients=True)),
        operations__loops=[loop(300, 60, in_optimizer=True)],
        operations__seconds={"large_update": [0.005] * 3},
        operations__optimizer_forms=["foreach", "fused"],
    )
    assert found.remedy.startswith("Give the weights with dense gradients")


def test_a_loop_by_hand_costs_its_operations_without_our_timing(case) -> None:
    loops = [loop(120, 60, in_optimizer=False)]
    found = find(case, "per-parameter-loops", operations__loops=loops, operations__price_ratio=0.6)
    assert found.share.mid_ratio == pytest.approx(0.03)
    assert found.phase is Phase.OTHER


def test_a_few_tensors_are_no_loop(case) -> None:
    few = [loop(100, 10, in_optimizer=True)]
    assert not find(case, "per-parameter-loops", operations__loops=few)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (240.0, "in 240 calls a step,"),
        (2.5, "in 2.5 calls a step,"),
        (1.0, "in one call a step,"),
        (0.1, "in one call in 10 steps,"),
    ],
)
def test_reports_are_counted_also_where_they_are_seldom(case, count, words) -> None:
    known = {"bookkeeping__reporting_s": [0.02] * 30, "bookkeeping__reports_count": count}
    found = find(case, "step-reporting", **known)
    assert found.share.mid_ratio == pytest.approx(0.2)
    assert words in found.message


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"PIL": 6, "matplotlib": 50, "json": 4}, "in matplotlib and PIL, for 20% of the time"),
        ({"PIL": 60}, "in PIL, for 20% of the time"),
        ({"PIL": 5}, None),
    ],
)
def test_work_outside_of_torch_is_told_with_the_two_that_take_most(case, counts, words) -> None:
    found = find(case, "other-libraries", stacks__libraries=counts, stacks__sample_count=300)
    assert (found is None) == (words is None)
    assert words is None or (words in found.message and found.is_of_all)


def test_numbers_that_may_decide_something_are_not_called_reports(case) -> None:
    known = {"bookkeeping__reporting_s": [0.02] * 30, "bookkeeping__reports_count": 2.0}
    assert find(case, "step-reporting", **known).message.startswith("The script reports")
    found = find(case, "step-reporting", bookkeeping__only_reads=True, **known)
    assert found.message.startswith("The script reads numbers from tensors")
    assert found.remedy.startswith("If these numbers are only reported, ")


@pytest.mark.parametrize(
    ("told", "caught_up_and_idle", "workers", "mid_ratio"),
    [
        ((0.02, 0.0), (None, None), 0, 0.2),  # a CPU
        ((0.02, 0.0), (0.0, None), 0, None),  # what the host does costs nothing: it is ahead
        ((0.0, 0.06), (0.0, (0.01, 0.02)), 0, 0.3),  # a wait costs what the device is then idle,
        ((0.0, 0.02), (0.0, (0.01, 0.02)), 0, 0.2),  # but no more than it takes;
        ((0.0, 0.06), (0.0, (0.01, 0.02)), 1, 0.1),  # workers are waited for anyway
        ((0.0, 0.06), (0.0, (0.0, 0.0)), 0, None),
        ((0.02, 0.06), (0.0, (0.01, 0.0)), 0, 0.1),
        ((0.02, 0.0), (1.0, (0.0, 0.0)), 0, 0.2),  # the device waits for the host anyway
    ],
)
def test_what_the_host_does_beside_a_device_costs_no_more_than_the_device_is_idle(
    case, told, caught_up_and_idle, workers, mid_ratio
) -> None:
    caught_up, idle = caught_up_and_idle
    worked_s, waited_s = ([one] * 30 for one in told)
    known = {
        "bookkeeping.reporting_s": worked_s, "bookkeeping.waiting_s": waited_s,
        "waits.empty_cache_s": worked_s, "waits.synchronize_s": waited_s,
        "copies.pinning": {"step_s": worked_s, "step_bytes": 1, "lines": ()},
    }  # fmt: skip
    if idle:  # in the first steps the examiners are in the way
        own, data = ([9.0] * 15 + [one] * 15 for one in idle)
        known["device.idle_s"] = {"other": own, "data": data}
    seen = replace(case.profile, caught_up_ratio=caught_up)
    traits = Traits(loader=LoaderTraits(worker_count=workers, is_map_style=True))
    names = ["step-reporting", "synchronize-in-loop"]
    for name in names if told[1] else [*names, "pinned-memory-useless"]:
        found = find(replace(case, profile=seen), name, traits=traits, **known)
        assert (found and found.share.mid_ratio) == (mid_ratio and pytest.approx(mid_ratio))


def test_what_costs_most_of_the_waits_is_named_first_with_its_remedy(case) -> None:
    known = {"waits.calls_count": 1.5, "waits.places": [("train.py", 9)]}
    seconds = {"waits.synchronize_s": [0.01] * 30, "waits.empty_cache_s": [0.02] * 30}
    found = find(case, "synchronize-in-loop", **known, **seconds)
    assert "empty_cache and synchronize (1.5 calls a step)" in found.message
    assert found.remedy.startswith("Leave out empty_cache()")
    assert found.places[0].line == 9
    alone = seconds | {"waits.empty_cache_s": [0.0] * 30}
    assert "calls synchronize (" in find(case, "synchronize-in-loop", **known, **alone).message


def test_debug_modes_without_a_measured_cost_are_not_told_where_it_was_measured(case) -> None:
    on = Traits(anomaly_ratio=1.0)
    cheap = {"operations__count": [10] * 3, "bookkeeping__traceback_s": [1e-5] * 30}
    dear = cheap | {"bookkeeping__traceback_s": [0.05] * 30}
    assert not find(case, "debug-mode", traits=on, **cheap)
    assert find(case, "debug-mode", traits=on, **dear).share.mid_ratio == pytest.approx(0.5)
    assert not find(case, "debug-mode", traits=Traits(anomaly_ratio=0.0), **dear)
    one_step = cheap | {"operations__steps": [2], "operations__count": [10]}
    once = find(case, "debug-mode", traits=on, **one_step)
    assert once.share is None  # one step has no interval


def test_a_profiler_costs_what_it_adds_to_each_operation(case) -> None:
    known = {"operations__count": [1000] * 3, "bookkeeping__recording_s": 5e-6}
    found = find(case, "debug-mode", traits=Traits(profiler_ratio=1.0), **known)
    assert found.share.mid_ratio == pytest.approx(0.05)
    # One with a schedule looks at some steps, as its user wants.
    assert not find(case, "debug-mode", traits=Traits(profiler_ratio=0.2), **known)


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
    assert "if the model computes them like other tokens" in found.message
    assert not find(case, "padding-waste", shapes__padding=[[100, 5, 5]] * 30)
    packed = {"shapes__packed": True, "shapes__padding": [[100, 50, columns_count]] * 30}
    assert not find(case, "padding-waste", **packed)


def look_at_growth(case, factors, cpu_factors=None, samples=None, **known):
    steps = [step(f, n) for f, n in zip(factors, samples or [1] * len(factors), strict=True)]
    cpu_s = [STEP_S * f for f in cpu_factors or factors]
    return find(case, "growing-steps", steps=steps, growth__cpu_s=cpu_s, **known)


def test_steps_that_grow_are_told_with_their_phase(case) -> None:
    found = look_at_growth(case, [1 + 0.01 * i for i in range(60)])
    assert found.share.low_ratio > 0.25
    assert "forward" in found.message or "backward" in found.message


def test_steps_that_grow_with_their_samples_do_the_same_work(case) -> None:
    factors = [1.0 + i for i in range(60)]
    assert not look_at_growth(case, factors, samples=[1 + i for i in range(60)])


def test_data_that_is_sorted_by_length_is_no_growth(case) -> None:
    factors = [1 + 0.01 * i for i in range(60)]
    same = [8 * 16_000] * 60
    mixed = [8 * (16_000 + 100 * (i * 7919 % 13)) for i in range(60)]
    for counts in (same, mixed):
        assert look_at_growth(case, factors, growth__element_counts=counts)
    longer = [8 * (16_000 + 160 * i) for i in range(60)]
    assert not look_at_growth(case, factors, growth__element_counts=longer)


def test_fewer_and_longer_samples_are_no_growth(case) -> None:
    samples = [80 - i for i in range(60)]
    known = {"growth__element_counts": [128_000] * 60}
    assert look_at_growth(case, [1.0] * 60, samples=samples)
    assert not look_at_growth(case, [1.0] * 60, samples=samples, **known)


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


COUNTED = [*range(1, 9), 16, 30]


def look_at_graph(case, counts, **known):
    node_counts = [[step, count] for step, count in zip(COUNTED, counts, strict=False)]
    return find(case, "graph-kept-alive", growth__node_counts=node_counts, **known)


def test_a_graph_must_grow_in_each_step(case) -> None:
    known = {"growth__resident_bytes": [2**20 * i for i in range(30)], "growth__holder": "total"}
    found = look_at_graph(case, [100 + 3 * step for step in COUNTED], **known)
    assert found.share is None
    assert "total" in found.message
    assert "3 nodes" in found.message
    assert not look_at_graph(case, [100 + step // 3 for step in COUNTED], **known)
    assert not look_at_graph(case, [100] * 10, **known)


def test_a_few_counts_do_not_tell_a_graph_that_grows(case) -> None:
    assert look_at_graph(case, [300, 600, 900, 1200, 1500, 1800, 2100, 2400])
    assert not look_at_graph(case, [300, 600, 900, 1200, 1500])


def test_sums_of_graphs_of_any_size_are_still_told(case) -> None:
    sizes = random.Random(1)
    each = [sizes.randint(50, 150) for _ in range(31)]
    assert look_at_graph(case, [sum(each[:step]) for step in COUNTED])


def test_graphs_that_vary_in_size_are_not_kept(case) -> None:
    for seed in range(200):
        sizes = random.Random(seed)
        assert not look_at_graph(case, [sizes.randint(50, 5000) for _ in COUNTED]), seed
        # Half of the layers are dropped: a graph is large or small.
        assert not look_at_graph(case, [sizes.choice([50, 5000]) for _ in COUNTED]), seed


def test_the_graph_of_the_last_step_grows_with_its_sentences(case) -> None:
    counts, longer = [100 * step for step in COUNTED], [64 * i for i in range(1, 31)]
    assert look_at_graph(case, counts, growth__element_counts=[64] * 30)
    assert not look_at_graph(case, counts, growth__element_counts=longer)
