"""Staging on a device that is played: copies happen late, and what is early shows as rubbish."""

import ctypes
import gc
from collections import UserDict, namedtuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from hasten.loader.device.staging import Staging, is_dense, is_plain, leaves, target_of  # noqa: E402

HERE = torch.device("cuda:0")
RUBBISH = -77


def bits(tensor):
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


class Played:
    """A device whose copies wait until they must be there; its memory is the CPU's."""

    def __init__(self):
        self.waiting, self.done_count, self.begun_count = [], 0, 0
        self.handed, self.ready, self.batch_count, self.room = [], True, 0, True

    def pinned_empty(self, size_bytes):
        return torch.full((size_bytes,), 99, dtype=torch.uint8)

    def is_ready(self):
        return self.ready

    def copy(self, source):
        target = torch.empty_like(source).fill_(RUBBISH)
        # By its address: a copy that is under way holds no reference.
        self.waiting.append((source.data_ptr(), bits(source), target))
        self.begun_count += 1
        return target

    def event(self):
        return self.begun_count

    def has_come(self, event):
        return self.done_count >= event

    def run_one(self):
        address, begun, target = self.waiting.pop(0)
        now = ctypes.string_at(address, len(begun))
        assert now == begun, "a source was written before its copy had come"
        ctypes.memmove(target.data_ptr(), now, len(now))
        self.done_count += 1

    def finish(self, event):
        while not self.has_come(event):
            self.run_one()

    follow = finish

    def begin_batch(self):
        self.batch_count += 1

    def has_room(self):
        return self.room

    def hand_over(self, target):
        self.handed.append(target.data_ptr())


class Loader:
    pin_memory = False


class ScriptContext:
    """A script with one loader, one device and staging between them."""

    def __init__(self, *, ahead=True, begun=True):
        self.device = Played()
        self.devices = {HERE: self.device}
        self.staging = Staging(self.devices.get, ahead=ahead)
        self.loader = Loader()
        self.stock_count = 0
        if begun:
            self.staging.begin()

    def to(self, tensor, *args, **kwargs):
        def to(tensor, *args, **kwargs):
            self.stock_count += 1
            return tensor.clone()

        return self.staging.moved(to, tensor, args or (HERE,), kwargs)

    def load(self, *tensors):
        return self.staging.arrived(self.loader, list(tensors))

    def foresee(self, *tensors):
        if self.staging.awaits(self.loader):
            self.staging.coming(self.loader, list(tensors))


def values(count=3, start=0.0):
    return torch.arange(start, start + count)


@pytest.fixture
def context():
    """A script that has moved one batch already: its loader's aim is known."""
    it = ScriptContext()
    it.to(it.load(values())[0])
    return it


def test_a_copy_that_was_started_ahead_is_handed_out_once(context) -> None:
    x = context.load(values(start=5))[0]
    begun = context.device.begun_count
    first = context.to(x)
    assert context.device.begun_count == begun, "no further copy"
    second = context.to(x)
    assert context.device.begun_count == begun + 1
    assert first.equal(x)
    assert second.equal(x)
    assert first.data_ptr() != second.data_ptr()
    assert context.stock_count == 0


def test_each_batch_that_was_moved_to_a_device_begins_there_once(context) -> None:
    for _ in range(3):
        context.to(context.load(values(), values())[0])
    assert context.device.batch_count == 3


def test_a_batch_that_is_coming_is_copied_once_and_handed_out_once(context) -> None:
    x, y = values(start=5), values(start=9)
    begun = context.device.begun_count
    context.foresee(x)
    context.foresee(x)
    assert context.device.begun_count == begun + 1
    context.load(x)
    assert context.to(x).equal(x)
    assert context.device.begun_count == begun + 1
    assert context.to(context.load(y)[0]).equal(y)
    assert context.device.begun_count == begun + 2
    assert context.stock_count == 0


def test_what_is_written_to_a_batch_that_is_coming_is_seen(context) -> None:
    x = values()
    context.foresee(x)
    x.numpy()[:] = 7
    assert context.to(context.load(x)[0]).equal(x)


def test_a_batch_that_was_coming_and_is_given_twice_is_copied_again(context) -> None:
    x = values()
    context.foresee(x)
    context.load(x)
    x.numpy()[:] = 7
    assert context.to(context.load(x)[0]).equal(x)


@pytest.mark.parametrize("why", ["room", "ready", "ahead", "moved", "retired"])
def test_nothing_is_awaited_where_no_copy_would_help(why, context) -> None:
    assert context.staging.awaits(context.loader)
    if why == "ahead":
        context.staging.is_ahead = False
    elif why == "retired":
        context.staging.retire()
    else:
        setattr(context.device, why, False)
    assert not context.staging.awaits(Loader() if why == "moved" else context.loader)


