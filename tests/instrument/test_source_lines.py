import sys
import tempfile

import pytest

from hasten.instrument.source_lines import is_own_file


@pytest.fixture
def temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    is_own_file.cache_clear()
    yield tmp_path
    is_own_file.cache_clear()


def test_code_that_a_library_writes_while_the_script_runs_is_not_the_users(
    temporary_folder,
) -> None:
    assert not is_own_file(str(temporary_folder / "made_by_a_library.py"))
    assert is_own_file(str(temporary_folder.parent / "train.py"))


def test_a_script_in_the_folder_for_temporary_files_is_the_users(
    temporary_folder, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(str(temporary_folder / "project"))
    assert is_own_file(str(temporary_folder / "project" / "train.py"))
    assert not is_own_file(str(temporary_folder / "made_by_a_library.py"))
    is_own_file.cache_clear()
    script = str(temporary_folder / "train.py")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", script, raising=False)
    assert is_own_file(str(temporary_folder / "helper.py"))
