"""garbage_collector: frozen once training has begun, and the script's own way of it left alone."""

import pytest

from hasten.lever import ScriptContext
from hasten.levers.garbage_collector import LEVER, _looks_on
from hasten.records import CollectorTraits, Traits
from hasten.testing import LAPTOP, sample_profile


def context(**collector):
    traits = Traits(collector=CollectorTraits(**collector))
    return ScriptContext(machine=LAPTOP, baseline=sample_profile(), traits=traits)


def test_is_tried_where_collections_take_a_hundredth_of_a_step() -> None:
    slow = context(step_s=0.02)  # of 0.1 s
    assert LEVER.settings(slow) == (10, 1)
    assert LEVER.forecast(slow, 10) == pytest.approx(1.25)


def test_is_skipped_with_the_figure_where_they_take_less() -> None:
    assert LEVER.settings(context(step_s=0.0004)) == ()
    assert LEVER.why_not(context(step_s=0.0004)) == "garbage collections take 0.4% of a step"
    assert LEVER.settings(context()) == ()
    assert LEVER.why_not(context()) == "the collections of a step were not timed"


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"is_enabled": False}, "the script has switched the collector off"),
        (
            {"threshold_count": 50_000},
            "the script lets the collector run after 50000 new objects",
        ),
        ({"frozen_count": 9}, "the script has frozen 9 objects"),
    ],
)
def test_leaves_a_collector_that_the_script_has_set(own, why) -> None:
    assert LEVER.settings(context(step_s=0.02, **own)) == ()
    assert LEVER.why_not(context(step_s=0.02, **own)) == why


PROGRAM = r"""
import gc, weakref

frozen_count, threshold = gc.get_freeze_count, gc.get_threshold  # before they are answered
stock = threshold()


class Knot:
    def __init__(self):
        self.me = self


early = Knot()
seen = weakref.ref(early)

run = Run(measuring=False)
run.applied.switch({"garbage_collector": 10})
facts["early"] = [frozen_count(), threshold() == stock]
run.train(count=1)
facts["begun"] = frozen_count() > 10_000
facts["raised"] = threshold() == (10 * stock[0], *stock[1:])
kept = Knot()
facts["found"] = [any(one is run.net for one in gc.get_objects()), frozen_count() > 10_000]
del kept.me, early
Knot()
facts["collected"] = gc.collect() > 0 and seen() is None and frozen_count() > 10_000
run.applied.switch({})
facts["after"] = [frozen_count(), threshold() == stock]

run.applied.switch({"garbage_collector": 1})
facts["at once"] = frozen_count() > 10_000
facts["as before"] = threshold() == stock
gc.set_threshold(123, 4, 5)
run.close()
facts["own later"] = threshold() == (123, 4, 5)

run = Run(measuring=False)
run.applied.switch({"garbage_collector": 10})
run.train(count=1)
facts["left alone"] = [frozen_count(), threshold() == (123, 4, 5)]
run.close()
"""


@pytest.mark.child
def test_acts_when_training_begins_and_puts_back_what_is_still_its_own(
    training, warm_python
) -> None:
    facts = training(PROGRAM, python=warm_python)  # nothing is frozen there before
    assert facts["early"] == facts["after"] == facts["left alone"] == [0, True]
    for name in ("begun", "raised", "collected", "at once", "as before", "own later"):
        assert facts[name], name


@pytest.mark.child
def test_who_looks_for_objects_finds_the_frozen_ones(training) -> None:
    assert training(PROGRAM)["found"] == [True, True]


PENALTY = r"""
from hasten.root_calls.own_code import second_derivatives

import sys, tempfile
folder = tempfile.mkdtemp()
with open(f"{folder}/penalties.py", "w") as file:
    file.write("import torch\ndef late(out, x):\n"
               "    return torch.autograd.grad(out, x, create_graph=True)\n")
sys.path.insert(0, folder)
import penalties
run = Run(measuring=False)
run.applied.switch({"garbage_collector": 10})
run.train(count=1)
facts["frozen"] = second_derivatives()
run.close()
"""


@pytest.mark.child
def test_second_derivatives_in_frozen_code_are_found(training) -> None:
    assert training(PENALTY)["frozen"] == "penalties.py has create_graph in late"


FILES = r"""
import torch

class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.log = open("log.csv", "w")
        self.on_step = self.write  # a cycle: only the collector of the end closes the file

    def write(self, step):
        print(step, file=self.log)

    def fit(self):
        for step in range(100):
            self.optimizer.zero_grad()
            self.net(torch.ones(2, 4)).mean().backward()
            self.optimizer.step()
            self.on_step(step)

Trainer().fit()
"""


@pytest.mark.child
def test_what_python_closes_at_its_end_is_closed(run_under, tmp_path) -> None:
    done = run_under("garbage_collector=10", FILES)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "log.csv").read_text().split() == [str(step) for step in range(100)]


MANY_NAMES = "".join(f"name_{index}()\n" for index in range(300))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("print(gc.collect())", "gc.collect()"),
        ("gc.collect()", ""),
        ("gc.callbacks.append(print)", "gc.callbacks"),
        ("trainer.callbacks.append(gc)", ""),
        ("from gc import collect, get_objects", "collect of gc"),
        (MANY_NAMES + "print(gc.collect())", "gc.collect()"),
    ],
)  # fmt: skip
def test_who_looks_on_collections_is_found(line, said) -> None:
    assert _looks_on(compile(line, "train.py", "exec")) == said