def test_of_batches_that_are_coming_no_more_than_two_wait(context) -> None:
    held = [values(start=i) for i in range(5)]
    for x in held:
        context.foresee(x)
    assert len(context.staging._staged) == 2
    assert all(context.to(context.load(x)[0]).equal(x) for x in held)


def test_before_the_first_move_nothing_is_copied_ahead() -> None:
    context = ScriptContext()
    context.load(values())
    context.foresee(values())
    assert context.device.begun_count == 0


def test_only_places_that_were_moved_are_copied_ahead() -> None:
    context = ScriptContext()
    x, _ = context.load(values(), values())
    context.to(x)
    context.load(values(), values())
    assert context.device.begun_count == 2


def test_the_batch_is_the_very_object() -> None:
    context = ScriptContext()
    batch = {"x": values()}
    assert context.staging.arrived(context.loader, batch) is batch


WRITES = {
    "in place": lambda t: t.add_(1),
    "a view": lambda t: t[1:].zero_(),
    "numpy": lambda t: t.numpy().fill(8),
    "data": lambda t: t.data.fill_(8),
    "the storage": lambda t: t.untyped_storage().fill_(1),
    "minus zero": lambda t: t.data.copy_(torch.tensor([-0.0, 1, 2])),
    "another geometry": lambda t: t.resize_(1, 3),
    "another dtype": lambda t: setattr(t, "data", torch.ones(3, dtype=torch.int32)),
}


@pytest.mark.parametrize("kind", WRITES)
def test_what_was_written_after_the_snapshot_is_seen(kind, context) -> None:
    x = context.load(values())[0]
    WRITES[kind](x)
    moved = context.to(x)
    assert (moved.dtype, moved.size()) == (x.dtype, x.size())
    assert bits(moved) == bits(x)


def test_what_is_written_after_the_move_does_not_reach_the_copy(context) -> None:
    for ahead in (True, False):
        context.staging.is_ahead = ahead
        x = context.load(values())[0]
        moved = context.to(x)
        x.fill_(9)
        while context.device.waiting:
            context.device.run_one()
        assert moved.equal(values())


def test_not_a_number_is_the_same_bits_as_itself(context) -> None:
    x = context.load(torch.tensor([float("nan"), 1.0]))[0]
    begun = context.device.begun_count
    assert bits(context.to(x)) == bits(x)
    assert context.device.begun_count == begun


def test_another_tensor_on_the_same_memory_gets_a_copy_of_its_own(context) -> None:
    x = context.load(values())[0]
    begun = context.device.begun_count
    assert context.to(x.view(3)).equal(x)
    assert context.device.begun_count == begun + 1


def test_a_copy_for_one_device_is_not_given_to_another(context) -> None:
    there = torch.device("cuda:1")
    context.devices[there] = other = Played()
    x = context.load(values())[0]
    moved = context.to(x, there)
    assert other.begun_count == 1
    assert moved.data_ptr() in other.handed
    context.to(context.load(values())[0], there)
    assert other.begun_count == 2, "the aim has changed"
    assert context.device.begun_count == 2


def test_every_copy_is_handed_over_to_the_scripts_stream(context) -> None:
    moved = [context.to(x) for x in context.load(values(), values())]
    assert {t.data_ptr() for t in moved} <= set(context.device.handed)


def test_a_batch_that_the_script_drops_gives_its_copy_back(context) -> None:
    gc.freeze()  # what has nothing to do with it
    for _ in range(20):
        context.load(values())
        gc.collect()
    gc.unfreeze()
    assert len(context.staging._staged) == 0
    assert context.device.begun_count == 3, "two misses in a row are enough"


def test_no_more_than_two_batches_wait(context) -> None:
    batches = [context.load(values(start=i)) for i in range(5)]
    assert len(context.staging._staged) == 2
    assert all(context.to(b[0]).equal(values(start=i)) for i, b in enumerate(batches))


def test_a_data_set_that_hands_out_one_tensor_again_gets_what_is_in_it_then(context) -> None:
    x = values()
    for start in range(4):
        x.numpy()[:] = values(start=start)
        assert context.to(context.load(x)[0]).equal(values(start=start))


