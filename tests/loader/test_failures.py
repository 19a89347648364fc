"""What goes wrong in scripts, or to our workers: the same to the user as without us, no hang."""

import os
import signal
import subprocess
import sys
import time

import pytest

from hasten.protocol import Mode
from hasten.records import Plan
from hasten.trials.child_environment import environment

pytestmark = pytest.mark.child

HEAD = r"""
import os, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
main = os.getpid()

class Numbers(Dataset):
    def __init__(self, count=40):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        return torch.tensor(float(i))

def total(loader):
    return sum(batch.sum().item() for batch in loader)
"""
KILLED = r"""
class Deadly(Numbers):
    def __getitem__(self, i):
        if i == 25 and os.getpid() != main:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)
"""
LATE = r"""
class Late(Numbers):
    def __getitem__(self, i):
        if i == 1000:
            raise KeyError("thousand")
        return super().__getitem__(i)
seen = 0
try:
    for batch in DataLoader(Late(2000), batch_size=10, num_workers=OWN):
        seen += 1
finally:
    print(seen)
"""
LONG = r"""
for number, batch in enumerate(DataLoader(Numbers(4000), batch_size=2, num_workers=OWN)):
    if number == 6:
        print("ready", flush=True)
    time.sleep(0.02)
"""


@pytest.fixture
def started(tmp_path):
    """Start a script, under a plan or plainly, in a session of its own."""

    def start(code, plan=None, python=sys.executable):
        (tmp_path / "script.py").write_text(HEAD + code)
        env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        if plan is not None:
            env = environment(
                plan, mode=Mode.RUN, env=env, assumed=frozenset({"dataset-unchanged"})
            )
        return subprocess.Popen(
            [python, str(tmp_path / "script.py")], env=env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    return start


@pytest.fixture
def ran(started, child_python):
    """Run a script to its end; return its exit status, what it printed and its complaints."""

    def run(code, plan=None, timeout_s=120.0, python=child_python):
        process = started(code, plan, python)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, out, err

    return run


def workers(count, **more):
    plan = Plan().with_lever("loader_workers", count)
    for name, setting in more.items():
        plan = plan.with_lever(name, setting)
    return plan


def members(session):
    """Return the living processes of a session."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, _, _, its_session = file.read().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(name))
    return found


@pytest.mark.parametrize(
    ("own", "count"),
    [(0, 0), (0, 2), *(pytest.param(2, count, marks=pytest.mark.slow) for count in (0, 2))],
)
def test_an_exception_comes_at_the_same_batch_with_the_same_words(ran, own, count) -> None:
    code = LATE.replace("OWN", str(own))
    before, after = ran(code), ran(code, workers(count))
    assert after[:2] == before[:2] == (1, "100\n")
    assert after[2].splitlines()[-3:] == before[2].splitlines()[-3:]
    assert ("Caught KeyError in DataLoader worker process 0" in after[2]) == (own > 0)


def test_a_worker_killed_during_a_step_of_a_script_without_any_costs_one_sentence(ran) -> None:
    steps = KILLED + (
        "seen = 0\n"
        "for batch in DataLoader(Deadly(), batch_size=2):\n"
        "    time.sleep(0.1)\n"
        "    seen += batch.sum().item()\n"
        "print(seen)\n"
        "import sys; print('the end', file=sys.stderr)\n"
    )
    status, out, err = ran(steps, workers(2))
    assert (status, out) == (0, "780.0\n")
    told, end = err.splitlines()  # at once, not after a training that was slower than promised
    assert told.startswith("hasten: no worker processes: a worker was lost")
    assert end == "the end"


def test_a_killed_worker_of_the_script_s_own_is_torch_s_error(ran) -> None:
    code = KILLED + "print(total(DataLoader(Deadly(), batch_size=2, num_workers=2)))\n"
    before, after = ran(code), ran(code, workers(2))
    assert (before[0], after[0]) == (1, 1)
    for _, _, err in (before, after):
        assert err.splitlines()[-1].startswith("RuntimeError: DataLoader worker")


def test_a_dataset_that_deadlocks_under_fork_is_read_by_the_main_process(ran) -> None:
    code = r"""
if "hasten.child" in sys.modules:
    from hasten.loader import added_workers
    added_workers._PATIENCE_S = 1.0
lock = threading.Lock()
class Locked(Numbers):
    def __getitem__(self, i):
        if os.getpid() != main:
            lock.acquire()
            lock.acquire()
        return super().__getitem__(i)
print(total(DataLoader(Locked(), batch_size=2)), total(DataLoader(Locked(), batch_size=2)))
"""
    status, out, err = ran(code, workers(2), timeout_s=60)
    assert (status, out) == (0, "780.0 780.0\n")
    assert "none gave a batch" in err


def test_items_that_do_not_pickle_are_made_in_the_main_process_without_a_word(ran) -> None:
    code = r"""
class Functions(Numbers):
    def __getitem__(self, i):
        return lambda: i
print(sum(f() for b in DataLoader(Functions(), batch_size=2, collate_fn=list) for f in b))
"""
    assert ran(code, workers(2)) == (0, "780\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods_give_the_same_batches_under_all_levers(ran, method) -> None:
    code = f"""
class Draws(Numbers):
    def __getitem__(self, i):
        return i, torch.rand(1).item()
if __name__ == "__main__":
    torch.manual_seed(1)
    print([(i.tolist(), drawn.tolist()) for i, drawn in DataLoader(
        Draws(12), 2, shuffle=True, num_workers=2, multiprocessing_context={method!r})])
"""
    plan = workers(2, sample_cache="64MiB", worker_threads=1)
    before, after = (ran(code, each, python=sys.executable) for each in (None, plan))
    assert after[:2] == before[:2]
    assert after[0] == 0


def test_the_start_method_stays_for_the_script_to_choose(ran) -> None:
    code = (
        "total(DataLoader(Numbers(), batch_size=2))\n"
        "torch.multiprocessing.set_start_method('spawn')\n"
        "print(total(DataLoader(Numbers(), batch_size=2)))\n"
    )
    assert ran(code, workers(2), python=sys.executable) == (0, "780.0\n", "")


def test_items_may_use_loaders_of_their_own(ran) -> None:
    code = r"""
class Nested(Numbers):
    def __getitem__(self, i):
        return torch.tensor(total(DataLoader(Numbers(4), batch_size=2)))
print([total(DataLoader(Nested(12), batch_size=2, num_workers=own)) for own in (0, 2)])
"""
    plan = workers(2, sample_cache="64MiB")
    assert ran(code, plan) == (0, "[72.0, 72.0]\n", "")


def test_sys_exit_in_an_item_ends_the_script(ran) -> None:
    code = r"""
class Exits(Numbers):
    def __getitem__(self, i):
        if i == 25:
            sys.exit(3)
        return super().__getitem__(i)
total(DataLoader(Exits(), batch_size=2))
"""
    assert ran(code, workers(2))[0] == ran(code)[0] == 3


@pytest.mark.parametrize("own", [0, 2])
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["process", "terminal"])
def test_ctrl_c_ends_the_script_and_leaves_nothing(started, own, send) -> None:
    process = started(LONG.replace("OWN", str(own)), workers(2))
    assert process.stdout.readline() == "ready\n"
    pids = members(process.pid)
    assert len(pids) == 3
    send(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    until = time.monotonic() + 10
    while members(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert members(process.pid) == []
    mine = tuple(f"torch_{pid}_" for pid in pids)
    assert [name for name in os.listdir("/dev/shm") if name.startswith(mine)] == []


UNREAD = """
import os, time, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 6400

    def __getitem__(self, index):
        return torch.full((784,), float(index))

for number, rows in enumerate(DataLoader(Rows(), batch_size=128, num_workers=OWN)):
    time.sleep(0.05)  # so that workers are ahead
    if number == 5:
        print("ready", flush=True)
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("own", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_workers_end_after_a_script_that_is_killed_with_batches_unread(started, own) -> None:
    with started(UNREAD.replace("OWN", str(own)), workers(1)) as process:
        assert process.stdout.readline() == "ready\n"
        assert process.wait(timeout=60) == -signal.SIGKILL
    until = time.monotonic() + 15  # torch's workers look every five seconds
    while members(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert members(process.pid) == []
