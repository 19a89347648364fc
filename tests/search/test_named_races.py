"""What findings name is raced first, the largest share before smaller ones."""

from hasten.records import Comparison, Effect, Interval, Phase, Plan, Scope, Verdict
from hasten.search import Candidate, propose

DATA, UPDATE, STEP = (
    frozenset({Phase.DATA}),
    frozenset({Phase.OPTIMIZER}),
    frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}),
)


def candidate(lever, phases, named_ratio=0.0, **details) -> Candidate:
    details = {"scope": Scope.STEP, "gain_ratio": 4.0, "phases_ratio": 0.8} | details
    return Candidate(
        lever=lever, phases=phases, settings=(True,), effect=Effect.EXACT,
        named_ratio=named_ratio, **details,
    )  # fmt: skip


def answer(asked, ratio) -> Comparison:
    speedup = Interval(low_ratio=0.99 * ratio, mid_ratio=ratio, high_ratio=1.01 * ratio)
    verdict = Verdict.WIN if ratio > 1.01 else Verdict.DROP
    return Comparison(
        baseline=asked.baseline, candidate=asked.candidate, verdict=verdict, speedup=speedup
    )


def order(candidates, gains) -> list[str]:
    """Return what each race turned until the search was over."""
    history, turned = [], []
    while asked := propose(candidates, history):
        differing = sorted(asked.baseline.differing(asked.candidate))
        turned.append(f"{asked.kind} {'+'.join(differing)}")
        ratio = 1.0
        for name in differing:
            ratio *= gains.get(name, 1.0)
        history.append(answer(asked, ratio))
    return turned


def test_a_measured_share_comes_before_the_best_guess() -> None:
    candidates = [
        candidate("guess", STEP, gain_ratio=50.0),
        candidate("named", UPDATE, 0.2, bundled=False),
    ]
    assert order(candidates, {"named": 1.2})[0] == "toggle named"


def test_the_largest_share_comes_first() -> None:
    candidates = [
        candidate("small", UPDATE, 0.1),
        candidate("large", UPDATE, 0.4),
        candidate("mid", UPDATE, 0.2),
    ]
    assert order(candidates, {})[:3] == ["toggle large", "toggle mid", "toggle small"]


def test_what_is_named_in_different_phases_is_raced_together() -> None:
    candidates = [
        candidate("update", UPDATE, 0.3),
        candidate("data", DATA, 0.2),
        candidate("other", STEP),
    ]
    asked = order(candidates, {"update": 1.4, "data": 1.2})
    assert asked[0] == "bundle data+update"
    assert "toggle data" not in asked


def test_two_cures_of_one_ill_are_not_raced_together_at_first() -> None:
    candidates = [candidate("dear", DATA, 0.5, scope=Scope.PROCESS), candidate("cheap", DATA, 0.5)]
    asked = order(candidates, {"cheap": 1.9})
    assert asked[:2] == ["toggle cheap", "toggle dear"]


def test_where_the_bundle_of_what_is_named_hurts_each_is_tried_alone() -> None:
    candidates = [candidate("bad", DATA, 0.3), candidate("good", UPDATE, 0.2)]
    asked = order(candidates, {"bad": 0.5, "good": 1.2})
    assert asked[:3] == ["bundle bad+good", "toggle bad", "toggle good"]


def test_a_proposal_tells_the_largest_share_that_it_is_about() -> None:
    asked = propose([candidate("update", UPDATE, 0.3), candidate("data", DATA, 0.2)], [])
    assert asked.named_ratio == 0.3
    assert asked.baseline == Plan()
