"""The stream of events: what stands in it, and that nothing of it ends a tuning."""

import errno
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.errors import UsageError
from hasten.records import Comparison, Interval, Pair, Plan, Verdict, Workload
from hasten.records.enums import Entry
from hasten.report.combined_watcher import CombinedWatcher
from hasten.report.document import profile_document
from hasten.report.events import ALWAYS, KEYS, SCHEMA, Events, open_stream

PAGE = Path(__file__).parents[2] / "docs" / "events.md"
PAIR = Pair(baseline_s=1.1, candidate_s=1.0, baseline_first=True)
GAIN = Interval(low_ratio=1.01, mid_ratio=1.12, high_ratio=1.24)
THREADS = Plan().with_lever("intra_op_threads", 2)
WON = Comparison(
    baseline=Plan(), candidate=THREADS, verdict=Verdict.WIN, speedup=GAIN, pairs=(PAIR, PAIR),
    wall_s=3.0,
)  # fmt: skip
FAILED = Comparison(baseline=Plan(), candidate=THREADS, verdict=Verdict.FAIL, failure="It crashed.")


class Kept(io.BytesIO):
    """A stream that can be read after it was closed, and counts its flushes."""

    def __init__(self):
        super().__init__()
        self.flushed_count = 0

    def flush(self):
        self.flushed_count += 1

    def close(self):
        self.closed_at = self.tell()

    def lines(self):
        return [json.loads(line) for line in self.getvalue().splitlines()]


class Broken(Kept):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.tried_count = 0

    def write(self, payload):
        self.tried_count += 1
        raise OSError(self.number, "It is over")


def clock():
    return 7.0


def whole_story(events, profiled, profile, machine):
    """Tell every event but an error."""
    found = profiled(profile, machine)
    events.start("tune", found.workload, version="1")
    events.stage("search", "toggle")
    events.profiled(profile)
    events.found(found.diagnosis)
    events.race_begins(Plan(), THREADS)
    events.race_grows([PAIR, PAIR], GAIN)
    events.race_ends(WON)
    events.leads(THREADS)
    events.known("A fact.")
    events.note("A note.")
    events.result(profile_document(found), [Path("hasten.toml")])


def test_every_event_has_its_keys_in_their_order(profiled, profile, machine):
    stream = Kept()
    with Events(stream, clock=clock) as events:
        whole_story(events, profiled, profile, machine)
        events.__exit__(UsageError, UsageError("No.", remedy="Yes."), None)
    lines = stream.lines()
    assert {line["event"] for line in lines} == set(KEYS)
    for line in lines:
        assert tuple(line) == (*ALWAYS, *KEYS[line["event"]])
    assert stream.flushed_count == len(lines)


def test_the_keys_of_schema_1_are_frozen():
    assert SCHEMA == 1
    assert ALWAYS == ("event", "elapsed_s")
    assert KEYS == {
        "start": ("schema", "version", "command", "workload"),
        "stage": ("name", "detail"),
        "profile": ("step_s", "samples_per_s", "phases"),
        "finding": ("id", "share", "where", "why", "remedy", "lever"),
        "race_begins": ("race", "stage", "baseline", "candidate"),
        "pair": ("race", "pair", "baseline_s", "candidate_s", "baseline_first", "pressure"),
        "evidence": ("race", "pairs", "speedup"),
        "race_ends": ("race", "verdict", "pairs", "speedup", "wall_s", "failure"),
        "incumbent": ("plan",),
        "note": ("text",),
        "result": ("document", "files"),
        "error": ("problem", "remedy", "exit_code"),
    }


def test_the_page_tells_every_event_and_key():
    told = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE))
    assert {name: tuple(re.findall(r"`(\w+)`", keys)) for name, keys in told.items()} == KEYS


