"""Runs for a proof that do not fit on a device together, played."""

from contextlib import contextmanager
from threading import Barrier
from types import SimpleNamespace

import pytest

from hasten.errors import NoRoom, Unprovable
from hasten.protocol import RecordingSpec
from hasten.records import Plan
from hasten.session import recordings
from hasten.trials.deadline import NEVER
from hasten.trials.process import Isolation

TAKE = RecordingSpec(step_count=1, forced_count=1)
OTHER = Plan().with_lever("malloc_retention", True)


class Played:
    """A device that holds one run; of two at once, the one that `losing` names fails."""

    def __init__(self, losing=None, *, holds_one=True):
        self.losing, self.holds_one, self.both, self.count = losing, holds_one, Barrier(2), 0

    @contextmanager
    def recorded(self, workload, plan, take, **details):
        self.count += 1
        if self.count <= 2:
            self.both.wait(10.0)
            if plan == self.losing:
                raise NoRoom("No memory is left.", remedy="Wait.")
        elif not self.holds_one:
            raise NoRoom("No memory is left.", remedy="Wait.")
        folder = self.folder / str(self.count)
        folder.mkdir()
        (folder / "weights").write_text(str(self.count))
        yield SimpleNamespace(health={"losses": self.count}, steps=1), folder


@pytest.fixture
def opened(tmp_path, monkeypatch):
    def open_with(played):
        played.folder = tmp_path / "runs"
        played.folder.mkdir()
        (tmp_path / "taught").mkdir()
        monkeypatch.setattr(recordings, "recorded", played.recorded)
        monkeypatch.setattr(recordings, "read_evidence", lambda answer, folder: folder.name)
        return recordings.Recordings(
            None, isolation=Isolation.NONE, folder=tmp_path / "taught", patience_s=1.0, code=None,
            at_once_count=2, assumed=frozenset(), deadline=NEVER, reference=Plan(),
        )  # fmt: skip

    return open_with


@pytest.mark.parametrize("losing", [Plan(), OTHER], ids=["script", "plan"])
def test_they_are_made_again_one_by_one_and_only_these_teach(opened, losing) -> None:
    runs = opened(Played(losing))
    assert runs.record([(Plan(), TAKE), (OTHER, TAKE)]) == ["3", "4"]
    assert runs.teaching_run == "3"
    assert [each["losses"] for each in runs.health] == [3]
    assert [path.read_text() for path in runs._folder.iterdir()] == ["3"]
    assert runs.record([(OTHER, TAKE), (OTHER, TAKE)]) == ["5", "6"]
    assert runs.teaching_run == "3"


def test_a_script_that_does_not_fit_alone_cannot_be_proved(opened) -> None:
    runs = opened(Played(Plan(), holds_one=False))
    with pytest.raises(Unprovable, match="No memory is left"):
        runs.record([(Plan(), TAKE), (OTHER, TAKE)])


def test_a_plan_that_does_not_fit_alone_is_to_blame(opened) -> None:
    runs = opened(Played(OTHER, holds_one=False))
    with pytest.raises(NoRoom):
        runs.record([(OTHER, TAKE), (OTHER, TAKE)])
