"""device_copies: offered where there is a device; what it attaches it takes away again."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hasten.errors import LeverStopped
from hasten.instrument.live import LiveTraining
from hasten.lever import ScriptContext
from hasten.levers.device_copies import LEVER, _reads_back, attach
from hasten.loader.device.staging import Staging
from hasten.records import Phase
from hasten.testing import LAPTOP, SERVER, sample_profile


def moving(transfer_s):
    return sample_profile({Phase.TRANSFER: transfer_s, Phase.FORWARD: 0.02})


def test_is_offered_where_the_loop_moves_tensors_to_a_device() -> None:
    assert LEVER.settings(ScriptContext(machine=SERVER)) == ("arrival", "call")
    assert LEVER.settings(ScriptContext(machine=SERVER, baseline=moving(0.01))) == (
        "arrival",
        "call",
    )


def test_says_why_it_is_not() -> None:
    for context, why in [
        (ScriptContext(machine=LAPTOP), "no accelerator"),
        (ScriptContext(machine=replace(LAPTOP, torch=None)), "no accelerator"),
        (ScriptContext(machine=SERVER, baseline=moving(0.0)), "moves no tensor"),
    ]:
        assert LEVER.settings(context) == ()
        assert why in LEVER.why_not(context)


class Optimizer:
    """The first of a script."""


def reads_back(pinned, seen):
    pinned.copy_(seen, non_blocking=True)


def test_a_script_that_copies_back_and_does_not_wait_is_left_alone() -> None:
    live, staging = LiveTraining(), Staging(lambda target: None, ahead=False)
    attach(live, SimpleNamespace(on_batch=lambda after: lambda: None), staging)
    with pytest.raises(LeverStopped, match="may be read too early"):
        live.optimizers.add(Optimizer())
    assert staging._retired


def averages(mean, weights, batch, device):
    mean.copy_(weights)
    return batch.to(device, non_blocking=True)


def test_a_copy_of_which_nobody_says_that_it_does_not_wait_is_no_reason() -> None:
    assert _reads_back(reads_back.__code__) == "copy_(..., non_blocking=True)"
    assert _reads_back((lambda mean, seen: mean.copy_(seen)).__code__) == ""
    assert _reads_back(averages.__code__) == ""


PROGRAM = r"""
from hasten.levers import device_copies
from hasten.loader.device.staging import Staging


class LiveScreen:
    def __init__(self):
        self.after, self.next_batches = [], self

    def on_batch(self, after):
        self.after.append(after)
        return lambda: self.after.remove(after)

    def coming(self, wanted):
        asked.append(torch.is_grad_enabled())
        return iter(())


asked = []


class Played:  # its copies are made at once
    def __init__(self):
        self.count = 0

    def pinned_empty(self, size_bytes):
        return torch.empty(size_bytes, dtype=torch.uint8)

    def is_ready(self):
        return True

    def copy(self, source):
        self.count += 1
        return source.clone()

    def event(self):
        return self.count

    def has_come(self, event):
        return True

    def finish(self, event):
        pass

    follow = finish

    def begin_batch(self):
        pass

    def hand_over(self, target):
        pass


def run(ahead):
    run, engine, device = Run(), LiveScreen(), Played()
    staging = Staging(lambda target: device, ahead=ahead)
    undo = device_copies.attach(run.watch.live, engine, staging)
    place = torch.device("cuda:0")  # where nothing but the lever can move a tensor to

    def step(x, y):
        x, y = x.to(place), y.cuda(0, non_blocking=True)
        run.optimizer.zero_grad()
        nn.functional.cross_entropy(run.net(x), y).backward()
        run.optimizer.step()

    first = True
    for _ in range(2):
        for batch in run.loader:
            for after in engine.after:
                batch = after(run.loader, batch)
            if first:
                staging.begin()
                first = False
            step(*batch)
    undo()
    run.net.eval()
    run.net(run.loader.dataset[0][0][None])
    live = run.watch.live
    gone = not engine.after and not live.answers.movers and not live.phases.enterers
    run.close()
    return run.bits(), device.count, gone, asked.copy()


own = Run().train(count=16).close().bits()
for name, ahead in ("call", False), ("arrival", True):
    asked.clear()
    bits, count, gone, looks = run(ahead)
    facts[name] = [bits == own, count, gone, looks]

run = Run()
run.applied.switch({"device_copies": "call"})
facts["without a device"] = run.train().close().bits() == Run().train().close().bits()
facts["left alone"] = not run.watch.live.answers.movers
"""


@pytest.fixture(scope="module")
def copies(training):
    return training(PROGRAM)


@pytest.mark.child
@pytest.mark.parametrize("name", ["call", "arrival"])
def test_a_training_on_a_played_device_has_the_same_bits(name, copies) -> None:
    same, count, gone, looks = copies[name]
    assert same
    assert looks == ([True] * 16 if name == "arrival" else []), "once a step"
    assert count == 2 * 16, "each tensor of each batch was copied once"
    assert gone


@pytest.mark.child
def test_on_a_torch_without_cuda_it_does_nothing(copies) -> None:
    assert copies["without a device"]
    assert copies["left alone"]


REAL = r"""
place = torch.device("cuda")


def train(plan, workers, pin):
    run = Run()
    run.net.to(place)
    run.optimizer = torch.optim.Adam(run.net.parameters(), lr=0.01)
    run.loader = DataLoader(run.loader.dataset, 4, num_workers=workers, pin_memory=pin)
    run.applied.switch(plan)
    seen = []
    for _ in range(3):
        for x, y in run.loader:
            far, label = x.to(place), y.cuda()
            x.zero_()  # what was handed out must not see this
            again = y.to(place)
            y.numpy()[:] = 0
            seen += [hashed(far.cpu()), hashed(again.cpu()), far.stride(), x.is_pinned()]
            run.optimizer.zero_grad()
            nn.functional.cross_entropy(run.net(far), label).backward()
            run.optimizer.step()
    run.close()
    return seen, hashed({k: v.cpu() for k, v in run.net.state_dict().items()})


torch.backends.cudnn.deterministic = True
for workers in (0, 2):
    for pin in (False, True):
        own = train({}, workers, pin)
        for setting in ("call", "arrival"):
            ours = train({"device_copies": setting}, workers, pin)
            facts[f"{setting} {workers} {pin}"] = ours == own
"""


@pytest.mark.gpu
@pytest.mark.child
def test_a_training_on_a_real_device_has_the_same_bits(training) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    facts = training(REAL)
    assert {name for name, same in facts.items() if not same} == set()
