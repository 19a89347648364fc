"""Sentences about one step."""

from dataclasses import replace

import pytest

from hasten.records import Interval
from hasten.report import steps
from hasten.report.steps import loader_ceiling


def ceiling(middle):
    return Interval(low_ratio=middle - 0.02, mid_ratio=middle, high_ratio=middle + 0.02)


def test_a_perfect_loader_is_told_by_what_was_measured(profile):
    said = loader_ceiling(replace(profile, ceiling=ceiling(1.5)))
    assert "67% of its time: at most 1.50x" in said
    assert "measured" in said


def test_a_perfect_loader_is_estimated_where_nothing_was_measured(profile):
    assert "(estimated)" in loader_ceiling(profile)


@pytest.mark.parametrize("middle", [0.9, 0.98, 1.0, 1.004])
def test_no_ceiling_lies_below_the_script_as_it_is(profile, middle):
    said = loader_ceiling(replace(profile, ceiling=ceiling(middle)))
    assert said == (
        "A perfect loader would not make a step shorter "
        "(measured with batches that were there already)."
    )


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (None, ""),
        (1.0, "The accelerator waits for the host: it had caught up in 100% of steps."),
        (0.25, "The host is ahead of the accelerator in 75% of steps."),
    ],
)
def test_with_an_accelerator_it_is_said_who_waits(profile, ratio, said):
    seen = replace(profile, caught_up_ratio=ratio)
    assert steps.device_pace(seen) == said
    assert (said in steps.verdicts(seen)) == bool(said)
    assert ("host" in steps.lines_title(seen)) == bool(said)
