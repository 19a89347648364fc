import io
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hasten.cli.streams import SPELT_OUT
from hasten.records import (
    Budget,
    Effect,
    Entry,
    Finding,
    Gate,
    Interval,
    Outcome,
    Passes,
    Phase,
    Plan,
    Proof,
    Reason,
    Workload,
)  # fmt: skip
from hasten.report import html, text
from hasten.report.bars import Gauge, Stack
from hasten.report.plan_writing import evidence_table
from hasten.report.steps import bottleneck
from hasten.report.summary import render_summary
from hasten.report.wording import command_line


def shown(page, *, encoding="utf-8", width=80):
    paper = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=SPELT_OUT, newline="")
    Console(file=paper, width=width, no_color=True, force_terminal=False).print(page)
    paper.flush()
    return paper.buffer.getvalue().decode(encoding)


@pytest.fixture
def plan_path(workload):
    return Path(workload.cwd, "hasten.toml")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("kind", ["tuning", "nothing"])
def test_a_tuning_fits_80_columns_in_any_encoding(request, kind, encoding, plan_path, lines):
    page = text.render_tuning(request.getfixturevalue(kind), plan_path=plan_path, snippets=lines)
    assert max(map(len, shown(page, encoding=encoding).splitlines())) <= 80


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_profile_fits_80_columns_in_any_encoding(profile, machine, encoding, profiled):
    page = shown(
        text.render_profile(profiled(profile, machine, ("A note " * 30,))), encoding=encoding
    )
    assert max(map(len, page.splitlines())) <= 80
    assert encoding == "utf-8" or page.isascii()


def test_a_profile_says_what_was_measured(profile, machine, profiled):
    page = shown(text.render_profile(profiled(profile, machine, ("No seed is set.",))))
    for words in (
        "34.1 ms", "33.2 ms to 36 ms", "64 steps", "samples/s", "1.2 of 2 cores", "812.0 MiB",
        "16095 per step", "adds 0.4% to a step",
        "evaluation 4 ms", "No seed is set.", "43% of the step is spent waiting for its data.",
    ):  # fmt: skip
        assert words in page, words


def test_what_is_unknown_is_left_out(profile, machine, profiled):
    bare = replace(profile, peak_rss_bytes=None, faults_count=None, cores_ratio=None, own_cost=None)
    page = shown(text.render_profile(profiled(bare, machine)))
    for words in ("memory", "page faults", "cores busy", "arithmetic", "own cost", "None"):
        assert words not in page, words


def test_measuring_never_makes_a_step_faster(profile, machine, profiled):
    noisy = replace(
        profile, own_cost=replace(profile.own_cost, low_ratio=0.5, mid_ratio=0.7, high_ratio=1.16)
    )
    assert "at most 16% of a step" in shown(text.render_profile(profiled(noisy, machine)))


def test_tokens_are_called_tokens(profile, machine, profiled):
    page = shown(text.render_profile(profiled(replace(profile, sample_unit="tokens"), machine)))
    assert "tokens/s" in page
    assert "samples" not in page


def test_one_core_is_singular(profile, machine, profiled):
    single = replace(machine, budget=Budget(core_count=1, limited_by="quota"))
    page = shown(text.render_profile(profiled(profile, single)))
    assert "1.2 of 1 core" in [line.rstrip()[-13:] for line in page.splitlines()]


@pytest.mark.parametrize("phase", [p for p in Phase if p.in_step])
def test_every_phase_can_be_the_bottleneck(profile, phase):
    assert bottleneck(replace(profile, phase_s={phase: 0.01})).startswith("100% of the step")


def test_an_even_step_has_no_bottleneck(profile):
    even = dict.fromkeys((Phase.DATA, Phase.FORWARD, Phase.BACKWARD), 0.01)
    assert bottleneck(replace(profile, phase_s=even)).startswith("No phase dominates")


