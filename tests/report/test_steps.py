"""Sentences about one step."""

from dataclasses import replace

import pytest

from hasten.records import Interval
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
