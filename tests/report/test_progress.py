import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from hasten.cli.streams import SPELT_OUT
from hasten.records import Comparison, Interval, Pair, Plan, Progress, Verdict
from hasten.report.progress import View, choose

PAIR = Pair(baseline_s=1.1, candidate_s=1.0, baseline_first=True)
GAIN = Interval(low_ratio=1.01, mid_ratio=1.123, high_ratio=1.24)
THREADS = Plan().with_lever("intra_op_threads", 2)


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
    with View(paper, style=Progress.PLAIN, budget_s=60, clock=clock) as view:
        view.stage("Watching the script", "train.py")
        clock.now_s = 12.0
        view.known("A step takes 34.1 ms.")
        view.note("[bold]as it is[/bold]")
    assert told(paper) == [
        "[    0 s] Watching the script: train.py",
        "[   12 s] A step takes 34.1 ms.",
        "[   12 s] [bold]as it is[/bold]",
    ]


def raced(baseline, candidate, speedup):
    return Comparison(
        baseline=baseline, candidate=candidate, verdict=Verdict.WIN, speedup=speedup,
        pairs=(PAIR,),
    )  # fmt: skip


def test_evidence_does_not_flood_the_log():
    paper, clock = console(), Clock()
    view = View(paper, style=Progress.PLAIN, clock=clock)
    view.race_begins(Plan(), THREADS)
    for count in range(1, 101):
        clock.now_s = count * 0.1
        view.race_grows([PAIR], GAIN)
    lines = told(paper)
    assert len(lines) == 2
    assert lines[0].startswith("[    0 s] intra_op_threads=2 against nothing: 1 pair, 1.12x (1.01x")
    assert "51 pairs, 1.12x (1.01x to 1.24x) so far" in lines[1]


@pytest.mark.parametrize(
    ("baseline", "candidate", "race"),
    [
        (Plan(), Plan(), "the script against itself"),
        (THREADS, THREADS, "intra_op_threads=2 against itself"),
        (THREADS, Plan(), "nothing against intra_op_threads=2"),
        (THREADS, THREADS.with_lever("a", 1), "a=1 against nothing, both with intra_op_threads=2"),
    ],
)
def test_a_race_is_named_by_what_differs(baseline, candidate, race):
    paper = console()
    view = View(paper, style=Progress.PLAIN, clock=Clock())
    view.race_begins(baseline, candidate)
    view.race_grows([PAIR], GAIN)
    assert told(paper)[0].startswith(f"[    0 s] {race}: 1 pair")


def test_a_new_race_is_told_at_once_and_counts_from_one():
    paper, clock = console(), Clock()
    view = View(paper, style=Progress.PLAIN, clock=clock)
    for plans in ((Plan(), THREADS), (THREADS, Plan())):
        view.race_begins(*plans)
        view.race_grows([PAIR], GAIN)
    assert [line.split(": ")[1].split(",")[0] for line in told(paper)] == ["1 pair", "1 pair"]


def test_what_leads_is_weighed_by_the_races_that_it_won():
    paper = console()
    view = View(paper, style=Progress.PLAIN, clock=Clock())
    both = THREADS.with_lever("a", 1)
    view.race_ends(raced(Plan(), Plan(), Interval(low_ratio=0.5, mid_ratio=0.6, high_ratio=0.7)))
    view.race_ends(raced(Plan(), THREADS, GAIN))
    view.race_ends(raced(THREADS, both, GAIN))
    view.leads(both)
    assert told(paper) == ["[    0 s] leading: a=1, intra_op_threads=2, about 1.26x"]


def test_a_race_without_a_lever_does_not_change_what_the_whole_plan_gains():
    paper = console()
    view = View(paper, style=Progress.PLAIN, clock=Clock())
    both = THREADS.with_lever("a", 1)
    double = Interval(low_ratio=1.9, mid_ratio=2.0, high_ratio=2.1)
    view.race_ends(raced(Plan(), both, double))
    view.race_ends(raced(THREADS, both, Interval(low_ratio=1.2, mid_ratio=1.25, high_ratio=1.3)))
    view.leads(both)
    view.leads(THREADS)
    assert [line.rpartition("about ")[2] for line in told(paper)] == ["2.00x", "1.60x"]


def test_a_race_that_failed_says_why():
    paper = console()
    view = View(paper, style=Progress.PLAIN, clock=Clock())
    view.race_ends(
        Comparison(
            baseline=Plan(), candidate=THREADS, verdict=Verdict.FAIL, failure="It crashed.\nMore"
        )
    )
    assert told(paper) == ["[    0 s] intra_op_threads=2 against nothing: failed. It crashed."]


def test_findings_are_told_with_their_cost(diagnosis):
    paper = console()
    View(paper, style=Progress.PLAIN, clock=Clock()).found(diagnosis)
    assert told(paper)[0].startswith("[    0 s] 43% few-workers: The loop waits 43%")


