"""inter_op_threads: offered where tasks run, set once, and the script's own call is answered."""

import pytest

from hasten.lever import ScriptContext
from hasten.levers.inter_op_threads import LEVER
from hasten.records import Traits
from hasten.testing import SERVER


def context(**traits):
    return ScriptContext(machine=SERVER, traits=Traits(**traits))


def test_is_offered_where_more_tasks_than_cores_may_run_and_some_do() -> None:
    assert LEVER.settings(context(interop_thread_count=64, interop_started_count=64)) == (16, 1)
    assert not LEVER.promising(context(interop_thread_count=64, interop_started_count=64))


@pytest.mark.parametrize(
    ("traits", "why"),
    [
        ({}, "the inter-op threads of the script are not known"),
        (
            {"interop_thread_count": 8},
            "torch has 8 inter-op threads, no more than the 16 cores of the job",
        ),
        (
            {"interop_thread_count": 64, "interop_started_count": 0},
            "the script starts no asynchronous task: none of 64 inter-op threads runs",
        ),
    ],
)
def test_says_why_it_is_not(traits, why) -> None:
    assert LEVER.settings(context(**traits)) == ()
    assert LEVER.why_not(context(**traits)) == why


HEAD = r"""
import json, linecache, os, time, warnings
import torch
from hasten.instrument import Watch
from hasten.instrument.threads import add_threads
from hasten.records import Traits
from hasten.child import AppliedLevers

facts, watch = {}, Watch(measuring=False)
applied = AppliedLevers(watch.live)
watch.install()
"""

FIRST = r"""
applied.switch({"inter_op_threads": 3})
torch.set_num_interop_threads(7)  # the script's own, which would be the second call
facts["count"] = torch._C.get_num_interop_threads()
try:
    torch.set_num_interop_threads(7)
except RuntimeError:
    facts["second"] = "raises as ever"


source = "def task(x):\n    return torch.jit.wait(torch.jit.fork(torch.relu, x))\n"
linecache.cache["task.py"] = (len(source), None, source.splitlines(True), "task.py")
exec(compile(source, "task.py", "exec"))
warnings.simplefilter("ignore")
task = torch.jit.script(task)
facts["idle"] = add_threads(Traits()).interop_started_count
task(torch.ones(2))
until = time.monotonic() + 20
while add_threads(Traits()).interop_started_count < 3 and time.monotonic() < until:
    time.sleep(0.01)  # a thread takes its name after it has started
facts["started"] = add_threads(Traits()).interop_started_count
# torch's pool now and then aborts a process as it exits, also one without us: do not exit by it.
print(json.dumps(facts), flush=True)
os._exit(0)
"""

LATE = r"""
torch.set_num_interop_threads(2)
try:
    applied.switch({"inter_op_threads": 3})
except Exception as error:
    facts["late"] = str(error)
"""


@pytest.mark.child
def test_the_scripts_own_call_is_answered_once_and_the_pool_has_the_count(gathered) -> None:
    facts = gathered(HEAD + FIRST)
    assert facts == {"count": 3, "second": "raises as ever", "idle": 0, "started": 3}


@pytest.mark.child
def test_says_that_it_is_too_late(gathered) -> None:
    assert gathered(HEAD + LATE)["late"].startswith("The inter-op threads are set already: ")
