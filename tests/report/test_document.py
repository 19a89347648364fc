import json
import os
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from hasten.errors import UsageError
from hasten.report import document, files

TOP = {
    "schema", "machine", "workload", "baseline", "findings", "plan", "speedup", "levers", "assumed",
    "maths", "cost", "passes", "state", "applied", "notes",
}  # fmt: skip


def test_the_schema_is_frozen(tuning, profile, machine, workload, profiled):
    documents = (
        document.tuning_document(tuning),
        document.profile_document(profiled(profile, machine)),
        document.machine_document(machine),
    )
    for doc in documents:
        assert doc["schema"] == 1
        assert set(doc) == TOP, "a key that is renamed or removed needs a new schema number"


def test_the_parts_are_frozen(tuning):
    doc = document.tuning_document(tuning)
    assert set(doc["baseline"]) == {"step_s", "samples_per_s", "phases"}
    assert set(doc["workload"]) == {"entry", "argv", "cwd", "python"}
    assert set(doc["speedup"]) == {"low", "mid", "high"}
    assert set(doc["maths"]) == {"effect", "gates"}
    assert set(doc["maths"]["gates"][0]) == {"name", "passed", "message", "distance_ratio"}
    assert set(doc["cost"]) == {"wall_s", "launches"}
    for row in doc["levers"]:
        assert set(row) == {"lever", "setting", "verdict", "speedup", "effect", "why"}


def test_unknown_is_null(profile, machine, workload, nothing, profiled):
    doc = document.profile_document(profiled(profile, machine))
    assert [one["share"] is None for one in doc["findings"]] == [False, True]
    assert [doc[key] for key in ("plan", "speedup", "levers", "maths", "cost")] == [None] * 5
    assert document.tuning_document(nothing)["speedup"] is None
    assert document.tuning_document(nothing)["plan"] == {}
    assert document.tuning_document(nothing)["levers"][-1]["setting"] is None


def test_a_document_survives_json(tmp_path, tuning):
    doc = document.tuning_document(tuning)
    path = tmp_path / "new" / "out.json"
    document.write_document(path, doc)
    read = json.loads(path.read_text())
    assert read["plan"] == {"gather_batches": True, "intra_op_threads": 2}
    assert read["baseline"]["phases"]["data"] == 0.0148
    assert read == json.loads(json.dumps(doc))


def test_infinities_become_null(tmp_path, tuning):
    path = tmp_path / "out.json"
    endless = replace(tuning, cost=replace(tuning.cost, wall_s=float("inf")))
    document.write_document(path, document.tuning_document(endless))
    assert json.loads(path.read_text())["cost"]["wall_s"] is None


def test_nothing_but_the_file_is_left(tmp_path):
    (tmp_path / "out.json").write_text("old")
    files.write_atomically(tmp_path / "out.json", "new")
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]
    assert (tmp_path / "out.json").read_text() == "new"


def test_a_file_has_the_rights_that_the_umask_gives(tmp_path):
    files.write_atomically(tmp_path / "a", "x")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~mask


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    files.write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_what_is_no_plain_file_is_written_in_place():
    files.write_atomically(files.Path("/dev/null"), "x")
    assert files.Path("/dev/null").is_char_device()


def test_stdout_that_goes_to_a_file_is_written_where_it_stands(tmp_path):
    code = (
        "from hasten.report import files\n"
        "print('before', flush=True)\n"
        "files.write_atomically(files.Path('/dev/stdout'), 'result\\n')\n"
        "print('after')\n"
    )
    log = tmp_path / "ci.log"
    log.write_text("earlier\n")
    for mode, first in (("a", "earlier\n"), ("w", "")):
        with log.open(mode) as out:
            subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
        assert log.read_text() == f"{first}before\nresult\nafter\n"


def test_a_link_is_checked_where_it_leads(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "plain" / "out.json")
    (tmp_path / "plain").write_text("a file")
    with pytest.raises(UsageError, match="is not a folder"):
        files.check_writable(tmp_path / "link")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="it is a folder"):
        files.write_atomically(tmp_path, "x")


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        files.check_writable(tmp_path / "file" / "out.json")


def test_no_permission_is_one_sentence(tmp_path, monkeypatch):
    # Root may write everywhere, so the kernel's answer is played.
    monkeypatch.setattr(files.os, "access", lambda place, mode: False)
    with pytest.raises(UsageError, match="no permission") as caught:
        files.check_writable(tmp_path / "deep" / "out.json")
    assert caught.value.remedy


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    path.write_text("old")

    def refuse(self, payload):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.Path, "write_bytes", refuse)
    with pytest.raises(UsageError, match="no space left"):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_a_disk_that_takes_no_write_any_more_is_one_sentence(tmp_path, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files.Path, "write_bytes", refuse)
    monkeypatch.setattr(files.Path, "unlink", refuse)
    with pytest.raises(UsageError, match="read-only file system"):
        files.write_atomically(tmp_path / "out.json", "new")


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600"])
def test_a_name_may_be_as_long_as_names_can_be(tmp_path, letter):
    name = letter * (255 // len(os.fsencode(letter)))
    files.write_atomically(tmp_path / name, "new")
    assert os.listdir(tmp_path) == [name]


def test_a_reader_sees_the_old_file_or_the_new_one_and_never_a_half(tmp_path, monkeypatch):
    """Whoever has it open keeps the old one, and a write that breaks off does not touch it."""
    path, long = tmp_path / "out.json", "old " * 1000
    path.write_text(long)
    with path.open() as reader:
        assert reader.read(4) == "old "
        files.write_atomically(path, "new")
        assert reader.read() == long[4:]
    path.write_text(long)
    stock = files.Path.write_bytes

    def breaks_off(self, payload):
        stock(self, payload[: len(payload) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.Path, "write_bytes", breaks_off)
    with pytest.raises(UsageError, match="no space left"):
        files.write_atomically(path, "new " * 1000)
    assert path.read_text() == long
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]
