"""The ring: a buffer is lent again only when nobody holds it and no device reads it."""

import gc
import pickle
import queue
import threading
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from hasten.loader.device.ring import Ring, holder_count, is_dense  # noqa: E402


def bytes_of(count):
    return torch.empty(count, dtype=torch.uint8)


def ring(**limits):
    return Ring(bytes_of, **limits)


def lend(it, size=(4, 3), dtype=torch.float32):
    stride = torch.empty(size, dtype=dtype, device="meta").stride()
    return it.lend(size, stride, dtype)


def test_a_buffer_comes_back_when_the_last_tensor_has_gone() -> None:
    it = ring()
    first = lend(it)
    address = first.data_ptr()
    assert lend(it).data_ptr() != address
    del first
    assert lend(it).data_ptr() == address


class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, weight):
        ctx.save_for_backward(tensor)
        return weight.sum()

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient


def cycle(tensor):
    cell = [tensor]
    cell.append(cell)
    return cell


def typed(tensor):
    with warnings.catch_warnings(action="ignore"):
        return tensor.storage()


HOLDERS = {
    "a view": lambda t: t[1:],
    "a detached view": lambda t: t.detach()[0],
    "data": lambda t: t.data,
    "an array": lambda t: t.numpy(),
    "a view of an array": lambda t: t.numpy()[1:],
    "a memoryview": lambda t: memoryview(t.numpy()),
    "the storage": lambda t: t.untyped_storage(),
    "a capsule": torch.utils.dlpack.to_dlpack,
    "a graph": lambda t: (t * torch.ones(4, 3, requires_grad=True)).sum(),
    "a saved tensor": lambda t: Saved.apply(t, torch.ones(3, requires_grad=True)),
    "another tensor set to it": lambda t: torch.empty(0).set_(t),
    "a cycle": cycle,
    "a typed storage": typed,
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_whatever_holds_the_memory_keeps_it(kind) -> None:
    it = ring()
    tensor = lend(it)
    address = tensor.data_ptr()
    held = HOLDERS[kind](tensor)
    del tensor
    assert lend(it).data_ptr() != address
    del held
    gc.collect()
    assert lend(it).data_ptr() == address


def test_another_thread_that_holds_it_keeps_it() -> None:
    it, epoch, coming = ring(), queue.Queue(), queue.Queue()

    def hold():
        array = epoch.get().numpy()
        coming.put("held")
        epoch.get()
        coming.put(array.copy())

    thread = threading.Thread(target=hold)
    thread.start()
    tensor = lend(it).fill_(5)
    epoch.put(tensor)
    del tensor
    coming.get()
    for _ in range(3):
        lend(it).fill_(6)
    epoch.put("go on")
    assert (coming.get() == 5).all()
    thread.join()


def test_memory_that_the_script_moved_or_resized_is_left_to_it() -> None:
    it = ring()
    shared = lend(it).fill_(1)
    shared.share_memory_()
    resized = lend(it).fill_(2)
    resized.untyped_storage().resize_(4096)
    kept = shared.data_ptr(), resized.data_ptr()
    del shared, resized
    assert lend(it).data_ptr() not in kept
    assert len(it._slots) == 1


def test_beyond_its_bounds_it_lends_nothing() -> None:
    it = ring(most_count=2, most_bytes=1 << 20)
    held = [lend(it), lend(it)]
    assert lend(it) is None
    held.pop()
    assert lend(it) is not None
    assert lend(it, size=(1 << 20,)) is None
    assert lend(ring(most_bytes=10)) is None


def test_idle_buffers_make_room_for_another_size() -> None:
    it = ring(most_count=2)
    held = lend(it).fill_(3)
    lend(it)
    assert lend(it, size=(7,)) is not None
    assert held.eq(3).all()


def test_nothing_is_lent_that_a_device_still_reads() -> None:
    it, reading = ring(most_count=1), [True]
    tensor = lend(it)
    it.fence(tensor, lambda: reading[0])
    del tensor
    assert lend(it) is None
    reading[0] = False
    assert lend(it) is not None
    assert lend(it) is not None, "the fence is gone with its buffer's use"


def test_a_lent_tensor_is_as_any_other() -> None:
    tensor, own = lend(ring()), torch.empty(4, 3)
    assert tensor._version == own._version == 0
    assert tensor._base is None
    assert not tensor._is_view()
    assert tensor.untyped_storage().nbytes() == own.untyped_storage().nbytes()
    assert tensor.untyped_storage().resizable()
    assert len(pickle.dumps(tensor.zero_())) == len(pickle.dumps(own.zero_()))
    assert tensor.requires_grad_().is_leaf


def test_under_inference_mode_it_lends_nothing() -> None:
    it = ring()
    with torch.inference_mode():
        assert lend(it) is None
    assert not lend(it).is_inference()


def test_a_torch_that_does_not_count_holders_gets_no_buffer(monkeypatch) -> None:
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    assert holder_count(torch.empty(1).untyped_storage()) is None
    assert lend(ring()) is None


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64])
def test_any_dtype_and_any_order_of_dimensions_can_be_lent(dtype) -> None:
    own = torch.zeros(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last)
    tensor = ring().lend(own.size(), own.stride(), dtype)
    assert (tensor.stride(), tensor.dtype) == (own.stride(), dtype)


@given(st.permutations([2, 3, 1, 4]), st.integers(1, 3))
def test_dense_is_what_fills_its_memory(order, step) -> None:
    base = torch.empty(2, 3, 1, 4)
    shuffled = base.permute([[2, 3, 1, 4].index(n) for n in order])
    assert is_dense(shuffled.size(), shuffled.stride())
    sliced = torch.empty(8, 3)[:, ::step]
    assert is_dense(sliced.size(), sliced.stride()) == sliced.is_contiguous()


HOW = ("tensor", "view", "array", "storage")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("lend"), st.sampled_from(HOW), st.sampled_from([3, 4])),
            st.tuples(st.just("drop"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("read"), st.just(0), st.just(0)),
        ),
        max_size=40,
    )
)
@settings(max_examples=150, deadline=None)
def test_what_is_held_never_changes(actions) -> None:
    it, held, fences = ring(most_count=4), [], []
    for number, (act, how, size) in enumerate(actions):
        if act == "lend":
            tensor = lend(it, size=(size,))
            if tensor is None:
                assert len(it._slots) == 4
                continue
            assert all(not fence[0] or fence[1] != tensor.data_ptr() for fence in fences)
            tensor.fill_(number)
            reading = [True, tensor.data_ptr()]
            it.fence(tensor, lambda reading=reading: reading[0])
            fences.append(reading)
            keep = {
                "tensor": lambda t: t, "view": lambda t: t[1:], "array": lambda t: t.numpy(),
                "storage": lambda t: t.untyped_storage(),
            }[how]  # fmt: skip
            held.append((keep(tensor), number))
            del tensor
        elif act == "drop" and held:
            held.pop(how % len(held))
        elif act == "read" and fences:
            fences.pop(0)[0] = False
    for kept, number in held:
        values = torch.tensor(kept, dtype=torch.uint8).view(torch.float32) if (
            isinstance(kept, torch.UntypedStorage)) else torch.as_tensor(kept)  # fmt: skip
        assert values.eq(number).all()