MODES = {
    "inference": torch.inference_mode,
    "a dispatch mode": lambda: FlopCounterMode(display=False),
    "a default device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("kind", MODES)
def test_a_copy_from_before_is_not_used_under_a_mode(kind, context) -> None:
    x = context.load(values())[0]
    with MODES[kind]():
        assert context.to(x).is_inference() == (kind == "inference")


def test_under_a_functional_transform_the_scripts_own_call_answers(context) -> None:
    torch.func.vmap(context.to)(torch.ones(2, 3))
    assert context.stock_count == 1


class Subclass(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"code of the script ran: {func}")


OTHERS = {
    "needs a gradient": lambda: torch.ones(3, requires_grad=True),
    "a result of a graph": lambda: torch.ones(3, requires_grad=True) * 2,
    "a parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "empty": lambda: torch.empty(0),
    "expanded": lambda: torch.ones(1).expand(3),
    "with gaps": lambda: torch.ones(6)[::2],
    "conjugated": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "sparse": lambda: torch.ones(3).to_sparse(),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_of_other_tensors_the_scripts_own_call_answers(kind, context) -> None:
    x = context.load(OTHERS[kind]())[0]
    context.to(x)
    context.load(OTHERS[kind]())
    assert context.stock_count == 1
    assert context.device.begun_count == 1


def test_of_a_subclass_not_even_an_attribute_is_read(context) -> None:
    x = torch.ones(3).as_subclass(Subclass)
    answer = context.staging.moved(lambda t, *args: "its own", x, (HERE,), {})
    assert answer == "its own"
    assert not context.staging._retired
    assert list(leaves([x])) == []


CALLS = [
    (("cuda:0", torch.float64), {}), ((torch.float64,), {}), ((HERE,), {"copy": True}),
    ((HERE,), {"memory_format": torch.channels_last}), (("cpu",), {}), (("xpu",), {}),
    (("cuda:1",), {}), (("nonsense",), {}), ((), {"nonsense": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_of_other_calls_the_scripts_own_answers(args, kwargs, context) -> None:
    context.to(torch.ones(3), *args, **kwargs)
    assert context.stock_count == 1


def test_all_spellings_of_a_move_are_understood() -> None:
    x = torch.ones(3)
    for args, kwargs in [
        ((HERE,), {}), (("cuda:0",), {}), ((), {"device": "cuda:0"}),
        ((HERE, torch.float32), {}), ((), {"device": HERE, "dtype": torch.float32}),
        ((HERE,), {"memory_format": torch.preserve_format}),
    ]:  # fmt: skip
        assert target_of("to", x, args, kwargs) == (HERE, False)
    assert target_of("to", x, ("cuda:0",), {"non_blocking": True}) == (HERE, True)
    assert target_of("cuda", x, (), {}) == (torch.device("cuda"), False)
    assert target_of("cuda", x, (0, True), {}) == (HERE, True)
    assert target_of("cuda", x, (), {"device": HERE, "non_blocking": True}) == (HERE, True)
    assert target_of("cuda", x, (), {"nonsense": 1}) is None


def test_a_batch_of_a_loader_that_is_not_known_is_copied_when_it_is_moved(context) -> None:
    x = context.staging.arrived(None, [values()])[0]
    assert context.to(x).equal(x)
    assert context.stock_count == 0
    assert not context.staging._retired


def test_before_training_begins_nothing_is_answered() -> None:
    context = ScriptContext(begun=False)
    context.to(values())
    assert context.stock_count == 1


def test_while_the_device_is_not_ready_nothing_is_started(context) -> None:
    context.device.ready = False
    context.to(context.load(values())[0])
    assert context.stock_count == 1
    assert context.device.begun_count == 1


class Pinned:
    """Let chosen tensors look page-locked, which without a device none can be."""

    def __init__(self, monkeypatch):
        self.addresses = set()
        monkeypatch.setattr(
            torch.Tensor, "is_pinned", lambda t, device=None: t.data_ptr() in self.addresses
        )

    def __call__(self, tensor):
        self.addresses.add(tensor.data_ptr())
        return tensor


@pytest.fixture
def pinned(monkeypatch):
    return Pinned(monkeypatch)


def test_page_locked_memory_is_read_only_as_the_loader_gave_it(context, pinned) -> None:
    context.staging.is_ahead = False
    context.loader.pin_memory = True
    fresh, written = context.load(pinned(values()), pinned(values()))
    written.add_(1)
    context.to(fresh)
    assert context.stock_count == 0
    context.to(written)
    context.to(pinned(values()))
    assert context.stock_count == 2


def test_a_move_that_waits_for_nothing_already_is_left_alone(context, pinned) -> None:
    context.staging.is_ahead = False
    x = context.load(pinned(values()))[0]
    context.to(x, HERE, non_blocking=True)
    assert context.stock_count == 1


def test_page_locked_batches_are_copied_ahead_where_the_loader_locks_them(context, pinned) -> None:
    held = context.load(pinned(values()))
    assert context.device.begun_count == 1
    context.loader.pin_memory = True
    held += context.load(pinned(values()))
    assert context.device.begun_count == 2


READ_BACK = {
    "as it is": ("cpu",),
    "cast": ("cpu", torch.float64),
    "like another": (torch.ones(3),),
    "a parameter": ("cpu",),
    "into a copy": ("cpu",),
}


@pytest.mark.parametrize("kind", READ_BACK)
def test_a_script_that_reads_back_without_waiting_is_left_alone_from_then_on(kind, context) -> None:
    there, more = torch.ones(3, device="meta"), {"copy": True} if "copy" in kind else {}
    there = torch.nn.Parameter(there) if kind == "a parameter" else there
    context.to(there, *READ_BACK[kind], non_blocking=False)
    context.to(torch.nn.Parameter(torch.ones(3)), *READ_BACK[kind], non_blocking=True)
    assert not context.staging._retired
    context.to(there, *READ_BACK[kind], non_blocking=True, **more)
    assert context.staging._retired
    count = context.stock_count
    context.to(context.load(values())[0])
    assert context.stock_count == count + 1


@pytest.mark.parametrize("broken", ["copy", "event", "follow", "hand_over", "pinned_empty"])
def test_a_device_that_fails_leaves_the_script_its_own_call(broken, context) -> None:
    def fail(*args):
        raise RuntimeError("out of memory")

    setattr(context.device, broken, fail)
    x = context.load(values())[0]
    assert context.to(x).equal(x)
    assert context.stock_count == 1
    assert context.staging._retired


def test_leaves_of_usual_batches_are_found_in_their_places() -> None:
    Pair = namedtuple("Pair", "x y")
    batch = Pair([torch.ones(1), "word"], {"m": UserDict(a=torch.ones(2)), "n": (3, None)})
    assert [place for place, _ in leaves(batch)] == [(0, 0), (1, "m", "a")]


def test_a_batch_that_holds_itself_breaks_nothing() -> None:
    context, batch = ScriptContext(), []
    batch.append(batch)
    assert context.staging.arrived(context.loader, batch) is batch


def test_plain_is_judged_by_memory() -> None:
    assert is_plain(torch.ones(2, 3).t())
    assert is_plain(torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last))
    assert not is_plain(torch.ones(2, 3)[:, :2])


@given(st.permutations([2, 3, 1, 4]), st.integers(1, 3))
def test_dense_is_what_fills_its_memory(order, step) -> None:
    base = torch.empty(2, 3, 1, 4)
    shuffled = base.permute([[2, 3, 1, 4].index(n) for n in order])
    assert is_dense(shuffled.size(), shuffled.stride())
    sliced = torch.empty(8, 3)[:, ::step]
    assert is_dense(sliced.size(), sliced.stride()) == sliced.is_contiguous()


class Script:
    """A script that does what it likes, in an order that chance gives."""

    def __init__(self, *, ahead, coin):
        self.context, self.coin = ScriptContext(ahead=ahead), coin
        self.alive, self.moved, self.serial = [], [], 0

    def load(self):
        self.serial += 10
        x = values(4, start=self.serial)
        self.alive += self.context.load(x, x[:2].int())

    def foresee(self):
        self.serial += 10
        x = values(4, start=self.serial)
        coming = x, x[:2].int()
        self.context.foresee(*coming)
        if self.coin.random() < 0.2:
            x.numpy()[1] -= 1
        if self.coin.random() < 0.8:
            self.alive += self.context.load(*coming)

    def to(self):
        x = self.coin.choice(self.alive)
        copied = self.context.to(x)
        assert copied.data_ptr() not in {t.data_ptr() for t, _ in self.moved}
        assert copied.data_ptr() in self.context.device.handed
        self.moved.append((copied, x.clone()))

    def to_twice(self):
        before = self.coin.getstate()
        self.to()
        self.coin.setstate(before)
        self.to()

    def write_in_place(self):
        self.coin.choice(self.alive).add_(1)

    def write_by_numpy(self):
        self.coin.choice(self.alive).numpy()[0] += 3

    def write_to_data(self):
        self.coin.choice(self.alive).data.mul_(2)

    def drop(self):
        self.alive.pop(self.coin.randrange(len(self.alive)))

    def drop_copy(self):
        self.moved[:1] = []

    def break_off(self):
        self.alive.clear()

    def let_run(self):
        if self.context.device.waiting:
            self.context.device.run_one()

    def check(self):
        assert all(copied.equal(then) for copied, then in self.moved)
        assert self.context.stock_count == 0
        assert not self.context.staging._retired


ALWAYS = ("load", "load", "foresee", "foresee", "let_run", "let_run", "break_off", "drop_copy")
WITH_BATCH = (*ALWAYS, "to", "to", "to_twice", "write_in_place", "write_by_numpy",
              "write_to_data", "drop")  # fmt: skip


@given(st.integers(0, 60), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_every_copy_has_the_bits_of_its_moment_and_keeps_them(count, ahead, coin) -> None:
    script = Script(ahead=ahead, coin=coin)
    for _ in range(count):
        getattr(script, coin.choice(WITH_BATCH if script.alive else ALWAYS))()
        script.check()
    while script.context.device.waiting:
        script.let_run()
    script.check()
