"""Which lever is to blame, among several."""

import pytest

from hasten.errors import ChildLost, Unprovable
from hasten.lever import Lever
from hasten.records import Effect, Gate, Phase, Plan, Proof, Scope
from hasten.testing import plant
from hasten.verify.judge import Judge

EFFECTS = {
    "grave": Effect.LEARNING,
    "narrow": Effect.PRECISION,
    "round": Effect.ROUNDING,
    "same": Effect.EXACT,
}
WHOLE = Plan(tuple((name, True) for name in EFFECTS))


@pytest.fixture(autouse=True)
def levers(monkeypatch) -> None:
    plant(
        monkeypatch,
        {
            name: Lever(
                name=name, phases=frozenset({Phase.FORWARD}), effect=effect, scope=Scope.STEP,
                settings=lambda context: (True,), gain_ratio=2.0, snippet=str,
                why_not=lambda context: "",
            )
            for name, effect in EFFECTS.items()
        },
    )  # fmt: skip


def judged(guilty, *, in_time=True, failure=None, has_applied=False):
    """Judge a plan of four levers of which some are guilty; return the judge and all that ran."""
    ran = []

    def prove(plan: Plan) -> Proof:
        names = {name for name, _ in plan.settings}
        ran.append(names)
        if failure is not None and len(names) > min(map(len, ran)):
            raise failure
        passed = not (names & guilty or (has_applied and has_applied != "sound"))
        return Proof(
            effect=Effect.EXACT, gates=(Gate(name="G", passed=passed, message="it differs"),)
        )

    judge = Judge(prove, lambda plan: in_time, has_applied=bool(has_applied))
    proof = judge.judge(WHOLE)
    left = {name for name, _ in judge.plan.settings}
    assert proof.holds or not left
    return judge, left, ran


@pytest.mark.parametrize(
    "guilty", [{"grave"}, {"round"}, {"same"}, {"narrow", "same"}, {"grave", "round"}, set(EFFECTS)]
)
def test_exactly_the_guilty_are_rejected(guilty) -> None:
    judge, left, _ = judged(guilty)
    assert judge.rejected == dict.fromkeys(guilty, "it differs")
    assert left == EFFECTS.keys() - guilty


def test_a_plan_that_holds_is_proved_once() -> None:
    judge, left, ran = judged(set())
    assert (left, len(ran), judge.rejected) == (set(EFFECTS), 1, {})


def test_without_time_the_narrow_plan_stays() -> None:
    _, left, _ = judged({"round"}, in_time=False)
    assert left == {"same"}


@pytest.mark.parametrize(
    "failure", [Unprovable("it ended"), ChildLost("It was killed.", remedy="Look.")]
)
def test_a_second_chance_that_breaks_costs_nothing(failure) -> None:
    _, left, _ = judged({"round"}, failure=failure)
    assert left == {"same"}


def test_what_holds_is_known_though_a_second_chance_is_interrupted() -> None:
    ran = []

    def prove(plan: Plan) -> Proof:
        ran.append(plan)
        if "grave" in plan.levers and len(ran) > 1:
            raise KeyboardInterrupt
        gate = Gate(name="G", passed="round" not in plan.levers, message="it differs")
        return Proof(effect=Effect.EXACT, gates=(gate,))

    judge = Judge(prove, lambda plan: True)
    with pytest.raises(KeyboardInterrupt):
        judge.judge(WHOLE)
    assert judge.plan.levers == {"same"}
    assert judge.proof.holds


def test_what_was_applied_by_hand_may_fail_alone() -> None:
    judge, left, ran = judged(set(), has_applied="guilty")
    assert judge.fails_alone
    assert (left, judge.rejected, len(ran)) == (set(), {}, 2)
    judge, left, _ = judged({"round"}, has_applied="sound")
    assert not judge.fails_alone
    assert left == EFFECTS.keys() - {"round"}


def test_an_innocent_lever_is_given_one_second_chance() -> None:
    _, left, ran = judged({"round", "grave"})
    assert left == {"narrow", "same"}
    assert ran == [
        {"grave", "narrow", "round", "same"},
        {"narrow", "round", "same"},
        {"round", "same"},
        {"same"},
        {"grave", "narrow", "same"},
        {"grave", "same"},
        {"narrow", "same"},
    ]
    _, left, ran = judged({"grave", "narrow"})
    assert left == {"round", "same"}
    assert len(ran) == 4  # the first of the two was proved guilty by one more run


def test_a_script_that_fails_without_any_lever_keeps_none() -> None:
    asked = []

    def prove(plan: Plan) -> Proof:
        asked.append(plan)
        gate = Gate(name="G", passed=False, message="it differs")
        return Proof(effect=Effect.EXACT, gates=(gate,))

    judge = Judge(prove, lambda plan: True)
    assert not judge.judge(WHOLE).holds
    assert judge.plan == Plan()
    assert asked.count(Plan()) == 1
    assert judge.rejected.keys() == EFFECTS.keys()
