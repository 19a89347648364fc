"""intra_op_threads: the count that was asked for, over what the script sets itself."""

import pytest

from upshift.lever import Scene
from upshift.levers.intra_op_threads import LEVER
from upshift.testing import LAPTOP, SERVER


def test_proposes_the_budget_first_and_never_what_is_set_already() -> None:
    assert LEVER.settings(Scene(machine=SERVER, traits={"threads": 64})) == (16, 8, 4, 1)
    assert LEVER.settings(Scene(machine=LAPTOP, traits={"threads": 4})) == (2, 1)


def test_is_promising_only_where_threads_exceed_the_cores() -> None:
    assert LEVER.promising(Scene(machine=SERVER, traits={"threads": 64}))
    assert not LEVER.promising(Scene(machine=LAPTOP, traits={"threads": 4}))
    assert not LEVER.promising(Scene(machine=LAPTOP))


PROGRAM = r"""
run, seen = Run(), []
torch.set_num_threads(2)  # what torch would take
run.pulled.switch({"intra_op_threads": 3})
torch.set_num_threads(1)  # the script's own
run.train(lambda step: seen.append(torch.get_num_threads()), count=2)
run.pulled.switch({"intra_op_threads": 2})
seen.append(torch.get_num_threads())
run.close()
facts["seen"], facts["after"] = seen, torch.get_num_threads()
"""


@pytest.mark.child
def test_acts_over_the_scripts_own_count_and_gives_that_back(training) -> None:
    facts = training(PROGRAM)
    assert facts["seen"] == [1, 3, 3, 2]  # before the first call, then two boundaries, then two
    assert facts["after"] == 1
