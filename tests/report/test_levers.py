import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from hasten.errors import UsageError
from hasten.records import Effect, Phase, Switch
from hasten.report.levers import render_cards

LEVERS = {
    name: SimpleNamespace(
        name=name,
        phases=frozenset({Phase.FORWARD, Phase.BACKWARD}),
        effect=effect,
        switch=Switch.STEP,
        gain_ratio=gain,
        card=f"Do {name}.\n\n    Helps: [convolutions].\n",
    )
    for name, effect, gain in (
        ("channels_last", Effect.ROUNDING, 1.8),
        ("gather_batches", Effect.EXACT, float("inf")),
    )
}


def shown(levers, name=None):
    paper = io.StringIO()
    Console(file=paper, width=80).print(render_cards(levers, name))
    return paper.getvalue()


def test_every_card_is_shown():
    page = shown(LEVERS)
    for words in (
        "Do channels_last.", "Helps: [convolutions].", "backward, forward", "at best 1.80x as fast",
        "rounding (the same maths, sums in another order)", "hasten run --lever gather_batches=",
        "to nothing at best", "step (at any step",
    ):  # fmt: skip
        assert words in page, words


def test_one_card_alone():
    assert "channels_last" not in shown(LEVERS, "gather_batches")


def test_an_unknown_lever_names_the_known_ones():
    with pytest.raises(UsageError, match="There is no lever called x") as caught:
        render_cards(LEVERS, "x")
    assert "channels_last, gather_batches" in caught.value.remedy


def test_no_lever_is_said():
    assert "No lever is installed." in shown({})
