import pytest

from upshift.records import Comparison, Interval, Pair, Plan, Verdict
from upshift.session.payback import Payback, blamed


def seen(*levers, later_s):
    candidate = Plan()
    for lever in levers:
        candidate = candidate.pull(lever, True)
    return Comparison(
        baseline=Plan(), candidate=candidate, verdict=Verdict.WIN, later_s=later_s,
        speedup=Interval(low_ratio=1.1, mid_ratio=1.2, high_ratio=1.3),
        pairs=(Pair(baseline_s=1.2, candidate_s=1.0, baseline_first=True),),
    )  # fmt: skip


@pytest.mark.parametrize("ratio", [1.05, 1.5, 3.0])
def test_at_the_break_even_both_have_taken_the_same_time(ratio) -> None:
    payback = Payback(later_s=30.0, step_s=0.2, speedup_ratio=ratio)
    plain_s = payback.step_count * 0.2
    assert payback.wall_s + 30.0 == pytest.approx(plain_s, abs=0.2)
    assert not payback.is_repaid(0.99 * plain_s)
    assert payback.is_repaid(1.01 * plain_s)


def test_the_lever_whose_own_race_saw_the_late_start_is_blamed() -> None:
    plan = Plan().pull("a", True).pull("b", True)
    history = (seen("a", later_s=0.5), seen("b", later_s=28.0), seen("a", "b", later_s=30.0))
    assert blamed(plan, history, later_s=30.0) == {"b"}


def test_where_no_race_saw_it_the_whole_plan_is_blamed() -> None:
    plan = Plan().pull("a", True).pull("b", True)
    assert blamed(plan, (seen("a", later_s=None),), later_s=30.0) == {"a", "b"}
