"""flush_denormals: in every thread that computes, from the begin of training until undone."""

import platform

import pytest

from hasten.lever import ScriptContext
from hasten.levers.flush_denormals import LEVER
from hasten.records import Effect, Traits
from hasten.testing import LAPTOP


def context(ratio):
    return ScriptContext(machine=LAPTOP, traits=Traits(denormal_ratio=ratio))


def test_is_tried_where_denormal_numbers_were_seen() -> None:
    assert LEVER.settings(context(0.01)) == (True,)
    assert LEVER.effect is Effect.PRECISION


def test_is_skipped_with_the_figure_where_they_are_too_few() -> None:
    assert LEVER.settings(context(0.00002)) == ()
    why = LEVER.why_not(context(0.00002))
    assert why == "0.002% of weights, gradients and optimizer state are denormal numbers"
    assert LEVER.settings(ScriptContext(machine=LAPTOP)) == ()
    assert "no torch optimizer was seen" in LEVER.why_not(ScriptContext(machine=LAPTOP))


PROGRAM = r"""
import sys

tiny = torch.full((1 << 20,), 1e-40)
bits = tiny.view(torch.int32)
small = torch.tensor(1e-30)


def kept():
    # Large enough for every thread; integers tell what floats that are flushed cannot.
    return int((tiny * 1.0).view(torch.int32).count_nonzero())


run = Run(measuring=False)
torch.set_num_threads(3)
facts["stock"] = kept() == len(tiny)  # the threads of OpenMP are there now
run.applied.switch({"flush_denormals": True})
facts["before training"] = kept() == len(tiny)
run.train(count=1)
facts["flushed"] = kept() == 0
facts["others keep their bits"] = float(small * 1.0) == float(small)
facts["python, too"] = sys.float_info.min * 0.5 == 0.0
torch.set_num_threads(5)
facts["in threads that come later"] = kept() == 0
run.applied.switch({})
facts["back"] = kept() == len(tiny)

torch.set_flush_denormal(True)  # the script's own wish, for the thread that asks
run.applied.switch({"flush_denormals": True})
run.applied.switch({})
facts["wish kept"] = sys.float_info.min * 0.5 == 0.0
run.close()
"""


@pytest.mark.child
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the mode differs between processors")
def test_flushes_in_the_threads_that_are_there_and_in_those_that_come(training) -> None:
    facts = training(PROGRAM)
    assert facts == dict.fromkeys(facts, True)
    assert len(facts) == 8
