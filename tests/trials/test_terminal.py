"""What a script that needs a terminal finds in a trial: one of the user's size, or none."""

import os
import pty
import termios
from pathlib import Path

import pytest

from hasten.trials import keeper
from hasten.trials.process import Exit

SIZE = (17, 123)
ASKS = """
import os, sys
_, width = os.popen('stty size', 'r').read().split()
terminals = [number for number in os.listdir('/proc/self/fd') if os.isatty(int(number))]
print(width, os.get_terminal_size(0).lines, sys.stdin.isatty(), terminals)
"""
READS = """
import os, select, sys, termios
assert not select.select([0], [], [], 0)[0]  # nobody has typed anything
assert [os.read(0, 100) for _ in range(5000)] == [b""] * 5000
mode = termios.tcgetattr(0)
mode[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSAFLUSH, mode)  # as getpass does
assert sys.stdin.readline() == sys.stdin.read() == ""
try:
    os.write(0, b"x")
except OSError as error:
    print(error.strerror)
"""
STAYS = "import os, time; print(os.ttyname(0), flush=True); time.sleep(60)"


@pytest.fixture
def at_a_terminal():
    """Put a terminal of an odd size in the place of our standard input."""
    before = os.dup(0)
    ours, end = pty.openpty()
    termios.tcsetwinsize(end, SIZE)
    os.dup2(end, 0)
    os.close(end)
    yield
    os.dup2(before, 0)
    os.close(before)
    os.close(ours)


@pytest.mark.child
@pytest.mark.usefixtures("at_a_terminal")
def test_where_the_user_has_a_terminal_a_script_can_ask_for_its_size(begin, isolation) -> None:
    process = begin(ASKS, isolation)
    assert process.wait(30) == Exit(0, None), process.errors()
    assert process.output() == "123 17 True ['0']\n"


@pytest.mark.child
@pytest.mark.usefixtures("at_a_terminal")
def test_nobody_types_there_and_no_reader_waits_or_is_stopped(begin, isolation) -> None:
    process = begin(READS, isolation)
    assert process.wait(30) == Exit(0, None), process.errors()
    assert process.output() == "Bad file descriptor\n"


@pytest.mark.child
@pytest.mark.usefixtures("at_a_terminal")
def test_it_ends_with_the_trial(begin, trials, isolation) -> None:
    process = begin(STAYS, isolation)
    assert trials.eventually(process.output), process.errors()
    terminal = Path(process.output().strip())
    assert terminal.is_char_device()
    process.kill()
    assert trials.eventually(lambda: not terminal.exists())


@pytest.mark.child
def test_where_the_user_has_none_there_is_none(begin, isolation) -> None:
    process = begin("import sys; print(sys.stdin.isatty(), repr(sys.stdin.read()))", isolation)
    process.wait(30)
    assert process.output() == "False ''\n"


def test_where_no_more_can_be_opened_standard_input_is_empty(monkeypatch) -> None:
    def none_left():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "openpty", none_left)
    stdin = keeper._open_input(list(SIZE))
    try:
        assert (os.read(stdin, 1), os.isatty(stdin)) == (b"", False)
    finally:
        os.close(stdin)
