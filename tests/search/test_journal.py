import os

import pytest

from hasten.records import Comparison, Interval, Pair, Phase, Plan, Verdict
from hasten.search import Journal, SearchStarted

FINGERPRINT = {"script": "abc", "torch": "2.5.0", "cores": 4}


def comparison(lever="a", setting=True):
    return Comparison(
        baseline=Plan(),
        candidate=Plan().with_lever(lever, setting),
        verdict=Verdict.WIN,
        speedup=Interval(low_ratio=1.01, mid_ratio=1.1, high_ratio=1.2),
        means_ratio=1.09,
        pairs=(Pair(baseline_s=1.1, candidate_s=1.0, baseline_first=False),),
        wall_s=3.5,
        phase_s={Phase.DATA: 0.2, Phase.FORWARD: 0.8},
        later_s=1.5,
        first_pass_ratio=0.25,
        baseline_first_pass_ratio=0.125,
        outside_ratio=0.5,
    )


FAILED = Comparison(
    baseline=Plan(), candidate=Plan().with_lever("b", 2), verdict=Verdict.FAIL, failure="It died."
)


@pytest.mark.parametrize("setting", [True, 4, 0.5, "bf16"])
def test_what_is_written_is_read_again(tmp_path, setting) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    journal = Journal.open(path, FINGERPRINT)
    journal.append(comparison(setting=setting))
    journal.append(FAILED)
    journal.close()
    again = Journal.open(path, dict(reversed(FINGERPRINT.items())))
    assert again.history == journal.history == (comparison(setting=setting), FAILED)
    assert again.resumed_count == 2
    assert type(dict(again.history[0].candidate.settings)["a"]) is type(setting)


def test_every_line_is_on_disk_at_once(tmp_path) -> None:
    journal = Journal.open(tmp_path / "journal.jsonl", FINGERPRINT)
    journal.append(FAILED)
    assert journal.path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_dropped(tmp_path, cut) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path, FINGERPRINT)
    for lever in "abc":
        journal.append(comparison(lever))
    journal.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal.open(path, FINGERPRINT)
    assert again.history == (comparison("a"), comparison("b"))
    again.append(comparison("d"))
    again.close()
    assert Journal.open(path, FINGERPRINT).history[-1] == comparison("d")


def test_another_fingerprint_starts_anew_and_keeps_the_old_file(tmp_path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal.open(path, FINGERPRINT).append(comparison())
    fresh = Journal.open(path, {**FINGERPRINT, "cores": 8})
    assert fresh.history == ()
    assert fresh.resumed_count == 0
    assert b'"win"' in (tmp_path / "journal.jsonl.old").read_bytes()


@pytest.mark.parametrize("rubbish", [b"", b"\n", b"\x00\xff{", b'{"schema": 99}\n'])
def test_rubbish_is_not_a_journal(tmp_path, rubbish) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(rubbish)
    Journal.open(path, FINGERPRINT).append(FAILED)
    assert Journal.open(path, FINGERPRINT).history == (FAILED,)


def test_a_search_goes_on_with_the_settings_and_the_shares_that_it_began_with(tmp_path) -> None:
    path = tmp_path / "journal.jsonl"
    settings = {"loader_workers": (12, 0), "sample_cache": ("4GiB",), "channels_last": (True,)}
    journal = Journal.open(path, FINGERPRINT)
    begun = SearchStarted(settings=settings, named={"loader_workers": 0.4})
    journal.settle(begun)
    journal.append(comparison())
    journal.close()
    again = Journal.open(path, FINGERPRINT)
    assert again.begun == begun
    assert again.history == journal.history
    size = path.stat().st_size
    again.settle(begun)
    assert path.stat().st_size == size


def test_a_journal_that_is_closed_writes_no_more(tmp_path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path, FINGERPRINT)
    journal.close()
    journal.append(FAILED)
    journal.close()
    assert Journal.open(path, FINGERPRINT).history == ()


def test_a_disk_that_fills_up_costs_the_file_and_not_the_search(tmp_path, monkeypatch) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path, FINGERPRINT)
    journal.append(comparison("a"))
    synced = os.fsync

    def full(descriptor):
        os.truncate(path, path.stat().st_size - 5)  # what a full disk leaves of a line
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    journal.append(comparison("b"))
    monkeypatch.setattr(os, "fsync", synced)
    journal.append(comparison("c"))
    journal.settle(SearchStarted(settings={"a": (True,)}))
    assert journal.lost == "no space left on device"
    assert len(journal.history) == 3
    journal.close()
    assert Journal.open(path, FINGERPRINT).history == (comparison("a"),)
