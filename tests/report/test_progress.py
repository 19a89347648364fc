import io

import pytest
from rich.console import Console

from upshift.records import Plan
from upshift.report.progress import Style, View, choose

THREADS = Plan().pull("intra_op_threads", 2)


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def console(*, terminal=False, record=False, width=80, term="xterm"):
    return Console(
        file=io.StringIO(), force_terminal=terminal, record=record, width=width, height=24,
        color_system=None, _environ={"TERM": term},
    )  # fmt: skip


def told(view_console):
    return view_console.file.getvalue().splitlines()


def test_one_plain_line_per_event():
    paper, clock = console(), Clock()
    with View(paper, style=Style.PLAIN, budget_s=60, clock=clock) as view:
        view.stage("Watching the script", "train.py")
        clock.now_s = 12.0
        view.known("A step takes 34.1 ms.")
        view.note("[bold]as it is[/bold]")
    assert told(paper) == [
        "[    0 s] Watching the script: train.py",
        "[   12 s] A step takes 34.1 ms.",
        "[   12 s] [bold]as it is[/bold]",
    ]


def test_evidence_does_not_flood_the_log():
    paper, clock = console(), Clock()
    view = View(paper, style=Style.PLAIN, clock=clock)
    for count in range(1, 101):
        clock.now_s = count * 0.1
        view.evidence(Plan(), THREADS, count, None if count < 3 else 1.1)
    lines = told(paper)
    assert lines[0] == "[    0 s] intra_op_threads=2 against nothing: 1 pair"
    assert len(lines) == 2
    assert lines[1].endswith("51 pairs, 1.10x so far")


@pytest.mark.parametrize(
    ("baseline", "candidate", "race"),
    [
        (Plan(), Plan(), "the script against itself"),
        (THREADS, THREADS, "intra_op_threads=2 against itself"),
        (THREADS, Plan(), "nothing against intra_op_threads=2"),
        (THREADS, THREADS.pull("a", 1), "a=1 against nothing, both with intra_op_threads=2"),
    ],
)
def test_a_race_is_named_by_what_differs(baseline, candidate, race):
    paper = console()
    View(paper, style=Style.PLAIN, clock=Clock()).evidence(baseline, candidate, 1, None)
    assert told(paper) == [f"[    0 s] {race}: 1 pair"]


def test_a_new_race_is_told_at_once():
    paper, clock = console(), Clock()
    view = View(paper, style=Style.PLAIN, clock=clock)
    view.evidence(Plan(), THREADS, 1, None)
    view.evidence(THREADS, Plan(), 1, None)
    assert len(told(paper)) == 2


def test_a_long_line_is_one_line():
    paper = console(width=20)
    View(paper, style=Style.PLAIN, clock=Clock()).known("word " * 40)
    assert len(told(paper)) == 1


def test_quiet_says_nothing():
    paper = console(terminal=True)
    with View(paper, style=Style.QUIET) as view:
        view.stage("x")
        view.evidence(Plan(), THREADS, 1, 1.0)
        view.known("y")
        view.note("z")
    assert told(paper) == []


def test_the_live_screen_shows_stage_race_facts_and_time_left():
    paper, clock = console(terminal=True, record=True), Clock()
    view = View(paper, style=Style.LIVE, budget_s=300, clock=clock)
    with view:
        view.stage("Racing one lever at a time", "2 of 7")
        for fact in range(9):
            view.known(f"fact {fact}")
        view.evidence(Plan(), THREADS, 48, 1.123)
        clock.now_s = 100.0
        paper.print(view._screen())
    page = paper.export_text()
    for words in (
        "Racing one lever at a time", "2 of 7", "intra_op_threads=2 against nothing",
        "48 pairs, 1.12x so far", "fact 8", "3 m 20 s of 5 m 00 s left",
    ):  # fmt: skip
        assert words in page, words
    assert "fact 0" not in page.split("48 pairs")[-1]


def test_the_screen_is_gone_when_an_error_passes():
    view = View(console(terminal=True), style=Style.LIVE)

    def work():
        with view:
            view.stage("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    view.note("after")
    assert view._live is None


@pytest.mark.parametrize(
    ("terminal", "term", "flags", "style"),
    [
        (True, "xterm", {"quiet": False, "plain": False}, Style.LIVE),
        (True, "xterm", {"quiet": False, "plain": True}, Style.PLAIN),
        (True, "dumb", {"quiet": False, "plain": False}, Style.PLAIN),
        (False, "xterm", {"quiet": False, "plain": False}, Style.PLAIN),
        (True, "xterm", {"quiet": True, "plain": True}, Style.QUIET),
    ],
)
def test_the_style_follows_the_terminal(terminal, term, flags, style):
    assert choose(console(terminal=terminal, term=term), **flags) is style
