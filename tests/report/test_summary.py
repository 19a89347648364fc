"""The summary fits a terminal of 25 lines, and its last lines are what to type next."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hasten.cli.streams import SPELT_OUT
from hasten.records import (
    Effect,
    Entry,
    LeverReport,
    OptimizerTraits,
    Outcome,
    Phase,
    Plan,
    Traits,
)
from hasten.report import text
from hasten.report.summary import render_summary
from hasten.units import duration


@pytest.fixture
def plan_path(workload):
    return Path(workload.cwd, "hasten.toml")


def rows_of(tuning, plan_path, *, encoding="utf-8"):
    paper = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=SPELT_OUT, newline="")
    page = render_summary(tuning, plan_path=plan_path)
    Console(file=paper, width=80, no_color=True, force_terminal=False).print(page)
    paper.flush()
    return [line.rstrip() for line in paper.buffer.getvalue().decode(encoding).splitlines()]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("kind", ["tuning", "nothing"])
def test_it_fits_a_small_terminal_in_any_encoding(request, kind, plan_path, encoding) -> None:
    rows = rows_of(request.getfixturevalue(kind), plan_path, encoding=encoding)
    assert len(rows) <= 25
    assert max(map(len, rows)) <= 80


def test_nobody_is_told_to_edit_a_script_for_an_unconfirmed_plan(tuning, plan_path) -> None:
    rows = rows_of(replace(tuning, speedup=None, interrupted=True), plan_path)
    assert any("hasten run" in row for row in rows)
    assert not any("patch" in row for row in rows)


@pytest.mark.parametrize("entry", list(Entry))
def test_only_for_a_script_or_a_module_there_is_a_diff_to_apply(tuning, plan_path, entry) -> None:
    rows = rows_of(replace(tuning, workload=replace(tuning.workload, entry=entry)), plan_path)
    assert any("patch" in row for row in rows) == (entry in (Entry.SCRIPT, Entry.MODULE))


def test_the_answer_stands_last_with_what_to_type_next(tuning, diagnosis, plan_path) -> None:
    tuning = replace(tuning, diagnosis=diagnosis)
    rows = rows_of(tuning, plan_path)
    at = rows.index(text.headline(tuning))
    assert rows[at + 1] == "Training steps in fresh launches, 95% interval 1.38x to 1.49x."
    assert rows[at + 2] == f"Plan: {tuning.plan}"
    assert rows[-3:] == [
        "  hasten run train.py --epochs 3 --name 'my run [a]'",
        "  hasten report --edits | patch -p1",
        "  hasten report --full",
    ]
    assert any(row.startswith("  kept      gather_batches=True") for row in rows)
    assert any("  43%  few-workers  The loop waits" in row for row in rows)


def test_a_long_search_is_cut_to_its_first_rows(tuning, plan_path) -> None:
    more = tuple(
        LeverReport(
            lever=f"lever_{i}",
            setting=i,
            outcome=Outcome.DROPPED,
            why="slower here",
            effect=Effect.EXACT,
        )
        for i in range(40)
    )
    rows = rows_of(replace(tuning, levers=(*more, *tuning.levers)), plan_path)
    assert len(rows) <= 25
    kept = [row for row in rows if row.startswith("  kept")]
    assert len(kept) == sum(row.outcome is Outcome.KEPT for row in tuning.levers)
    assert any(row.strip().startswith("and ") and row.endswith(" more") for row in rows)


def test_where_nothing_helps_the_full_report_has_the_reasons(nothing, plan_path) -> None:
    rows = rows_of(nothing, plan_path)
    assert "Nothing here makes this script faster." in rows
    assert rows[-1] == "  hasten report --full"
    assert not any("hasten run" in row for row in rows)


def test_a_plan_of_another_name_is_named(tuning, plan_path) -> None:
    rows = rows_of(tuning, plan_path.with_name("night.toml"))
    assert rows[-1] == "  hasten report night.toml --full"


def test_steps_before_and_after_are_typical_ones_whatever_happened_once(tuning, plan_path) -> None:
    once = {**tuning.tuned.phase_s, Phase.FORWARD: 9.0}  # something was compiled
    before, after = replace(tuning.baseline, step_s=0.03), replace(tuning.tuned, step_s=0.02)
    seen = replace(tuning, baseline=before, tuned=replace(after, phase_s=once))
    assert "step     30 ms before, 20 ms after" in rows_of(seen, plan_path)
    alone = replace(seen, tuned=None, speedup=None)
    mean_s = alone.baseline.mean_step_s
    assert f"step     {duration(mean_s)}" in rows_of(alone, plan_path)
    held = replace(seen, traits=Traits(optimizer=OptimizerTraits(step_count=2)))
    told = "step     30 ms before, 20 ms after (2 optimizer steps)"
    assert told in rows_of(held, plan_path)


def test_what_ended_an_unconfirmed_search_is_said(tuning, plan_path) -> None:
    cut = replace(tuning, speedup=None, tuned=None, out_of_time=True)
    rows = rows_of(cut, plan_path)
    assert "The budget was spent; this is what was known by then." in rows
    assert f"Plan: {cut.plan}" in rows
    assert Plan() != cut.plan
