"""The public contract: what holds for every lever, found by itself."""

import ast
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import pytest

from hasten.diagnose import discover as discover_symptoms
from hasten.errors import PlanError
from hasten.lever import by_hand, check_plan, cure_of, discover, load, provided
from hasten.records import Effect, Finding, OptimizerTraits, Phase, Plan, Scope, Traits
from hasten.testing import fed

NAMES = sorted(discover())
PULLABLE = [name for name in NAMES if discover()[name].scope is not Scope.LAUNCH]
MNIST = fed(dataset="MNIST").loader


def test_is_named_after_its_file_and_has_a_test_of_its_own(lever) -> None:
    assert import_module(f"hasten.levers.{lever.name}").LEVER is lever
    assert Path(__file__).with_name(f"test_{lever.name}.py").exists()


def test_card_says_what_helps_what_hurts_the_maths_and_the_source_in_this_order(lever) -> None:
    lines = lever.card.splitlines()
    assert lines[0].startswith(f"{lever.name}: ")
    assert lines[0].endswith(".")
    heads = [line.split()[0] for line in lines if line and not line[0].isspace()]
    assert heads == [f"{lever.name}:", "Helps:", "Hurts:", "Maths:", "Source:"]
    assert f"\nMaths: {lever.effect}. " in lever.card
    assert "\nSource: https://" in lever.card


def test_settings_are_distinct_and_fit_a_plan(lever, scenes) -> None:
    for context in scenes.values():
        settings = lever.settings(context)
        assert len(set(settings)) == len(settings)
        for setting in settings:
            plan = Plan().with_lever(lever.name, setting)
            assert dict(plan.settings) == {lever.name: setting}
            assert type(setting) is lever.kind
            check_plan(plan)


def test_a_setting_by_hand_that_it_does_not_take_is_refused_with_what_it_does(lever) -> None:
    wrong = {bool: "yes", int: -1, str: "no such word"}[lever.kind]
    with pytest.raises(PlanError, match=f"{lever.name} does not take {wrong}") as caught:
        check_plan(Plan().with_lever(lever.name, wrong))
    assert caught.value.remedy.startswith("Give it ")
    assert caught.value.remedy.endswith(", or false to leave it alone.")


def test_a_setting_of_another_kind_is_refused_with_what_its_own_kind_looks_like(lever) -> None:
    other = True if lever.kind is not bool else 1
    with pytest.raises(PlanError, match=f"{lever.name} does not take {other}") as caught:
        check_plan(Plan().with_lever(lever.name, other))
    assert "a text" not in caught.value.remedy


def test_settings_leave_the_context_alone_and_repeat(lever, scenes) -> None:
    for context in scenes.values():
        before = replace(context.traits)
        assert lever.settings(context) == lever.settings(context)
        assert context.traits == before


def test_nothing_to_try_has_a_reason_in_one_sentence(lever, scenes) -> None:
    for context in scenes.values():
        if not lever.settings(context):
            why = lever.why_not(context)
            assert why
            assert "\n" not in why
            assert not why.endswith(".")


def tried(lever, scenes):
    found = {setting: context for context in scenes.values() for setting in lever.settings(context)}
    assert found, "some scene must give this lever something to try"
    return found.items()


def test_what_the_user_would_write_by_hand_can_be_read(lever, scenes) -> None:
    for setting, _ in tried(lever, scenes):
        lines = lever.snippet(setting)
        assert lines.strip()
        if "in the shell" not in lines:
            ast.parse(lines)


def test_what_the_user_would_write_by_hand_names_the_scripts_own_optimizer() -> None:
    for name in ("fused_optimizer", "foreach_optimizer"):
        own = Traits(optimizer=OptimizerTraits(name="Adam"))
        assert "torch.optim.Adam(..., " in by_hand(load(name), True, own)
        assert "torch.optim.Optimizer(..., " in by_hand(load(name), True, Traits())


def test_bounds_and_counts_are_sensible(lever, scenes) -> None:
    assert lever.phases
    assert all(phase.in_step for phase in lever.phases)
    assert lever.gain_ratio > 1
    assert lever.settle_count >= 0
    for setting, context in tried(lever, scenes):
        assert lever.cycle_count(setting) >= 1
        assert lever.promising(context) in (True, False)


def test_the_users_environment_is_never_written(lever, scenes) -> None:
    for setting, _ in tried(lever, scenes):
        env = MappingProxyType({"PATH": "/bin", "OMP_NUM_THREADS": "3"})
        edited = lever.env(env, setting)
        assert all(isinstance(value, str) for value in edited.values())