def test_the_answer_comes_first_and_the_command_last(tuning, plan_path, lines):
    page = shown(text.render_tuning(tuning, plan_path=plan_path, snippets=lines))
    rows = [line.rstrip() for line in page.splitlines()]
    assert rows[2] == "1.43x faster."
    assert "    hasten run train.py --epochs 3 --name 'my run [a]'" in rows
    assert "    torch.set_num_threads(2)" in rows
    for words in (
        "1.38x to 1.49x", "mean-based", "1.41x", "rounding", "gather_batches=True  kept",
        "1.35x (1.31x to 1.40x)  exact", "failed", "No C compiler is installed.",
        "It needs --numerics precision.", "passed  same batches: 32 batches", "open    weights",
        "Smallest detectable change: 3.6%", "4m 23s and 14 launches",
        "The script sets no seed", "Set OMP_NUM_THREADS=2.",
    ):  # fmt: skip
        assert words in page, words


def test_the_smallest_detectable_change_is_what_the_fresh_launches_resolved(tuning):
    ends = Interval(low_ratio=1.41, mid_ratio=1.43, high_ratio=1.45)
    fine = replace(tuning.noise, resolution_ratio=0.005)
    for speedup, noise, told in (
        (tuning.speedup, fine, "change: 3.6%."),
        (ends, tuning.noise, "change: 2%."),
        (None, tuning.noise, "change: 3%."),
        (None, fine, "change: 2%."),
    ):
        seen = replace(tuning, speedup=speedup, noise=noise)
        assert any(told in line for line in text.trust(seen)), told
    assert not any("detectable" in s for s in text.trust(replace(seen, noise=None)))


@pytest.mark.parametrize("ends", ["interrupted", "out_of_time"])
def test_a_search_that_ends_with_what_was_set_by_hand_has_no_plan_to_confirm(tuning, ends):
    stopped = replace(tuning, speedup=None, **{ends: True})
    assert text.headline(stopped).startswith("The search ended before its best plan")
    rows = tuple(row for row in tuning.levers if row.outcome is not Outcome.KEPT)
    told = text.headline(replace(stopped, levers=rows, applied=tuning.plan))
    assert told.startswith(f"Nothing beyond what you set ({tuning.plan})")


def test_the_step_after_is_drawn_shorter(tuning, plan_path):
    page = shown(text.render_tuning(tuning, plan_path=plan_path, snippets={}))
    before, after = (
        next(li for li in page.splitlines() if li.startswith(f"  {name} ")).rstrip()
        for name in ("before", "after")
    )
    assert len(after) < 0.75 * len(before)


def test_nothing_faster_is_said_plainly_with_reasons(nothing, plan_path):
    page = shown(text.render_tuning(nothing, plan_path=plan_path, snippets={}))
    assert "Nothing here makes this script faster." in page
    assert "2 skipped, 1 dropped, 1 failed" in page
    assert "No faster than 2% after 96 pairs." in page
    assert "hasten run" not in page


@pytest.mark.parametrize(
    ("outcome", "reason", "message"),
    [
        (Outcome.REJECTED, Reason.FAILED_GATE, "did not pass a numerics gate"),
        (Outcome.DROPPED, Reason.UNPROVED, "could not be proved"),
        (Outcome.DROPPED, Reason.NOT_SEEN_AGAIN, "not again on fresh launches"),
        (Outcome.DROPPED, Reason.LAUNCHES_DIFFER, "launches of this script may differ by as much"),
        (Outcome.DROPPED, Reason.NOT_RACED_AGAIN, "have not confirmed"),
        (Outcome.DROPPED, Reason.HIDDEN, "may be noise"),
        (Outcome.DROPPED, Reason.STALLS, "stalled"),
        (Outcome.DROPPED, Reason.STARTS_LATE, "too late"),
        (Outcome.DROPPED, Reason.FIRST_PASS, "make up for its first pass"),
        (Outcome.DROPPED, Reason.EVALUATION, "longer between steps, as for evaluation"),
    ],
)
def test_a_gain_that_was_seen_and_is_not_in_the_plan_is_told(
    nothing, applied, outcome, reason, message
) -> None:
    for tuning, lead in ((nothing, "Nothing was"), (applied, "Nothing beyond what you set (")):
        row = replace(tuning.levers[0], outcome=outcome, reason=reason)
        said = text.headline(replace(tuning, levers=(row, *tuning.levers[1:])))
        assert said.startswith(lead)
        assert "proved to make this script faster: " in said
        assert said.endswith(f"{message}.") or message in said
        skipped = replace(row, outcome=Outcome.SKIPPED)
        assert message not in text.headline(replace(tuning, levers=(skipped, *tuning.levers[1:])))


