"""What the user is told of how trials run here."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hasten.records import Diagnosis, Finding, OptimizerTraits, Phase, Profile, Traits
from hasten.session.observe import idle_note, step_note, storage_note
from hasten.session.watching import notes_of
from hasten.testing import SERVER, fed, sample_profile


@pytest.mark.parametrize(
    ("alone", "others_ratio", "told"),
    [
        (False, None, []),
        (False, 0.1, []),
        (True, None, ["Only one trial at a time can live"]),
        (False, 0.6, ["Other processes hold 60% of the accelerator's memory"]),
    ],
)
def test_room_for_one_and_others_on_the_accelerator_are_told(alone, others_ratio, told) -> None:
    runner = SimpleNamespace(
        children=SimpleNamespace(notes=("as ever",)), pace=SimpleNamespace(single_process=alone)
    )
    seen = Profile(
        step_s=1.0, step_low_s=1.0, step_high_s=1.0, sample_unit="samples", sample_count=1.0,
        phase_s={Phase.FORWARD: 1.0}, step_count=9, others_device_ratio=others_ratio,
    )  # fmt: skip
    first, *rest = notes_of(runner, seen)
    assert first == "as ever"
    assert [words in note for words, note in zip(told, rest, strict=True)] == [True] * len(told)


@pytest.mark.parametrize(
    ("used_count", "rank_count", "is_told"),
    [(1, 1, True), (2, 1, False), (0, 1, False), (None, 1, False), (1, 2, False)],
)
def test_accelerators_that_a_script_in_one_process_leaves_idle_are_told(
    used_count, rank_count, is_told
) -> None:
    seen = replace(sample_profile({Phase.FORWARD: 1.0}), device_count=used_count)
    torch = replace(SERVER.torch, accelerators=("Accelerator 80 GB",) * 2)
    notes = idle_note(seen, torch, Traits(local_rank_count=rank_count))
    assert [note.startswith("The script trains on 1 of the 2 accelerators") for note in notes] == (
        [True] * is_told
    )


@pytest.mark.parametrize(
    ("name", "later_s", "is_told"),
    [("slow-storage", 0.02, True), ("slow-storage", 0.3, False), ("slow-decode", 0.02, False)],
)
def test_data_that_was_in_memory_when_the_gain_was_measured_is_told(name, later_s, is_told) -> None:
    first, later = (
        Profile(
            step_s=1.0, step_low_s=1.0, step_high_s=1.0, sample_unit="samples", sample_count=1.0,
            phase_s={Phase.DATA: data_s, Phase.FORWARD: 0.5}, step_count=9,
        )
        for data_s in (0.4, later_s)
    )  # fmt: skip
    found = Diagnosis(findings=(Finding(name=name, message="", remedy="", share=None),))
    notes = storage_note(found, first, later)
    assert bool(notes) is is_told
    assert not is_told or "waited 400 ms for its data, a later one 20 ms" in notes[0]


def test_a_step_that_is_more_than_one_batch_is_told() -> None:
    assert step_note(Traits()) == step_note(fed()) == ()
    critic = replace(fed(step_batch_count=5), optimizer=OptimizerTraits(step_count=6))
    assert step_note(critic)[0].startswith("A step here is 5 batches and 6 optimizer steps")
    assert "is 2 optimizer steps" in step_note(Traits(optimizer=OptimizerTraits(step_count=2)))[0]