def test_races_and_pairs_are_counted(profiled, profile, machine):
    stream = Kept()
    events = Events(stream, clock=clock)
    for seen in (WON, FAILED):
        events.race_begins(Plan(), THREADS)
        events.race_grows(seen.pairs, GAIN)
        events.race_ends(seen)
    lines = stream.lines()
    assert [line["pair"] for line in lines if line["event"] == "pair"] == [1, 2]
    assert [line["pairs"] for line in lines if line["event"] == "evidence"] == [2, 0]
    ends = [line for line in lines if line["event"] == "race_ends"]
    assert [(line["race"], line["verdict"], line["failure"]) for line in ends] == [
        (1, "win", ""), (2, "fail", "It crashed."),
    ]  # fmt: skip
    assert ends[0]["speedup"] == {"low": 1.01, "mid": 1.12, "high": 1.24}
    assert ends[1]["speedup"] is None
    assert lines[0] | {"elapsed_s": 0} == {
        "event": "race_begins", "elapsed_s": 0, "race": 1, "stage": "", "baseline": {},
        "candidate": {"intra_op_threads": 2},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "problem", "code"),
    [
        (UsageError("No.", remedy="Yes."), "No.", 2),
        (KeyboardInterrupt(), "Interrupted.", 130),
        (ValueError("odd"), "ValueError: odd", 1),
    ],
)
def test_what_ends_a_tuning_is_the_last_event_and_passes_on(error, problem, code):
    stream = Kept()

    def work():
        with Events(stream, clock=clock):
            raise error

    with pytest.raises(type(error)):
        work()
    assert stream.lines()[-1]["problem"] == problem
    assert stream.lines()[-1]["exit_code"] == code


@pytest.mark.parametrize(
    ("number", "lost"), [(errno.EPIPE, ""), (errno.ENOSPC, "it is over"), (errno.EIO, "it is over")]
)
def test_a_stream_that_breaks_ends_nothing_but_itself(profiled, profile, machine, number, lost):
    stream = Broken(number)
    with Events(stream) as events:
        whole_story(events, profiled, profile, machine)
    assert stream.tried_count == 1
    assert events.lost == lost


def test_without_a_stream_nobody_is_told(profiled, profile, machine):
    with Events(None) as events:
        whole_story(events, profiled, profile, machine)
    assert not events.lost


def test_a_place_that_cannot_be_written_is_told_before_the_work(tmp_path):
    with pytest.raises(UsageError, match="is a directory"):
        open_stream(tmp_path)
    assert open_stream(None) is None


def test_events_to_stdout_by_its_name_stand_where_it_stands(tmp_path):
    code = (
        "from pathlib import Path\n"
        "from hasten.report.events import open_stream\n"
        "print('before', flush=True)\n"
        "with open_stream(Path('/dev/stdout')) as stream:\n"
        "    stream.write(b'event\\n')\n"
        "print('after')\n"
    )
    with (tmp_path / "log").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "log").read_text() == "before\nevent\nafter\n"


def test_an_audience_passes_all_on(profiled, profile, machine):
    class Noted:
        def __init__(self):
            self.calls = []

        def __getattr__(self, name):
            return lambda *args: self.calls.append((name, args))

    one, other = Noted(), Noted()
    audience = CombinedWatcher(one, other)
    audience.start = audience.result = lambda *args, **kwargs: None
    whole_story(audience, profiled, profile, machine)
    assert [name for name, _ in one.calls] == [
        "stage", "profiled", "found", "race_begins", "race_grows", "race_ends", "leads", "known",
        "note",
    ]  # fmt: skip
    assert one.calls == other.calls


def test_a_workload_is_told_without_the_interpreter():
    stream = Kept()
    work = Workload(entry=Entry.SCRIPT, argv=("train.py", "-x"), cwd="/data", python="/bin/python3")
    Events(stream, clock=clock).start("profile", work, version="9")
    assert stream.lines()[0]["workload"] == {
        "entry": "script", "argv": ["train.py", "-x"], "cwd": "/data",
    }  # fmt: skip