def test_several_gains_that_were_lost_are_told_once_each(nothing) -> None:
    reasons = (Reason.FAILED_GATE, Reason.NOT_SEEN_AGAIN, Reason.FAILED_GATE)
    rows = tuple(
        replace(row, outcome=Outcome.DROPPED, reason=reason)
        for row, reason in zip(nothing.levers, reasons, strict=False)
    )
    assert text.headline(replace(nothing, levers=rows)) == (
        "Nothing was proved to make this script faster: what was faster did not pass a "
        "numerics gate; a gain was seen, but not again on fresh launches."
    )


def test_settings_that_were_tried_together_only_are_counted(nothing, plan_path):
    why = "not tried alone: the time was up (1.02x after 8 pairs together with other levers)"
    levers = tuple(
        replace(row, why=why, reason=Reason.UNTRIED_ALONE)
        if row.outcome is Outcome.SKIPPED
        else row
        for row in nothing.levers
    )
    page = shown(
        text.render_tuning(replace(nothing, levers=levers), plan_path=plan_path, snippets={})
    )
    assert "(2 of them tried together, not alone)" in " ".join(page.split())


def test_no_claim_without_proof(tuning):
    stopped = replace(tuning, speedup=None, interrupted=True)
    assert "could be confirmed" in text.headline(stopped)
    low = replace(tuning.speedup, low_ratio=0.99)
    assert "did not confirm" in text.headline(replace(tuning, speedup=low))
    failed = Proof(
        effect=Effect.ROUNDING, gates=(Gate(name="maths", passed=False, message="Off."),)
    )
    assert "do not use" in text.headline(replace(tuning, proof=failed))


@pytest.fixture
def applied(tuning):
    """A whole search that found nothing to add to what the user set by hand."""
    rows = tuple(row for row in tuning.levers if row.outcome is not Outcome.KEPT)
    return replace(
        tuning, tuned=None, speedup=None, means_ratio=None, levers=rows, applied=tuning.plan
    )


def test_what_was_applied_alone_is_not_told_as_a_search_without_an_end(applied, plan_path):
    assert text.headline(applied) == (
        "Nothing beyond what you set (gather_batches=True, intra_op_threads=2) "
        "makes this script faster."
    )
    page = " ".join(shown(text.render_tuning(applied, plan_path=plan_path, snippets={})).split())
    assert "confirmed" not in page
    assert "2 skipped, 1 dropped, 1 failed" in page
    assert "Effect: rounding" in page


def test_what_was_applied_alone_is_to_be_run_and_not_to_be_written_by_hand(applied, plan_path):
    snippets = {"intra_op_threads": "torch.set_num_threads(2)"}
    page = " ".join(
        shown(text.render_tuning(applied, plan_path=plan_path, snippets=snippets)).split()
    )
    assert "Run your unedited script with what you set: hasten run" in page
    assert "by hand" not in page


def test_nothing_beside_what_was_applied_is_said_with_what_was_not_tried(applied):
    why = "not tried: its race needs about 9.04 s, and 1.58 s were left of the budget"
    levers = (*applied.levers[:-1], replace(applied.levers[-1], why=why, reason=Reason.UNTRIED))
    said = text.headline(replace(applied, levers=levers))
    assert said.startswith("Nothing beyond what you set (gather_batches=True")
    assert said.endswith("was proved to make this script faster in this time.")


def test_a_plan_that_was_not_confirmed_is_not_told_as_set_by_hand(applied):
    assert "what you set" not in text.headline(replace(applied, applied=Plan()))


def test_a_figure_says_that_it_compares_with_what_was_set_by_hand(tuning, plan_path):
    by_hand = Plan().with_lever("intra_op_threads", 2)
    said = "Compared with the script under what you set by hand: intra_op_threads=2."
    assert said in text.beneath(replace(tuning, applied=by_hand))
    page = shown(render_summary(replace(tuning, applied=by_hand), plan_path=plan_path))
    assert said in " ".join(page.split())
    assert not any("by hand" in line for line in text.beneath(tuning))