def test_a_long_line_is_one_line():
    paper = console(width=20)
    View(paper, style=Progress.PLAIN, clock=Clock()).known("word " * 40)
    assert len(told(paper)) == 1


def test_quiet_says_nothing():
    paper = console(terminal=True)
    with View(paper, style=Progress.NONE) as view:
        view.stage("x")
        view.race_begins(Plan(), THREADS)
        view.race_grows([PAIR], GAIN)
        view.race_ends(raced(Plan(), THREADS, GAIN))
        view.leads(THREADS)
        view.known("y")
        view.note("z")
    assert told(paper) == []


def full(view, profile, diagnosis):
    view.stage("search", "toggle: intra_op_threads=2")
    view.profiled(profile)
    view.found(replace(diagnosis, findings=diagnosis.findings * 5))
    view.leads(Plan().with_lever("gather_batches", True))
    for fact in range(9):
        view.known(f"fact {fact} " + "and so on " * 20)
    view.race_begins(Plan(), THREADS)
    for _ in range(48):
        view.race_grows([PAIR], GAIN)


def test_the_live_screen_shows_all_that_is_known_and_the_time_left(profile, diagnosis):
    paper, clock = console(terminal=True, record=True), Clock()
    view = View(paper, style=Progress.SCREEN, budget_s=300, clock=clock)
    with view:
        full(view, profile, diagnosis)
        clock.now_s = 100.0
        paper.print(view._drawn())
    page = paper.export_text().split("3m 20s of 5m 00s left")[-1]
    for words in (
        "search", "intra_op_threads=2 against nothing", "48 pairs, 1.12x (1.01x to 1.24x) so far",
        "fact 8", "34.4 ms a step", "data 43%", "43%  few-workers: Give the loader",
        "gather_batches=True", "Ctrl-C ends the search and keeps the best so far",
    ):  # fmt: skip
        assert words in page, words
    assert "fact 0" not in page


def test_the_live_screen_fits_a_small_terminal(profile, diagnosis):
    paper = console(record=True)
    view = View(paper, style=Progress.SCREEN, budget_s=300, clock=Clock())
    full(view, profile, diagnosis)
    paper.print(view._drawn())
    lines = paper.export_text().splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_long_fact_keeps_what_came_of_it(encoding):
    paper = console()
    paper.file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=SPELT_OUT)
    view = View(paper, style=Progress.SCREEN, clock=Clock())
    view.known(f"{Plan().with_lever('a_lever_with_a_name' * 9, 1)}: 1.29x, no gain")
    view.known("no colon " * 20)
    paper.print(view._drawn())
    paper.file.seek(0)
    lines = [line.rstrip() for line in paper.file.read().splitlines()]
    dots = "..." if encoding == "ascii" else "…"
    assert [line for line in lines if line.endswith(f"{dots}: 1.29x, no gain")]
    assert lines[-1].endswith(dots)
    assert max(map(len, lines)) <= 80


def test_without_colour_the_screen_has_none(profile, diagnosis):
    paper = Console(
        file=io.StringIO(), force_terminal=True, width=80, height=24,
        _environ={"TERM": "xterm-256color", "NO_COLOR": "1"},
    )  # fmt: skip
    with View(paper, style=Progress.SCREEN, budget_s=300) as view:
        full(view, profile, diagnosis)
    codes = re.findall("\x1b\\[([0-9;]*)m", paper.file.getvalue())
    assert {int(c) for code in codes for c in code.split(";") if c} <= {0, 1, 2}


def test_a_screen_that_is_left_gives_the_cursor_back(profile, diagnosis):
    paper = console(terminal=True)

    def work():
        with View(paper, style=Progress.SCREEN) as view:
            full(view, profile, diagnosis)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    written = paper.file.getvalue()
    assert "\x1b[?25l" in written
    assert "\x1b[?25h" in written.rpartition("\x1b[?25l")[2]


def test_the_screen_is_gone_when_an_error_passes():
    view = View(console(terminal=True), style=Progress.SCREEN)

    def work():
        with view:
            view.stage("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    view.note("after")
    assert view._live is None


@pytest.mark.parametrize(
    ("terminal", "term", "asked", "style"),
    [
        (True, "xterm", None, Progress.SCREEN),
        (True, "xterm", Progress.SCREEN, Progress.SCREEN),
        (True, "xterm", Progress.PLAIN, Progress.PLAIN),
        (True, "dumb", Progress.SCREEN, Progress.PLAIN),
        (False, "xterm", None, Progress.PLAIN),
        (True, "xterm", Progress.NONE, Progress.NONE),
    ],
)
def test_the_style_follows_the_terminal(terminal, term, asked, style):
    assert choose(console(terminal=terminal, term=term), asked) is style
