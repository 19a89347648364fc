from dataclasses import replace

import pytest
from rich.console import Console

from hasten.records import Diagnosis, Finding, HotLine, Place
from hasten.report import findings


def shown(diagnosis, workload):
    console = Console(width=80)
    with console.capture() as capture:
        for part in findings.lines(diagnosis, workload):
            console.print(part)
    return capture.get()


def test_a_hot_line_shows_its_place_phase_call_and_source(diagnosis, workload) -> None:
    text = shown(diagnosis, workload)
    assert "12%  train.py:7  data  in PIL.Image.resize" in text
    assert "images = slow(images)" in text


def test_the_eight_costliest_lines_are_shown_and_the_rest_is_counted(diagnosis, workload) -> None:
    place = diagnosis.hot_lines[0].place
    many = tuple(
        HotLine(place=replace(place, line=at), share_ratio=at / 100) for at in range(3, 14)
    )
    text = shown(Diagnosis(hot_lines=many), workload)
    assert text.index("train.py:13") < text.index("train.py:12")
    assert "train.py:6\n" in text
    assert "train.py:5" not in text
    assert "and 3 more" in text


def test_a_line_without_source_stands_alone(workload) -> None:
    bare = HotLine(place=Place(path=f"{workload.cwd}/a.py", line=3), share_ratio=0.5)
    assert shown(Diagnosis(hot_lines=(bare,)), workload).split() == ["50%", "a.py:3"]


@pytest.mark.parametrize(
    ("lever", "said"),
    [
        ("intra_op_threads", "The plan has intra_op_threads=2."),
        ("channels_last", "The lever channels_last was tried and dropped: 0.99x (0.97x to 1.01x)."),
        ("compile", "The lever compile was tried and failed: No C compiler is installed."),
        (
            "autocast",
            "The lever autocast would do it without an edit (It needs --numerics precision).",
        ),
        ("unheard_of", "The lever unheard_of does it without an edit."),
    ],
)
def test_a_finding_says_what_became_of_its_lever(tuning, diagnosis, lever, said) -> None:
    found = replace(diagnosis.findings[0], lever=lever)
    assert findings.remedy(found, tuning) == f"Give the loader two workers. {said}"


def test_what_no_lever_does_may_concern_the_machine_and_not_the_code() -> None:
    found = Finding(name="shm-too-small", message="64.0 MiB are left.", remedy="Pass --shm-size.")
    assert findings.remedy(found) == "By hand: Pass --shm-size."
