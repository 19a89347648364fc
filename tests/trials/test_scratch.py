"""Where trials lie: full disks are passed over, and nothing is left behind."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hasten.errors import IsolationFailed, UsageError
from hasten.protocol import RecordingSpec
from hasten.records import Entry, Plan, Workload
from hasten.trials import recording, trial_process
from hasten.trials.isolation import scratch
from hasten.trials.isolation.scratch import make_folder, make_layers, make_scratch, sweep
from hasten.trials.process import Isolation, best_isolation
from hasten.trials.recording import recorded
from hasten.trials.trial_process import TrialProcess

FULL = OSError(28, "No space left on device")


@pytest.fixture
def full(monkeypatch):
    """Let folders have no room."""

    def fill(*places: str) -> None:
        stock = tempfile.mkdtemp

        def mkdtemp(*args, **kwargs):
            if kwargs.get("dir") in places:
                raise FULL
            return stock(*args, **kwargs)

        monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)

    return fill


def test_a_full_temporary_folder_is_passed_over(full, monkeypatch) -> None:
    full("/var/tmp")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/var/tmp")
    scratch = make_scratch()
    assert scratch.parent == Path("/tmp")
    scratch.rmdir()


def test_a_folder_that_takes_no_file_is_passed_over_and_not_left(tmp_path, monkeypatch) -> None:
    place = tempfile.mkdtemp(prefix="ut-")
    stock = Path.write_bytes

    def write_bytes(self, data):
        if str(self).startswith(place):
            raise FULL
        return stock(self, data)

    monkeypatch.setattr(tempfile, "gettempdir", lambda: place)
    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    scratch = make_scratch()
    assert str(scratch.parent) != place
    scratch.rmdir()
    os.rmdir(place)  # it is empty


def test_without_any_room_one_sentence_names_the_variable(full, monkeypatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    full("/tmp", "/var/tmp")
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.delenv("TMPDIR", raising=False)
    for act in (make_scratch, best_isolation.__wrapped__):
        with pytest.raises(UsageError, match="TMPDIR") as told:
            act()
        assert "/tmp, /var/tmp" in told.value.problem


def test_a_second_tree_for_layers_may_be_missing(full, tmp_path, monkeypatch) -> None:
    full("/var/tmp", "/tmp")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert make_layers(tmp_path) == [tmp_path / ".layers"]


def test_the_last_resort_of_tempfile_is_no_place_for_trials(full, tmp_path, monkeypatch) -> None:
    full("/tmp", "/var/tmp")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "gettempdir", os.getcwd)
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    for act in (make_scratch, make_folder):
        with pytest.raises(UsageError, match="none of /tmp, /var/tmp can be written"):
            act()
    monkeypatch.setenv("TMPDIR", ".")
    assert make_folder().parent == tmp_path  # who asks for it gets it


@pytest.mark.child
def test_what_a_killed_session_left_is_swept_and_nothing_else(monkeypatch) -> None:
    code = (
        "import os, signal; from hasten.trials.isolation.scratch import make_folder, make_scratch\n"
        "for folder in (make_folder(), make_scratch()):\n"
        "    (folder / 'inside').mkdir(); (folder / 'inside' / 'file').touch()\n"
        "    print(folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ut-") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        monkeypatch.setenv("TMPDIR", place)
        users = [Path(place, name) for name in ("hasten-projects", "hasten-x")]
        for folder in users:
            folder.mkdir(mode=0o700)
        used = make_scratch()
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(scratch.__file__).parents[2])},
        )  # fmt: skip
        left = [Path(line) for line in done.stdout.split()]
        assert [folder.parent for folder in left] == [Path(place)] * 2, done.stderr
        sweep()
        assert sorted(Path(place).iterdir()) == sorted([used, *users])


class Full:
    """Compiled code that finds no room, or is interrupted, when it is to be lent."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def lend(self, *_):
        raise self.error


def _trial(workload, code):
    TrialProcess(workload, Plan(), isolation=Isolation.NONE, patience_s=1.0, code=code)


def _recording(workload, code):
    take = RecordingSpec(step_count=1, forced_count=0)
    with recorded(workload, Plan(), take, isolation=Isolation.NONE, patience_s=1.0, code=code):
        pass


@pytest.mark.parametrize("begin", [_trial, _recording])
@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["full", "interrupted"])
def test_what_goes_wrong_before_a_trial_begins_leaves_no_folder(
    begin, error, tmp_path, monkeypatch
) -> None:
    made = []

    def noted() -> Path:
        made.append(make_scratch())
        return made[-1]

    for module in (trial_process, recording):
        monkeypatch.setattr(module, "make_scratch", noted)
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path), python=sys.executable
    )
    with pytest.raises(type(error)):
        begin(workload, Full(error))
    assert len(made) == 1
    assert not made[0].exists()


@pytest.mark.parametrize(
    ("works", "chosen"),
    [(True, Isolation.OVERLAY), (False, Isolation.REDIRECT), (None, Isolation.REDIRECT)],
)
def test_the_overlay_is_chosen_where_it_works(monkeypatch, tmp_path, works, chosen) -> None:
    tried = []

    def tries(isolation, folder, cwd):
        if isolation is Isolation.REDIRECT:
            return "refused\n" * 2
        tried.append((folder, cwd))
        if works is None:
            raise IsolationFailed("It does not.", remedy="Go elsewhere.")
        return "x\n" if works else ""

    monkeypatch.setattr("hasten.trials.process._try", tries)
    assert best_isolation.__wrapped__(str(tmp_path)) is chosen
    ((folder, cwd),) = tried
    assert cwd == str(tmp_path)
    assert not folder.exists()
