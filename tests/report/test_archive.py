import json
from dataclasses import replace
from types import MappingProxyType

import pytest

from hasten.errors import UsageError
from hasten.report import archive
from hasten.testing import fed


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("kind", ["tuning", "nothing", "raced"])
def test_a_tuning_comes_back_as_it_was(request, tmp_path, kind):
    tuning = request.getfixturevalue(kind)
    archive.remember(tuning, tmp_path / "hasten.toml")
    assert archive.recall(tmp_path / "hasten.toml") == (tuning, tmp_path / "hasten.toml")


def test_odd_mappings_and_infinities_come_back(tmp_path, tuning):
    phase_s = MappingProxyType(dict(tuning.baseline.phase_s))
    gates = (replace(tuning.proof.gates[0], distance_ratio=float("inf")),)
    losses = {"baseline_losses": (2.0, 1.0), "candidate_losses": (float("inf"), -float("inf"))}
    odd = replace(
        tuning,
        baseline=replace(tuning.baseline, phase_s=phase_s),
        proof=replace(tuning.proof, gates=gates, **losses),
    )
    archive.remember(odd, tmp_path / "p")
    read, _ = archive.recall(tmp_path / "p")
    assert read.proof == odd.proof
    assert read.baseline.phase_s == dict(phase_s)


def test_the_tuning_of_another_folder_is_not_shown(tmp_path, tuning):
    archive.remember(tuning, tmp_path / "a" / "hasten.toml")
    with pytest.raises(UsageError, match=r"No tuning is kept for .*hasten\.toml") as caught:
        archive.recall(tmp_path / "c" / "hasten.toml")
    assert "name the plan file" in caught.value.remedy


def test_a_tuning_is_found_by_every_path_of_its_plan(tmp_path, monkeypatch, tuning):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    archive.remember(tuning, tmp_path / "link" / "hasten.toml")
    monkeypatch.chdir(tmp_path / "real")
    for path in ("hasten.toml", "../real/hasten.toml", "../link/hasten.toml"):
        assert archive.recall(archive.Path(path))[0] == tuning


def test_a_plan_that_was_moved_or_written_by_hand_has_no_report(tmp_path):
    plan = tmp_path / "hasten.toml"
    plan.write_text("schema = 1\n[plan]\n")
    with pytest.raises(UsageError, match=r"No tuning is kept for .*hasten\.toml") as caught:
        archive.recall(plan)
    assert caught.value.remedy.startswith("`hasten run` applies it")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"schema": 2, "tuning": {"machine": 3}}', '{"schema": 2, "tuning": 1}',
     "[" * 20_000],
    ids=["empty", "list", "nothing", "machine", "number", "deep"],
)  # fmt: skip
def test_a_broken_record_is_a_sentence(tmp_path, tuning, content):
    archive.remember(tuning, tmp_path / "p").write_text(content)
    with pytest.raises(UsageError, match="holds no tuning"):
        archive.recall(tmp_path / "p")


def test_the_traits_of_a_script_come_back(tmp_path, tuning):
    traits = replace(fed(draws=True), torch="2.9.0", openmp_variables=("OMP_PLACES",))
    archive.remember(replace(tuning, traits=traits), tmp_path / "p")
    assert archive.recall(tmp_path / "p")[0].traits == traits


def test_a_tuning_of_a_release_with_other_traits_is_a_sentence(tmp_path, tuning):
    place = archive.remember(tuning, tmp_path / "p")
    content = json.loads(place.read_text())
    content["tuning"]["traits"] = {"threads": 2, "loader.workers": 0}
    place.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="holds no tuning") as caught:
        archive.recall(tmp_path / "p")
    assert caught.value.remedy == "Run `hasten tune` again."


def test_a_tuning_of_a_release_with_another_schema_is_a_sentence(tmp_path, tuning):
    place = archive.remember(tuning, tmp_path / "p")
    place.write_text(json.dumps(json.loads(place.read_text()) | {"schema": archive.SCHEMA + 1}))
    with pytest.raises(UsageError, match="holds no tuning"):
        archive.recall(tmp_path / "p")


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("diagnosis", None),
        ("levers", None),
        ("notes", "one text"),
        ("workload", {"argv": "train.py"}),
    ],
)
def test_a_tuning_of_a_release_with_other_records_is_a_sentence(tmp_path, tuning, field, other):
    place = archive.remember(tuning, tmp_path / "p")
    content = json.loads(place.read_text())
    before = content["tuning"][field]
    content["tuning"][field] = before | other if isinstance(other, dict) else other
    place.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="holds no tuning") as caught:
        archive.recall(tmp_path / "p")
    assert caught.value.remedy == "Run `hasten tune` again."


def test_a_relative_cache_home_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert archive.folder() == tmp_path / ".cache" / "hasten" / "tunings"


def test_without_a_home_it_is_said_where_a_tuning_could_be_kept(monkeypatch, tmp_path, tuning):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(archive.Path, "home", homeless)
    for ask, given in ((archive.remember, (tuning,)), (archive.recall, ())):
        with pytest.raises(UsageError, match="no home folder") as caught:
            ask(*given, tmp_path / "hasten.toml")
        assert "XDG_CACHE_HOME" in caught.value.remedy