PROGRAM = r"""
from hasten.lever import lookup
from hasten.records import Plan

own = Run().train().close()
facts["own"], facts["same"] = own.bits(), Run().train().close().bits()
for name, setting in {pairs}:
    Net.keeps = name != "ranks"  # which leaves a model that keeps something in one process
    run, seen = Run(), {}

    def there_and_back(step):
        if step == 6:
            before = run.shape()
            run.applied.switch({name: setting})
            seen["moved"] = [t.stride() for t in run.net.parameters()]
            run.applied.switch({})
            seen["shape"] = before == run.shape()

    run.train(there_and_back).close()
    facts[f"{name} back"] = run.bits() == facts["own"] and seen["shape"]

    run = Run()

    def under(step):
        if step == 4:
            run.applied.switch({name: setting})
            seen["before"] = run.bits()
        if step == 8:
            saved = [v for v in hashed(run.optimizer.state_dict()["param_groups"])]
            run.applied.switch({})
            seen["saved"] = saved == hashed(run.optimizer.state_dict()["param_groups"])
            seen["after"] = run.shape()

    run.train(under).close()
    stock, again = Run(), {}
    stock.train(lambda step: again.update(bits=stock.bits()) if step == 4 else None)
    stock.train(lambda step: None, count=0).close()
    facts[f"{name} applied"] = seen["before"] == again["bits"]
    facts[f"{name} saved"] = seen["saved"]
    facts[f"{name} exact"] = run.bits() == facts["own"]
    fresh, expected = Run(), {}
    fresh.train(lambda step: expected.update(fresh.shape()) if step == 8 else None).close()
    facts[f"{name} shape"] = all(
        expected[key] == seen["after"][key] for key in ("strides", "types", "flags", "threads"))

    first = Run()
    first.applied.switch({name: setting})
    first.train()
    states = first.net.state_dict(), first.optimizer.state_dict()
    facts[f"{name} keys"] = [
        [sorted(states[0]), sorted(states[1]["param_groups"][0].items(), key=str),
         [sorted(s) for s in states[1]["state"].values()]],
        [sorted(own.net.state_dict()),
         sorted(own.optimizer.state_dict()["param_groups"][0].items(), key=str),
         [sorted(s) for s in own.optimizer.state_dict()["state"].values()]],
    ]
    near = all(
        torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-4)
        for a, b in zip(first.net.state_dict().values(), own.net.state_dict().values()))
    facts[f"{name} near"] = near
    first.close()
"""


@pytest.fixture(scope="module")
def applied(training, scenes):
    first = {
        name: next(s for context in scenes.values() for s in discover()[name].settings(context))
        for name in NAMES
    }
    first["device_placement"] = "cpu"  # the way of each call is the same as to an accelerator
    return training(PROGRAM.replace("{pairs}", repr(list(first.items()))))


@pytest.mark.child
def test_the_training_of_these_tests_repeats_to_the_bit(applied) -> None:
    assert applied["own"] == applied["same"]


@pytest.mark.child
@pytest.mark.parametrize("name", NAMES)
def test_pulling_alone_changes_no_value(name, applied) -> None:
    assert applied[f"{name} applied"]


@pytest.mark.child
@pytest.mark.parametrize("name", PULLABLE)
def test_there_and_back_at_one_boundary_leaves_bits_objects_layouts_and_flags(
    name, applied
) -> None:
    assert applied[f"{name} back"]


@pytest.mark.child
@pytest.mark.parametrize("name", PULLABLE)
def test_layouts_flags_and_threads_after_steps_under_it_are_the_scripts_own(name, applied) -> None:
    assert applied[f"{name} shape"]


@pytest.mark.child
@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_under_it_have_the_scripts_own_keys_and_flags(name, applied) -> None:
    under, own = applied[f"{name} keys"]
    assert under == own
    assert applied[f"{name} saved"]


@pytest.mark.child
@pytest.mark.parametrize("name", NAMES)
def test_the_effect_is_not_worse_than_claimed(name, applied) -> None:
    lever = discover()[name]
    if lever.effect is Effect.EXACT:
        assert applied[f"{name} exact"]
    if lever.effect in (Effect.EXACT, Effect.ROUNDING):
        assert applied[f"{name} near"]


def test_a_plan_provides_what_its_levers_do() -> None:
    own = fed(worker_count=4)
    plan = Plan().with_lever("loader_workers", 2).with_lever("allocator", "jemalloc")
    seen = replace(fed(worker_count=2), preloaded="jemalloc")
    assert provided(plan.with_lever("channels_last", True), own) == seen
    assert provided(plan, Traits()) == Traits(preloaded="jemalloc")
    assert provided(Plan(), own) == own


def test_cures_are_findings_that_there_are(lever) -> None:
    assert lever.cures <= discover_symptoms().keys()


@pytest.mark.parametrize(
    ("name", "scene", "traits", "cure"),
    [
        ("few-workers", "images", {}, "loader_workers"),
        ("few-workers", "dropout", {}, "redrawing_workers"),
        ("few-workers", "text", {}, None),
        ("per-sample-fetch", "images", {"loader": MNIST}, "batched_fetch"),
        ("per-parameter-loops", "images", {}, "fused_optimizer"),
        ("per-parameter-loops", "kept", {}, "foreach_optimizer"),
        ("per-parameter-loops", "images", {"optimizer": OptimizerTraits(name="Lion")}, None),
        ("slow-layout", "images", {}, "channels_last"),
        ("oversubscribed-threads", "images", {}, "intra_op_threads"),
        ("tiny-batch", "images", {}, None),
    ],
)
def test_a_finding_is_cured_by_what_can_act_in_its_scene(scenes, name, scene, traits, cure) -> None:
    context = scenes[f"server, {scene}, profiled"]
    context = replace(context, traits=replace(context.traits, **traits))
    assert cure_of(Finding(name=name, message="It is slow.", remedy="Mend it."), context) == cure


def test_a_loop_outside_of_the_optimizer_is_not_cured_by_its_options(scenes) -> None:
    images = scenes["server, images, profiled"]
    loops = Finding(name="per-parameter-loops", message="It loops.", remedy="Do not.")
    assert cure_of(replace(loops, phase=Phase.OTHER), images) is None
    assert cure_of(replace(loops, phase=Phase.OPTIMIZER), images) == "fused_optimizer"


@pytest.mark.parametrize(
    ("name", "setting", "bits"),
    [("autocast", "bfloat16", 8), ("autocast", "float16", 11), ("fp32_precision", "bf16", 8),
     ("fp32_precision", "tf32", 11)],
)  # fmt: skip
def test_fewer_bits_are_judged_by_their_own_floor(name, setting, bits) -> None:
    assert discover()[name].epsilon_ratio(setting) == 2.0**-bits
