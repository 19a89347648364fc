"""What is printed may be lost; what was found is not."""

import io
import json
import os
import pty
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import hasten
from hasten.cli import streams

ENV = {**os.environ, "PYTHONPATH": str(Path(hasten.__file__).parents[1])}
# The program itself, with the session of test_cli, which measures nothing.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_cli, hasten
session = test_cli.Session()
session.interrupted = "--interrupted" in sys.argv
sys.modules["hasten.session"] = hasten.session = session
from hasten.cli import main
main()
"""


@contextmanager
def unread():
    """Yield a pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@contextmanager
def hung_up():
    """Yield a terminal that is gone."""
    user, terminal = pty.openpty()
    os.close(user)
    try:
        yield terminal
    finally:
        os.close(terminal)


@contextmanager
def full():
    """Yield a file on a full disk."""
    with open("/dev/full", "wb") as file:
        yield file.fileno()


@pytest.fixture
def ended(tmp_path):
    """Run a program in a user's folder to its end."""
    (tmp_path / "train.py").write_text("print('training')\n")

    def end(program, *words, **options):
        home = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **options.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-c", program, *words], cwd=tmp_path, env=ENV | home, timeout=120,
            check=False, stdin=subprocess.DEVNULL, **{"stderr": subprocess.PIPE, **options},
        )  # fmt: skip

    return end


def nothing_is_lost(folder):
    assert "intra_op_threads = 2" in (folder / "hasten.toml").read_text()
    assert "1.20x faster" in (folder / "hasten-report.txt").read_text()
    assert json.loads((folder / "r.json").read_text())["plan"] == {"intra_op_threads": 2}
    assert len(list((folder / "cache" / "hasten" / "tunings").iterdir())) == 1
    return True


TUNE = ("tune", "--json", "r.json", "train.py")


def test_a_reader_that_leaves_early_costs_no_plan(ended, tmp_path):
    with unread() as pipe:
        done = ended(PROGRAM, *TUNE, stdout=pipe)
    assert done.returncode == 0
    assert nothing_is_lost(tmp_path)
    assert done.stderr.endswith(b"Wrote hasten.toml, hasten-report.txt, r.json.\n")


@pytest.mark.parametrize("place", [unread, hung_up])
def test_an_interruption_that_ends_the_reader_of_both_streams_costs_no_plan(ended, tmp_path, place):
    with place() as gone:
        done = ended(PROGRAM, *TUNE, "--interrupted", stdout=gone, stderr=gone)
    assert done.returncode == 130
    assert nothing_is_lost(tmp_path)


def test_a_full_disk_under_stdout_costs_no_plan_and_is_told(ended, tmp_path):
    with full() as disk:
        done = ended(PROGRAM, *TUNE, stdout=disk)
    assert done.returncode == 2
    assert nothing_is_lost(tmp_path)
    assert b"hasten: Cannot print it all: no space left on device.\n" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_profile_is_written_where_nobody_reads_it(ended, tmp_path):
    with unread() as pipe:
        done = ended(PROGRAM, "profile", "--json", "p.json", "train.py", stdout=pipe)
    assert done.returncode == 0
    assert json.loads((tmp_path / "p.json").read_text())["baseline"]["step_s"] == 0.01


def test_events_for_a_stdout_that_is_closed_are_refused_in_a_sentence(ended):
    closed = f"import os, sys\nsys.stdout = None\nos.close(1)\n{PROGRAM}"
    done = ended(closed, "profile", "--log-jsonl", "-", "train.py")
    assert done.returncode == 2
    assert b"hasten: Cannot write -: bad file descriptor.\n" in done.stderr


ECHO = """
import typer
from hasten.cli import streams
streams.keep("stdout")
typer.echo(b"bytes, as those of a diff")
typer.echo("a word: \\u2603")
"""


def test_bytes_and_words_are_lost_in_silence(ended):
    with unread() as pipe:
        done = ended(ECHO, stdout=pipe)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_an_encoding_cannot_show_is_spelt_out(ended):
    done = ended(ECHO, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "latin-1"})
    assert done.stdout == b"bytes, as those of a diff\na word: \\u2603\n"


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_a_stream_that_is_no_file_stays_as_it_is(monkeypatch, stream):
    monkeypatch.setattr(sys, "stdout", stream)
    assert streams.keep("stdout") is None
    assert sys.stdout is stream


def test_a_shell_under_run_has_the_signals_that_it_has_by_itself(tmp_path):
    (tmp_path / "hasten.toml").write_text("schema = 1\n[plan]\n")
    lines = 'yes | head -1\necho "${PIPESTATUS[0]}"\ngrep SigIgn /proc/$$/status\n'
    (tmp_path / "train.sh").write_text(lines)
    plain, run = (
        subprocess.run(
            [*lead, "bash", "train.sh"], cwd=tmp_path, env=ENV, capture_output=True, check=False
        )
        for lead in ((), (sys.executable, "-m", "hasten", "run", "--"))
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, plain.stdout, b"")
