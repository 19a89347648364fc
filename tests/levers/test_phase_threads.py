"""phase_threads: a count of its own for a phase, and the script's own count around it."""

import pytest

from hasten.errors import PlanError
from hasten.lever import ScriptContext, provided
from hasten.levers.phase_threads import LEVER
from hasten.records import Phase, Plan
from hasten.testing import LAPTOP, SERVER, sample_profile


def context(machine=LAPTOP, shares=None, **traits):
    return ScriptContext(machine=machine, baseline=sample_profile(shares), traits=traits)


EVEN = {Phase.FORWARD: 0.3, Phase.BACKWARD: 0.5, Phase.OPTIMIZER: 0.2}


def test_gives_a_large_update_one_thread_and_the_passes_half_of_them() -> None:
    assert LEVER.settings(context(shares=EVEN, threads=4)) == (
        "optimizer=1", "backward=2", "forward=2",
    )  # fmt: skip
    assert not LEVER.promising(context(shares=EVEN, threads=4))


def test_gives_the_passes_all_cores_where_the_script_takes_few_threads() -> None:
    assert LEVER.settings(context(SERVER, EVEN, threads=1)) == (
        "optimizer=16", "backward=16", "forward=16",
    )  # fmt: skip


def test_does_nothing_where_the_whole_step_has_that_count() -> None:
    one = provided(Plan().with_lever("intra_op_threads", 1))
    assert LEVER.redundant_with("backward=1", one) == "all phases have threads=1 already"
    assert LEVER.redundant_with("backward=2", one) == ""
    assert LEVER.redundant_with("backward=1,forward=2", one) == ""
    assert LEVER.redundant_with("backward=1", provided(Plan())) == ""


def test_says_the_shares_where_no_phase_is_large() -> None:
    small = context(shares={Phase.DATA: 0.95, Phase.FORWARD: 0.05}, threads=4)
    assert LEVER.settings(small) == ()
    assert LEVER.why_not(small) == (
        "no phase takes 10% of the step: optimizer 0%, backward 0%, forward 5%"
    )


def test_refuses_a_script_that_compiles_and_one_that_nobody_profiled() -> None:
    assert LEVER.settings(context(shares=EVEN, threads=4, compiled=True)) == ()
    assert "compiled again" in LEVER.why_not(context(shares=EVEN, threads=4, compiled=True))
    assert LEVER.settings(ScriptContext(machine=LAPTOP, traits={"threads": 4})) == ()


@pytest.mark.parametrize("setting", ["optimizer", "loss=2", "optimizer=0", "optimizer=1;", ""])
def test_a_setting_that_makes_no_sense_is_refused_with_an_example(setting) -> None:
    with pytest.raises(PlanError, match="backward=4,optimizer=1"):
        LEVER.snippet(setting)


PROGRAM = r"""
seen = {}


def note(phase):
    seen.setdefault(str(phase), []).append(torch._C.get_num_threads())


def trained(setting, measuring, script_count=1):
    seen.clear()
    run = Run(measuring=measuring)
    run.applied.switch({"phase_threads": setting})
    run.watch.live.on_phase(note)  # asked after the lever
    torch.set_num_threads(script_count)
    between = seen.setdefault("between", [])
    run.train(lambda step: between.append(torch._C.get_num_threads()), count=2)
    run.close()
    return {phase: sorted(set(counts)) for phase, counts in seen.items()}


for measuring in (True, False):
    facts[f"two {measuring}"] = trained("backward=3,optimizer=2", measuring)
facts["script"] = trained("optimizer=2", False, script_count=4)
torch.set_num_threads(1)

seen.clear()
run = Run(measuring=False)
run.applied.switch({"intra_op_threads": 3, "phase_threads": "optimizer=1"})
run.watch.live.on_phase(note)
run.train(count=2)
facts["both"] = {phase: sorted(set(counts)) for phase, counts in seen.items()}
run.close()
facts["after both"] = torch._C.get_num_threads()

seen.clear()
run = Run(measuring=False)
run.applied.switch({"phase_threads": "optimizer=2"})
run.watch.live.on_phase(note)
torch.compile(lambda t: t + 1, backend="eager")(torch.ones(2))
run.train(count=2)
facts["compiled"] = seen["optimizer"]
run.close()
"""


@pytest.fixture(scope="module")
def counted(training):
    return training(PROGRAM)


@pytest.mark.child
@pytest.mark.parametrize("measuring", [True, False])
def test_each_phase_has_its_count_in_a_trial_and_in_a_run(measuring, counted) -> None:
    assert counted[f"two {measuring}"] == {
        "between": [1], "forward": [1], "backward": [3], "optimizer": [2],
    }  # fmt: skip


@pytest.mark.child
def test_goes_back_to_what_the_script_has_set_meanwhile(counted) -> None:
    assert counted["script"] == {
        "between": [4], "forward": [4], "backward": [4], "optimizer": [2],
    }  # fmt: skip


@pytest.mark.child
def test_works_within_a_count_for_the_whole_step(counted) -> None:
    assert counted["both"] == {"forward": [3], "backward": [3], "optimizer": [1]}
    assert counted["after both"] == 1


@pytest.mark.child
def test_stands_still_once_something_is_compiled(counted) -> None:
    assert counted["compiled"] == [1, 1]
