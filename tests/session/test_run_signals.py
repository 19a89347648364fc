"""`hasten run` becomes the script with the signals that a shell would have given it."""

import os
import signal
import sys

import pytest

from hasten import session
from hasten.records import Entry, Plan, Workload

WORKLOAD = Workload(entry=Entry.COMMAND, argv=("true",), cwd="/", python=sys.executable)


class Became(Exception):
    """Stands for the script that a process becomes."""


@pytest.mark.parametrize("plan", [Plan(), Plan().with_lever("malloc_retention", True)])
def test_the_script_ignores_no_signal_that_only_python_ignores(monkeypatch, plan) -> None:
    seen = {}

    def become(*args):
        seen.update({number: signal.getsignal(number) for number in numbers})
        raise Became

    numbers = (signal.SIGPIPE, signal.SIGXFSZ)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    monkeypatch.setattr(os, "execvpe", become)
    try:
        with pytest.raises(Became):
            session.run(WORKLOAD, plan)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert seen == dict.fromkeys(numbers, signal.SIG_DFL)
