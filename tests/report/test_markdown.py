"""A tuning as Markdown: read back by a parser, as GitHub would."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from hasten.records import Effect, Finding, Gate, Place, Plan, Proof
from hasten.report import html, markdown, text

NASTY = "a | b `c` <script>x</script> **d** _e_ [f](g) @someone owner/repo#12\n| --- |"


@pytest.fixture
def rendered(lines):
    def render(tuning, snippets=lines):
        plan_path = Path(tuning.workload.cwd, "hasten.toml")
        return markdown.render(tuning, plan_path=plan_path, snippets=snippets)

    return render


def shown(page):
    paper = StringIO()
    Console(file=paper, width=80).print(page)
    return paper.getvalue()


def parsed(page):
    return MarkdownIt("commonmark", {"html": True}).enable("table").parse(page)


def tables(page):
    """Return the rows of each table, a cell as the text that a reader sees."""
    found = []
    for token in parsed(page):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and token.level >= 4:
            shown = [c.content for c in token.children if c.type in ("text", "code_inline")]
            found[-1][-1].append("".join(shown))
    return found


def table(page, first):
    return next(rows for rows in tables(page) if rows[0][0] == first)


def headings(page):
    tokens = parsed(page)
    return [tokens[i + 1].content for i, t in enumerate(tokens) if t.type == "heading_open"]


def test_the_answer_stands_first_and_all_parts_follow(rendered, tuning, diagnosis):
    page = rendered(replace(tuning, diagnosis=diagnosis))
    assert headings(page) == [
        "1.43x faster.", "Plan", "Where time goes", "What makes it slow",
        "What it does to the maths", "Machine", "How to reproduce",
    ]  # fmt: skip
    assert "**1.43x (1.38x to 1.49x)**" in page
    assert "hasten run train.py --epochs 3 --name 'my run [a]'" in page
    assert "torch.set_num_threads(2)" in page
    assert "AMD EPYC 9V74 80-Core Processor" in page
    assert "The script sets no seed; trials pinned one." in page


def test_the_plan_the_phases_and_the_gates_are_tables(rendered, tuning):
    page = rendered(tuning)
    plan = table(page, "lever")
    assert plan[1][:4] == ["gather_batches", "True", "1.35x (1.31x to 1.40x)", "exact"]
    phases = table(page, "phase")
    assert phases[1] == ["data", "14.8 ms", "43%", "5.2 ms", "22%"]
    assert phases[-1][0] == "mean step"
    assert [row[0] for row in table(page, "gate")[1:]] == ["passed", "passed", "open"]


def test_nothing_found_is_said_without_a_plan(rendered, nothing):
    page = rendered(nothing)
    assert headings(page)[0] == "Nothing here makes this script faster."
    assert "hasten run" not in page
    assert ["phase", "before", "share"] in [rows[0] for rows in tables(page)]
    assert ["channels_last=True", "dropped"] in [
        row[:2] for rows in tables(page) for row in rows if rows[0][0] == "lever"
    ]


def test_what_the_user_wrote_breaks_no_table_and_calls_nobody(rendered, tuning, diagnosis):
    place = Place(path=f"{tuning.workload.cwd}/a|b.py", line=3, source=NASTY)
    bad = Finding(name="few-workers", message=NASTY, remedy=NASTY, places=(place,))
    gates = (Gate(name=NASTY, passed=False, message=NASTY),)
    sick = replace(
        tuning, diagnosis=replace(diagnosis, findings=(bad,)), notes=(NASTY,),
        proof=Proof(effect=Effect.EXACT, gates=gates),
    )  # fmt: skip
    page = rendered(sick)
    flat = " ".join(NASTY.split())
    found = table(page, "costs")
    assert len(found) == 2
    assert found[1][:4] == ["-", "few-workers", flat, flat]
    assert found[1][4] == f"a|b.py:3 {flat}"
    gate = table(page, "gate")
    assert gate[1] == ["failed", flat, flat]
    html = [t.content for t in parsed(page) if t.type == "html_block"]
    html += [c.content for t in parsed(page) for c in t.children or () if c.type == "html_inline"]
    assert not [tag for tag in html if "script" in tag]
    spoken = "".join(
        c.content for t in parsed(page) if t.type == "inline" for c in t.children
        if c.type in ("text", "html_inline")
    )  # fmt: skip
    assert "@someone" not in spoken
    assert "repo#12" not in spoken


def test_paths_are_told_relative_to_the_folder_of_the_command(rendered, tuning, diagnosis):
    page = rendered(replace(tuning, diagnosis=diagnosis))
    assert "`train.py:7`" in page
    assert tuning.workload.cwd not in page


def test_a_lever_that_was_applied_by_hand_has_a_row(rendered, tuning):
    page = rendered(replace(tuning, plan=Plan().with_lever("mine", 3)))
    assert table(page, "lever")[1] == ["mine", "3", "", "", "set by hand"]


def test_every_form_says_what_was_granted(rendered, tuning, profile, machine, profiled):
    granted, watched = ("dataset-unchanged",), profiled(profile, machine)
    plan_path = Path(tuning.workload.cwd, "hasten.toml")
    for given in (granted, ()):
        tuned, seen = replace(tuning, assumed=given), replace(watched, assumed=given)
        pages = [
            rendered(tuned),
            html.render_tuning(tuned, plan_path=plan_path, snippets={}),
            html.render_profile(seen),
            shown(text.render_tuning(tuned, plan_path=plan_path, snippets={})),
            shown(text.render_profile(seen)),
        ]
        told = ["not proved (--assume dataset-unchanged)" in " ".join(p.split()) for p in pages]
        assert told == [bool(given)] * 5