def test_levers_that_were_left_out_are_no_levers_that_do_not_help(nothing):
    row = replace(nothing.levers[0], reason=Reason.EXCLUDED)
    said = text.headline(replace(nothing, levers=(row, *nothing.levers[1:])))
    assert said == "Nothing here makes this script faster; some levers were left out."


def test_what_was_applied_and_fails_its_gates_is_not_to_be_used(applied):
    gates = (Gate(name="maths", passed=False, message="Off."),)
    failed = Proof(effect=Effect.ROUNDING, gates=gates)
    assert "do not use" in text.headline(replace(applied, proof=failed))


def test_an_interrupted_search_says_so(tuning, plan_path):
    page = shown(
        text.render_tuning(replace(tuning, interrupted=True), plan_path=plan_path, snippets={})
    )
    assert "You interrupted the search" in page


@pytest.mark.parametrize(
    ("share", "others", "told"),
    [
        (0.03, 0.1, False),  # a quiet machine: something is always awake
        (0.03, None, False),
        (0.03, 0.25, True),
        (0.1, 0.1, True),
        (0.1, None, True),
    ],
)
def test_a_plan_that_was_found_beside_others_says_so(tuning, diagnosis, share, others, told):
    waits = Interval(low_ratio=share, mid_ratio=share, high_ratio=share)
    busy = Finding(name="contended-machine", message="Others.", remedy="Stop them.", share=waits)
    seen = replace(diagnosis, findings=(busy,), others_ratio=others)
    assert told == any(
        "Tune again" in line for line in text.beneath(replace(tuning, diagnosis=seen))
    )
    alone = replace(diagnosis, findings=(), others_ratio=others)
    assert not any("Tune again" in s for s in text.beneath(replace(tuning, diagnosis=alone)))


def test_launches_that_differ_are_told(tuning, plan_path):
    bias = replace(tuning.noise.bias, low_ratio=1.01, mid_ratio=1.05, high_ratio=1.1)
    noisy = replace(tuning, noise=replace(tuning.noise, bias=bias))
    page = shown(text.render_tuning(noisy, plan_path=plan_path, snippets={}))
    assert "launches of the same script differed by 1.05x" in " ".join(page.split())


def test_names_are_never_taken_for_markup(tuning, plan_path):
    odd = replace(tuning.workload, argv=("[red]x[/red].py", ":smile:"))
    page = shown(
        text.render_tuning(replace(tuning, workload=odd), plan_path=plan_path, snippets={})
    )
    assert "hasten run '[red]x[/red].py' :smile:" in page


@pytest.mark.parametrize(
    ("entry", "argv", "line"),
    [
        (Entry.SCRIPT, ("train.py", "a b"), "hasten run train.py 'a b'"),
        (Entry.MODULE, ("pkg.mod", "-x"), "hasten run -m pkg.mod -x"),
        (Entry.COMMAND, ("bash", "t.sh"), "hasten run -- bash t.sh"),
        (Entry.NOTEBOOK, ("a.ipynb",), "hasten run a.ipynb"),
    ],
)
def test_the_command_to_run_can_be_typed_again(tmp_path, entry, argv, line):
    workload = Workload(entry=entry, argv=argv, cwd=str(tmp_path), python="python")
    assert command_line("run", workload, plan_path=tmp_path / "hasten.toml") == line


def test_another_plan_is_named_in_the_command(workload):
    line = command_line("run", workload, plan_path=Path("/elsewhere/p.toml"))
    assert line.startswith("hasten run --plan /elsewhere/p.toml train.py")


def test_a_long_command_can_be_copied(tuning, plan_path):
    argv = ("train.py", *(f"--option-{i}=some value" for i in range(20)))
    long = replace(tuning, workload=replace(tuning.workload, argv=argv))
    page = shown(text.render_tuning(long, plan_path=plan_path, snippets={}))
    command = page[page.index("hasten run") :].strip()
    assert shlex.split(re.sub(r" \\ *\n", " ", command)) == ["hasten", "run", *argv]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [3, 10, 24, 80])
