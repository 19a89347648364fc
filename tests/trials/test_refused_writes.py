"""Whose fault a missing permission is: the trial's, or the script's own."""

import os

import pytest

from hasten.trials.isolation.refused_writes import guessed

HDF5 = (
    "PermissionError: [Errno 13] Unable to synchronously create file (unable to open file: "
    "name = 'new/x.h5', errno = 13, error message = 'Permission denied', flags = 13)"
)
TRACEBACK = "Traceback (most recent call last):\nTypeError: no such thing\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the user's folder; in `theirs` lies what not even root may write."""
    (tmp_path / "theirs").mkdir()
    for name in ("theirs/data.csv", "tool", "log.csv"):
        (tmp_path / name).touch()
    stock, theirs = os.access, str(tmp_path / "theirs")
    monkeypatch.setattr(os, "access", lambda p, mode: not p.startswith(theirs) and stock(p, mode))
    return tmp_path


@pytest.mark.parametrize(
    ("errors", "name"),
    [
        ("sh: 1: cannot create log: Permission denied\n", "log"),
        ("bash: line 1: log.csv: Permission denied", "log.csv"),
        ("epoch 1\ntee: runs/log: Permission denied\n\n", "runs/log"),
        ("mkdir: cannot create directory \u2018runs\u2019: Permission denied", "runs"),
        ("can't open 'a b': Permission denied", "a b"),
        (HDF5, "new/x.h5"),
        ("PermissionError: [Errno 13] Permission denied: 'new.txt'", "new.txt"),
    ],
)
def test_the_last_words_about_what_the_user_may_write_are_a_refusal(folder, errors, name) -> None:
    assert guessed(errors, cwd=str(folder), code=1) == (str(folder / name),)


@pytest.mark.parametrize(
    "errors",
    [
        "",
        f"sh: 1: cannot create log.csv: Permission denied\n{TRACEBACK}",
        f"mkdir -p failed for path .config: [Errno 13] Permission denied\n{TRACEBACK}",
        "PermissionError: [Errno 13] Permission denied: 'theirs/data.csv'",
        "cat: theirs/data.csv: Permission denied",
        "tee: theirs/new.csv: Permission denied",
        "PermissionError: [Errno 13] Permission denied: './tool'",
        "git@github.com: Permission denied (publickey).",
        'ERROR: permission denied for relation "users"',
        'Get "http://%2Fvar%2Frun%2Fdocker.sock/v1": dial unix: connect: permission denied',
        "open: Permission denied",
    ],
)
def test_all_else_is_the_script_s_own_failure(folder, errors) -> None:
    assert guessed(errors, cwd=str(folder), code=1) == ()


@pytest.mark.parametrize(("code", "refused"), [(1, True), (None, True), (0, False), (126, False)])
def test_a_script_that_ended_well_or_a_program_that_cannot_be_started_was_not_refused(
    folder, code, refused
) -> None:
    errors = "bash: line 1: ./log.csv: Permission denied"
    assert bool(guessed(errors, cwd=str(folder), code=code)) is refused
