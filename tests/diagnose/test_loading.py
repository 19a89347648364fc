"""Sick loaders: each script has a twin with the same calls and without the cost."""

from dataclasses import replace

import pytest

from hasten.diagnose import Case, diagnose, discover
from hasten.records import Phase, Profile, Step, Traits
from hasten.testing import fed

ITEMS = """
import io, os, sys, threading, time, types
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

sick = sys.argv[1] == "sick"
side = 300 if sick else 4

# A store as h5py is one to us: a library that has this name.
store = types.ModuleType("h5py")
exec('''
def read(index, count):
    return sum(i * i for i in range(count)) + index
''', store.__dict__)

image = Image.frombytes("RGB", (side, side), bytes(range(256)) * (side * side * 3 // 256 + 1))
packed = io.BytesIO()
image.save(packed, "PNG")
packed = packed.getvalue()
reading, writing = os.pipe()
wanted = threading.Semaphore(0 if sick else 1 << 30)


def serve():
    while wanted.acquire():
        time.sleep(0.002)
        os.write(writing, b"x" * 64)


if sick:
    threading.Thread(target=serve, daemon=True).start()
else:
    os.close(writing)


def scale(pixels):
    count = 20_000 if sick else 2
    return pixels, sum(pixels[i % 8] for i in range(count))


class Images(Dataset):
    def __init__(self):
        self.transform = scale

    def __len__(self):
        return 12

    def __getitem__(self, index):
        wanted.release() if sick else None
        os.read(reading, 64)
        number = store.read(index, 20_000 if sick else 2)
        picture = Image.open(io.BytesIO(packed)).convert("RGB")
        pixels, total = self.transform(picture.tobytes()[:8])
        return torch.full((64,), (number + total) % 7.0), index


model = nn.Linear(64, 8) if sick else nn.Sequential(nn.Linear(64, 8000), nn.Linear(8000, 5000))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Images(), batch_size=4)
for epoch in range(10_000):
    for x, y in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""

OF_ITEMS = (
    "slow-decode",
    "repeated-decode",
    "per-sample-transforms",
    "random-access-store",
    "slow-storage",
)

ROWS = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def begin(number):
    time.sleep(1.2)


kind = sys.argv[1]
torch.set_num_threads(1)
data = TensorDataset(torch.randn(10_240, 8), torch.randn(10_240))
options = {
    "table": {"batch_size": 512},
    "idle": {"batch_size": 8, "num_workers": 1, "persistent_workers": True, "collate_fn": list},
    "respawn": {"batch_size": 512, "num_workers": 1, "worker_init_fn": begin},
    "healthy": {
        "batch_size": 512, "num_workers": 1, "worker_init_fn": begin, "persistent_workers": True
    },
}
loader = DataLoader(data, **options[kind])
hidden = 6000 if kind == "healthy" else 8
model = nn.Sequential(nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for epoch in range(10_000):
    for batch in loader:
        x, y = map(torch.stack, zip(*batch)) if kind == "idle" else batch
        optimizer.zero_grad()
        (model(x).squeeze(1) - y).square().mean().backward()
        optimizer.step()
"""

# A stream: items come without an index.
STREAM = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

line = json.dumps(list(range(40_000 if sys.argv[1] == "sick" else 8)))