def test_a_stack_is_as_long_as_its_step(encoding, width):
    phase_s = {Phase.DATA: 0.5, Phase.FORWARD: 0.3, Phase.LOSS: 1e-6, Phase.EVALUATION: 9.0}
    for full_s, share in ((0.8, 1.0), (1.6, 0.5)):
        stack = Stack(phase_s=phase_s, full_s=full_s)
        bar = shown(stack, encoding=encoding, width=width).rstrip("\n")
        assert abs(len(bar) - 1 - (width - 1) * share) <= 1


def test_a_gauge_never_leaves_its_cell():
    for share in (-1.0, 0.0, 0.5, 0.999, 1.0, 7.0):
        gauge = Gauge(share_ratio=share, width=10)
        assert len(shown(gauge).rstrip("\n")) <= 10
        assert len(shown(gauge, encoding="ascii").rstrip("\n")) <= 10


def test_no_lever_at_all_is_said(nothing, plan_path):
    page = shown(text.render_tuning(replace(nothing, levers=()), plan_path=plan_path, snippets={}))
    assert "There was no lever to try." in page


def ten_passes(*, step_count=0, longer_s=0.0, outside_s=0.0, under=1.0, **gains):
    return Passes(
        step_count=step_count, longer_s=longer_s, outside_s=outside_s,
        outside_under_s=under * outside_s, pass_count=10,
        is_assumed=True, **gains,
    )  # fmt: skip


def test_the_headline_counts_the_evaluation_that_a_plan_leaves_as_it_is(tuning) -> None:
    whole = Interval(low_ratio=1.1, mid_ratio=1.2, high_ratio=1.3)
    passes = ten_passes(outside_s=tuning.baseline.mean_step_s, first_ratio=1.2, whole=whole)
    seen = replace(tuning, passes=passes)
    assert text.headline(seen) == "1.20x faster over the whole training."
    said = " ".join(text.beneath(seen))
    assert "Evaluation and the like take 50% of the time, and are counted unchanged" in said
    assert "1.20x, 95% interval 1.10x to 1.30x in all." in said
    assert "pass" not in said.split("Evaluation")[1]
    slower = ten_passes(
        outside_s=tuning.baseline.mean_step_s, under=1.5, first_ratio=1.2, whole=whole
    )
    said = " ".join(text.beneath(replace(tuning, passes=slower)))
    assert "take 50% of the time, and took 1.50 times as long under the plan" in said


def test_a_gain_of_later_passes_is_not_the_headline(tuning) -> None:
    whole = Interval(low_ratio=1.8, mid_ratio=1.94, high_ratio=2.1)
    passes = ten_passes(step_count=30, longer_s=4.0, first_ratio=0.57, whole=whole)
    seen = replace(tuning, passes=passes)
    assert text.headline(seen) == "1.94x faster in 10 passes over its data."
    said = " ".join(text.beneath(seen))
    assert "That is from the second pass over the data on" in said
    assert "The first pass of 30 steps, in which samples are kept: 0.57x" in said
    assert "All 10 passes: 1.94x, 95% interval 1.80x to 2.10x; --train-time sets" in said
    told = dict(evidence_table(seen))
    assert dict(told["whole"]) == {"low": 1.8, "mid": 1.94, "high": 2.1}
    assert told["speedup"]["mid"] == round(tuning.speedup.mid_ratio, 4)
    assert "whole" not in evidence_table(tuning)


def test_every_form_says_what_was_granted(tuning, profile, machine, profiled, plan_path):
    granted, watched = ("dataset-unchanged",), profiled(profile, machine)
    for given in (granted, ()):
        tuned, seen = replace(tuning, assumed=given), replace(watched, assumed=given)
        pages = [
            html.render_tuning(tuned, plan_path=plan_path, snippets={}),
            html.render_profile(seen),
            shown(text.render_tuning(tuned, plan_path=plan_path, snippets={})),
            shown(text.render_profile(seen)),
        ]
        told = ["not proved (--assume dataset-unchanged)" in " ".join(p.split()) for p in pages]
        assert told == [bool(given)] * 4
