import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from hasten.errors import UsageError
from hasten.records import Effect, Phase, Scope
from hasten.report.levers import render_levers

LEVERS = {
    name: SimpleNamespace(
        name=name,
        phases=frozenset({Phase.FORWARD, Phase.BACKWARD}),
        effect=effect,
        scope=Scope.STEP,
        kind=bool,
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
    Console(file=paper, width=80).print(render_levers(levers, name))
    return paper.getvalue()


def test_each_lever_has_one_line():
    rows = shown(LEVERS).splitlines()
    assert rows[0].rstrip() == "channels_last   rounding      Do channels_last."
    assert rows[1].rstrip() == "gather_batches  exact         Do gather_batches."
    assert "hasten levers NAME" in rows[-1]
    assert len(rows) == 4


def test_the_card_of_one_has_everything():
    page = shown(LEVERS, "channels_last")
    for words in (
        "Do channels_last.", "Helps: [convolutions].", "backward, forward", "at best 1.80x faster",
        "rounding (the same maths, rounded otherwise)", "hasten run --set channels_last=",
        "step (on and off at any step",
    ):  # fmt: skip
        assert words in page, words
    assert "gather_batches" not in page
    assert "to nothing at best" in shown(LEVERS, "gather_batches")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("x", "Choose from: channels_last, gather_batches."),
        ("channels-last", "Did you mean channels_last?"),
        ("gather_batch", "Did you mean gather_batches?"),
    ],
)
def test_an_unknown_lever_gets_the_one_that_was_meant(name, remedy):
    with pytest.raises(UsageError, match=f"There is no lever called {name}") as caught:
        render_levers(LEVERS, name)
    assert caught.value.remedy == remedy


def test_no_lever_is_said():
    assert "No lever is installed." in shown({})
