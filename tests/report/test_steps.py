"""Sentences about one step."""

from dataclasses import replace

import pytest

from hasten.records import Phase
from hasten.report import steps
from hasten.report.steps import loader_ceiling


def test_what_the_wait_for_the_loader_costs_is_told_as_what_a_step_would_take(profile):
    waits = replace(profile, phase_s={Phase.DATA: 0.01, Phase.FORWARD: 0.03})
    assert loader_ceiling(waits) == (
        "Without its waits for the loader a step would take 75% of its time: at most 1.33x faster."
    )
    quick = replace(profile, phase_s={Phase.DATA: 0.0001, Phase.FORWARD: 0.03})
    assert "not the bottleneck" in loader_ceiling(quick)
    assert loader_ceiling(replace(profile, phase_s={Phase.FORWARD: 0.03})) == ""


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