class Lines(IterableDataset):
    def __iter__(self):
        while True:
            numbers = json.loads(line)
            yield torch.tensor(numbers[:8], dtype=torch.float32)

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 2560), nn.ReLU(), nn.Linear(2560, 2560), nn.Linear(2560, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for rows in DataLoader(Lines(), batch_size=2):
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
"""

# A stream whose batches are padded item by item.
PADDED = """
import random, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

count = 300 if sys.argv[1] == "sick" else 2


class Words(IterableDataset):
    def __iter__(self):
        while True:
            yield [1.0] * 8


def padded(items):
    rows = []
    for item in items:
        rows.append([number for _ in range(count) for number in item][:8])
    return torch.tensor(rows)


torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 2560), nn.ReLU(), nn.Linear(2560, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for rows in DataLoader(Words(), batch_size=64, collate_fn=padded):
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
"""

OF_ROWS = ("per-sample-fetch", "idle-workers", "worker-respawn", "slow-worker-start")


@pytest.mark.child
@pytest.mark.parametrize("name", OF_ITEMS)
def test_what_makes_an_item_slow_is_found(diagnosed, name) -> None:
    found = diagnosed(ITEMS, "sick")[name]
    assert found.share.low_ratio > 0.02
    sources = {
        "slow-decode": "Image.open(",
        "repeated-decode": "Image.open(",
        "per-sample-transforms": "sum(pixels[",
        "random-access-store": "store.read(",
        "slow-storage": "os.read(",
    }
    assert sources[name] in found.places[0].source


@pytest.mark.child
def test_a_loop_that_makes_slow_items_itself_wants_workers(diagnosed) -> None:
    found = diagnosed(ITEMS, "sick")["few-workers"]
    assert found.share.mid_ratio > 0.3
    assert found.lever == "loader_workers"
    assert found.places[0].source == "loader = DataLoader(Images(), batch_size=4)"


@pytest.mark.child
@pytest.mark.slow
def test_the_same_calls_without_their_cost_are_left_alone(diagnosed) -> None:
    assert not set(diagnosed(ITEMS, "healthy")) & {*OF_ITEMS, *OF_ROWS, "few-workers"}


@pytest.mark.child
@pytest.mark.slow
def test_a_table_that_is_read_row_by_row_is_found(diagnosed) -> None:
    found = diagnosed(ROWS, "table")["per-sample-fetch"]
    assert found.share.low_ratio > 0.1
    assert found.lever == "batched_fetch"


@pytest.mark.child
def test_what_makes_an_item_of_a_stream_slow_is_found(diagnosed) -> None:
    found = diagnosed(STREAM, "sick")
    assert found["slow-decode"].share.low_ratio > 0.1
    assert "json.loads(line)" in found["slow-decode"].places[0].source
    assert not {"few-workers", "per-sample-fetch", "repeated-decode"} & set(found)


@pytest.mark.child
@pytest.mark.slow
def test_a_stream_of_small_items_is_left_alone(diagnosed) -> None:
    assert not set(diagnosed(STREAM, "healthy")) & {*OF_ITEMS, *OF_ROWS, "few-workers"}


@pytest.mark.child
@pytest.mark.slow
def test_a_wait_that_nothing_else_explains_is_told_with_what_is_known(diagnosed) -> None:
    found = diagnosed(PADDED, "sick")["data-wait"]
    assert found.share.low_ratio > 0.2
    assert "64 samples of Words" in found.message
    assert "of it in the collate function" in found.message
    assert "rows.append(" in found.places[0].source
    assert "Do less in the collate function" in found.remedy


@pytest.mark.child
@pytest.mark.slow
def test_a_short_wait_is_left_alone(diagnosed) -> None:
    assert "data-wait" not in diagnosed(PADDED, "healthy")


@pytest.mark.child
def test_workers_that_cost_more_than_they_make_are_found(diagnosed) -> None:
    found = diagnosed(ROWS, "idle")
    assert found["idle-workers"].share.low_ratio > 0.02
    assert not {"few-workers", "per-sample-fetch", "worker-respawn"} & set(found)


@pytest.mark.child
@pytest.mark.parametrize("name", ["worker-respawn", "slow-worker-start"])
def test_workers_that_start_again_for_each_pass_are_found(diagnosed, name) -> None:
    found = diagnosed(ROWS, "respawn")[name]
    assert found.is_of_all
    assert found.share.low_ratio > 0.2
    assert found.places[0].source == "loader = DataLoader(data, **options[kind])"


@pytest.mark.child
@pytest.mark.slow
def test_workers_that_stay_and_feed_a_slow_model_are_left_alone(diagnosed) -> None:
    assert not set(diagnosed(ROWS, "healthy")) & {*OF_ITEMS, *OF_ROWS, "few-workers"}


# ---- thresholds, on made cases

MINE = {*OF_ITEMS, *OF_ROWS, "few-workers", "data-wait"}


def findings(machine, *, data_s=0.05, rest_s=0.05, cores_ratio=1.0, traits=None, found=None):
    """Return my findings of a loop with twenty equal steps."""
    phases = {Phase.DATA: data_s, Phase.FORWARD: rest_s}
    step = Step(phase_ns={phase: int(seconds * 1e9) for phase, seconds in phases.items()})
    profile = Profile(
        step_s=data_s + rest_s, step_low_s=data_s + rest_s, step_high_s=data_s + rest_s,
        sample_unit="samples", sample_count=8, phase_s=phases, step_count=20,
        cores_ratio=cores_ratio,
    )  # fmt: skip
    case = Case(
        machine=machine,
        profile=profile,
        steps=(step,) * 20,
        traits=traits or Traits(),
        found=found or {},
    )
    return {one.name: one for one in diagnose(case) if one.name in MINE}


MAIN = fed(fetch_s=0.05)
LOOK = {"loading.batch_s": 0.05, "loading.item_count": 8, "loading.collates_plainly": True}


def test_nothing_is_said_of_a_loader_that_nobody_measured(machine_of) -> None:
    assert not findings(machine_of(8))
    assert set(findings(machine_of(8), traits=fed())) == {"data-wait"}  # the wait was measured


@pytest.mark.parametrize(
    ("version", "count", "guards"),
    [("3.14.0", 0, True), ("3.14.0", 1, False), ("3.13.2", 0, False), ("", 0, False)],
)
def test_a_python_that_starts_workers_anew_wants_a_guard(
    machine_of, version, count, guards
) -> None:
    facts = replace(machine_of(8), python_version=version)
    traits = fed(worker_count=count, fetch_s=0.05 + 0.05 * count)
    remedy = findings(facts, traits=traits)["few-workers"].remedy
    assert ("if __name__ == '__main__'" in remedy) == guards


@pytest.mark.parametrize("stays", [True, False])
def test_workers_are_to_stay_where_the_dataset_does(machine_of, stays) -> None:
    traits = replace(MAIN, loader=replace(MAIN.loader, is_unchanged=stays))
    starts = {"loading.starts": [[at, 0.2, 0.3, 0.1] for at in (0.0, 3.0, 6.0)]}
    told = findings(machine_of(8), traits=traits, found=LOOK | starts)
    for name in ("few-workers", "worker-respawn"):
        assert ("unless the script changes its dataset" in told[name].remedy) != stays


def test_what_needs_workers_is_told_where_they_are_to_go(machine_of) -> None:
    traits = fed(worker_count=2, fetch_s=0.001)
    remedy = findings(machine_of(8), traits=traits)["idle-workers"].remedy
    for name in ("persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context"):
        assert name in remedy


def test_a_full_machine_has_no_room_for_workers(machine_of) -> None:
    assert "few-workers" in findings(machine_of(4), traits=MAIN)
    assert "few-workers" not in findings(machine_of(4), traits=MAIN, cores_ratio=3.9)


def test_more_workers_help_only_where_those_that_are_there_are_busy(machine_of) -> None:
    busy = fed(worker_count=2, fetch_s=0.2)
    assert "num_workers=4" in findings(machine_of(8), traits=busy)["few-workers"].remedy
    idle = fed(worker_count=2, fetch_s=0.06)
    assert "few-workers" not in findings(machine_of(8), traits=idle)


def test_the_gain_of_workers_is_bounded_by_the_cores(machine_of) -> None:
    wide = findings(machine_of(16), traits=MAIN)["few-workers"]
    narrow = findings(machine_of(2), traits=MAIN, cores_ratio=1.6)["few-workers"]
    assert wide.share.mid_ratio == pytest.approx(0.495)
    assert narrow.share.mid_ratio == pytest.approx(0.2)


def test_surplus_workers_are_told_by_the_memory_that_they_hold(machine_of) -> None:
    traits = fed(worker_count=8, fetch_s=0.01)
    held = {"workers.private_bytes": 1e9}
    found = findings(machine_of(8), data_s=0.0001, traits=traits, found=held)["idle-workers"]
    assert found.share is None
    assert "num_workers=1" in found.remedy
    little = {"workers.private_bytes": 5e7}
    assert not findings(machine_of(8), data_s=0.0001, traits=traits, found=little)


def test_workers_whose_loop_never_waits_are_told_by_their_memory_alone(machine_of) -> None:
    traits = fed(worker_count=2, fetch_s=0.01)
    held = {"workers.private_bytes": 1e9}  # the one batch was read before the loop
    assert not findings(machine_of(8), data_s=0.0, traits=traits)
    found = findings(machine_of(8), data_s=0.0, traits=traits, found=held)["idle-workers"]
    assert found.share is None
    assert "num_workers=1" in found.remedy


def test_the_wait_for_idle_workers_is_not_charged_to_the_items(machine_of) -> None:
    seen = LOOK | {"loading.kinds": {"decode": 900, "lookup": 100}}
    busy = fed(worker_count=1, fetch_s=0.09)
    assert "slow-decode" in findings(machine_of(8), traits=busy, found=seen)
    idle = fed(worker_count=8, fetch_s=0.09)
    assert "slow-decode" not in findings(machine_of(8), traits=idle, found=seen)


def test_what_workers_take_from_a_loop_that_never_waits_is_charged_to_the_items(machine_of) -> None:
    seen = LOOK | {"loading.kinds": {"decode": 900, "lookup": 100}}
    spent = {"processors.steps_wall_s": 10.0, "processors.wall_s": 10.0, "processors.cpus_count": 2,
             "processors.steps_own_run_s": 13.0, "processors.steps_children_run_s": 6.0,
             "workers.each": [{"run_s": 3.0, "wait_s": 0.0, "cpus": []}] * 2}  # fmt: skip
    idle = fed(worker_count=2, fetch_s=0.06)
    full = findings(machine_of(2), data_s=0.0, traits=idle, found=seen | spent)["slow-decode"]
    assert full.share.mid_ratio == pytest.approx(0.9 * 6.0 / 20.0)
    asleep = seen | {"loading.kinds": {"storage": 900, "lookup": 100}}
    assert "slow-storage" not in findings(
        machine_of(2), data_s=0.0, traits=idle, found=asleep | spent
    )
    others = spent | {"workers.each": []}  # of the script's own, such as a simulator
    assert "slow-decode" not in findings(
        machine_of(2), data_s=0.0, traits=idle, found=seen | others
    )
    spent["processors.steps_own_run_s"] = 8.0  # of 20 seconds of two CPUs, 6 are idle
    assert "slow-decode" not in findings(machine_of(2), data_s=0.0, traits=idle, found=seen | spent)
    served = spent | {"processors.steps_own_run_s": 13.0, "processors.steps_children_run_s": 0.0}
    full = findings(machine_of(2), data_s=0.0, traits=idle, found=seen | served)["slow-decode"]
    assert full.share.mid_ratio == pytest.approx(0.9 * 6.0 / 20.0)  # by workers of a fork server
    spent["processors.steps_busy_s"] = 19.0  # others have them
    assert "slow-decode" in findings(machine_of(2), data_s=0.0, traits=idle, found=seen | spent)


def test_workers_that_fill_their_queue_are_charged_with_twice_their_batches_at_most(
    machine_of,
) -> None:
    seen = LOOK | {"loading.kinds": {"decode": 900, "lookup": 100}}
    spent = {"processors.steps_wall_s": 10.0, "processors.wall_s": 10.0, "processors.cpus_count": 2,
             "processors.steps_own_run_s": 13.0, "processors.steps_children_run_s": 6.0,
             "workers.each": [{"run_s": 3.0, "wait_s": 0.0, "cpus": []}] * 2}  # fmt: skip
    quick = fed(worker_count=2, fetch_s=0.01)  # of a step of 0.05 s
    found = findings(machine_of(2), data_s=0.0, traits=quick, found=seen | spent)["slow-decode"]
    assert found.share.mid_ratio == pytest.approx(0.9 * 2 * 0.01 / (2 * 0.05))
    asleep = replace(quick, loader=replace(quick.loader, fetch_cpu_ratio=0.1))
    assert "slow-decode" not in findings(
        machine_of(2), data_s=0.0, traits=asleep, found=seen | spent
    )


def test_a_handful_of_samples_is_no_measurement(machine_of) -> None:
    seen = LOOK | {"loading.kinds": {"decode": 9, "lookup": 1}}
    assert "slow-decode" not in findings(machine_of(8), traits=MAIN, found=seen)


def test_a_loop_that_hardly_waits_has_no_slow_items(machine_of) -> None:
    seen = LOOK | {"loading.kinds": {"decode": 900, "lookup": 100}}
    assert not findings(machine_of(8), data_s=0.0008, traits=MAIN, found=seen)


def test_items_that_differ_each_time_are_repeated_only_as_far_as_they_are_decoded(
    machine_of,
) -> None:
    seen = LOOK | {"loading.kinds": {"decode": 500, "transforms": 500}}
    same = seen | {"loading.again_count": 8, "loading.same_count": 8}
    other = seen | {"loading.again_count": 8, "loading.same_count": 0}
    whole = findings(machine_of(8), traits=MAIN, found=same)["repeated-decode"]
    half = findings(machine_of(8), traits=MAIN, found=other)["repeated-decode"]
    assert whole.share.mid_ratio == pytest.approx(0.5)
    assert half.share.mid_ratio == pytest.approx(0.25)
    assert "repeated-decode" not in findings(machine_of(8), traits=MAIN, found=seen)


def test_samples_that_no_lever_may_keep_need_the_users_hand_and_the_finding_says_why(
    machine_of,
) -> None:
    seen = LOOK | {"loading.kinds": {"decode": 900}}
    same = seen | {"loading.again_count": 8, "loading.same_count": 8}
    timed = replace(MAIN, loader=replace(MAIN.loader, unkept="its code names time"))
    for name in ("repeated-decode", "slow-decode"):
        said = [findings(machine_of(8), traits=one, found=same)[name] for one in (MAIN, timed)]
        assert said[1].remedy.startswith(said[0].remedy)
        assert said[1].remedy.removeprefix(said[0].remedy) == (
            " No lever may keep these samples, because its code names time."
        )


def test_rows_that_are_cheap_to_make_are_not_worth_keeping(machine_of) -> None:
    rows = LOOK | {"loading.item_count": 4096, "loading.kinds": {"lookup": 900, "own": 100}}
    again = rows | {"loading.again_count": 8, "loading.same_count": 8}
    assert "repeated-decode" not in findings(machine_of(8), traits=MAIN, found=again)


def test_one_slow_start_in_a_run_is_told_when_it_is_long(machine_of) -> None:
    found = {"loading.started_count": 16, "loading.start_method": "spawn"}
    slow = findings(machine_of(8), found=found | {"loading.starts": [[0.0, 20.0, 30.0, 0.0]]})
    assert "50 s" in slow["slow-worker-start"].message
    assert slow["slow-worker-start"].share is None
    quick = findings(machine_of(8), found=found | {"loading.starts": [[0.0, 1.0, 2.0, 0.0]]})
    assert not quick


def test_what_a_start_took_before_workers_ran_is_a_part_of_that_start(machine_of) -> None:
    starts = [[0.0, 20.0, 30.0, 0.0], [90.0, 6.0, 4.0, 0.0]]
    found = {"loading.started_count": 16, "loading.start_method": "fork", "loading.starts": starts}
    told = findings(machine_of(8), found=found)["slow-worker-start"].message
    assert told == "It takes 10 s to start 16 workers by fork, 6 s of it before they run at all."


def test_long_passes_hide_the_start_of_their_workers(machine_of) -> None:
    found = {"loading.started_count": 2, "loading.start_method": "fork"}
    short = [[at, 0.2, 0.3, 0.1] for at in (0.0, 3.0, 6.0)]
    assert "worker-respawn" in findings(machine_of(8), found=found | {"loading.starts": short})
    long = [[at, 0.2, 0.3, 0.1] for at in (0.0, 300.0, 600.0)]
    assert not findings(machine_of(8), found=found | {"loading.starts": long})


def test_a_wait_is_told_where_nothing_else_accounts_for_half_of_it(machine_of) -> None:
    busy = {"cores_ratio": 3.9, "traits": fed(worker_count=4, fetch_s=0.4, dataset="Pairs")}
    told = findings(machine_of(4), **busy)
    assert told["data-wait"].share.mid_ratio == pytest.approx(0.5)
    message = told["data-wait"].message
    assert "a batch of Pairs takes one of 4 workers 400 ms" in message
    assert "3.9 of 4 cores" in message
    assert "no core is idle" in told["data-wait"].remedy
    seen = LOOK | {"loading.kinds": {"decode": 900, "lookup": 100}}
    assert "data-wait" not in findings(machine_of(4), found=seen, **busy)
    little = LOOK | {"loading.kinds": {"decode": 100, "lookup": 900}}
    assert {"data-wait", "slow-decode"} <= set(findings(machine_of(4), found=little, **busy))


def test_a_wait_is_told_from_a_fifth_of_a_step_on(machine_of) -> None:
    busy = {"cores_ratio": 3.9, "traits": fed(worker_count=4, fetch_s=0.4)}
    assert "data-wait" in findings(machine_of(4), data_s=0.021, rest_s=0.079, **busy)
    assert not findings(machine_of(4), data_s=0.019, rest_s=0.081, **busy)


def test_the_symptoms_that_say_more_exist() -> None:
    symptoms = discover()
    assert symptoms["data-wait"].explained_by <= set(symptoms)
