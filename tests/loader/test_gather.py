"""gather: the batches of in-memory tensors, equal to torch's own in all that can be seen."""

import warnings

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.notices import Notices
from hasten.loader.proofs import ItemFacts, Permit
from hasten.loader.sources.gather import offer
from hasten.loader.sources.offered import OfferedSources
from hasten.loader.sources.source import Stock
from hasten.loader.sources.subsets import ByRows, leaves, positions_of

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8,
    torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


def numbers(shape, dtype):
    count = int(numpy.prod(shape))
    return torch.arange(count).remainder(251).reshape(shape).to(dtype)


# Each makes a tensor of `count` rows whose memory lies in another way.
LAYOUTS = {
    "plain": lambda count, dtype: numbers((count, 3), dtype),
    "scalars": lambda count, dtype: numbers((count,), dtype),
    "no numbers": lambda count, dtype: numbers((count, 0, 2), dtype),
    "channels last": lambda count, dtype: numbers((count, 4, 3, 2), dtype).permute(0, 3, 1, 2),
    "one channel": lambda count, dtype: numbers((count, 4, 3, 1), dtype).permute(0, 3, 1, 2),
    "columns": lambda count, dtype: numbers((2, 3, count), dtype).permute(2, 1, 0),
    "every other": lambda count, dtype: numbers((2 * count, 6), dtype)[::2, ::3],
    "offset": lambda count, dtype: numbers((count + 2, 5), dtype)[2:, 1:],
    "expanded rows": lambda count, dtype: numbers((1, 3), dtype).expand(count, 3),
    "expanded inside": lambda count, dtype: numbers((count, 1), dtype).expand(count, 4),
    "overlapping": lambda count, dtype: numbers((count + 4,), dtype).unfold(0, 5, 1),
    "one of each": lambda count, dtype: numbers((count, 1, 1), dtype),
}


def tensors(count):
    kinds = st.tuples(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(DTYPES))
    return kinds.map(lambda kind: LAYOUTS[kind[0]](count, kind[1]))


@st.composite
def subsets(draw, dataset, count):
    total = len(dataset)
    rows = draw(st.lists(st.integers(-total, total - 1), min_size=count, max_size=count))
    kind = draw(st.sampled_from([list, tuple, torch.LongTensor, numpy.int64]))
    return Subset(dataset, numpy.array(rows, dtype="int64") if kind is numpy.int64 else kind(rows))


@st.composite
def datasets(draw, count, depth=2):
    kinds = ["tensor", "table"] + (["subset", "concat", "tuple", "dict"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "tensor":
        return draw(tensors(count))
    if kind == "table":
        return TensorDataset(*draw(st.lists(tensors(count), min_size=1, max_size=3)))
    if kind == "subset":
        below = draw(datasets(draw(st.integers(1, 8)), depth - 1))
        return draw(subsets(below, count))
    if kind == "concat":
        below = draw(datasets(draw(st.integers(1, 8)), depth - 1))
        first = draw(st.integers(0, count))
        return ConcatDataset([draw(subsets(below, part)) for part in (first, 0, count - first)])
    inside = [draw(datasets(count, depth - 1)) for _ in range(draw(st.integers(1, 2)))]
    if kind == "tuple":
        return StackDataset(*inside)
    return StackDataset(**{f"field{i}": child for i, child in enumerate(inside)})


@st.composite
def cases(draw):
    count = draw(st.integers(1, 9))
    batch = st.lists(st.integers(-count, count - 1), min_size=1, max_size=12)
    return draw(datasets(count)), draw(st.lists(batch, min_size=1, max_size=3))


def sources(dataset, **options):
    loader = DataLoader(dataset, batch_size=4, **options)
    source = offer(loader)
    assert isinstance(source, ByRows), source
    return Stock(loader), source


@given(cases())
@settings(max_examples=200, deadline=None)
def test_batches_are_those_of_torch_and_nothing_is_drawn(case) -> None:
    dataset, batches = case
    stock, source = sources(dataset)
    before = random_states.read()
    for indices in batches:
        given_indices = list(indices)
        assert difference(stock.fetch(indices), source.fetch(indices)) == ""
        assert indices == given_indices
    assert random_states.read() == before


def leaf_tensors(batch):
    if isinstance(batch, torch.Tensor):
        return [batch]
    members = batch.values() if isinstance(batch, dict) else batch
    return [tensor for member in members for tensor in leaf_tensors(member)]


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("made_in", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_what_else_can_be_asked_of_a_tensor_is_the_same(layout, made_in, mode) -> None:
    with made_in():
        table = TensorDataset(LAYOUTS[layout](6, torch.float32))
    halves = ConcatDataset([table, table])
    for dataset in (table, halves, StackDataset(a=halves)):
        stock, source = sources(dataset)
        with mode():
            pairs = zip(
                leaf_tensors(stock.fetch([5, 0, 2])), leaf_tensors(source.fetch([5, 0, 2])),
                strict=True,
            )  # fmt: skip
        for theirs, ours in pairs:
            for trait in ("is_shared", "is_pinned", "is_inference", "is_conj", "is_neg"):
                assert getattr(ours, trait)() == getattr(theirs, trait)(), trait
            assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()
            assert ours.storage_offset() == 0
            assert ours.is_leaf
            assert not ours._is_view()


def test_conjugates_and_negatives_are_resolved_like_torch_does() -> None:
    lazy = torch.view_as_complex(torch.randn(6, 3, 2)).conj()
    for tensor in (lazy, lazy.imag):
        stock, source = sources(TensorDataset(tensor))
        assert difference(stock.fetch([1, -1]), source.fetch([1, -1])) == ""
        assert not source.fetch([1])[0].is_conj()
        assert not source.fetch([1])[0].is_neg()


@pytest.mark.parametrize("shape", [(6,), (6, 3), (6, 0), (6, 2, 2)])
@pytest.mark.parametrize(
    "dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2, torch.complex128]
)
def test_rare_types_are_gathered_or_refused(dtype, shape) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(6, 3), torch.ones(shape).to(dtype)))
    source = offer(loader)
    if isinstance(source, str):
        assert source == f"torch cannot select rows of {dtype}"
    else:
        assert difference(Stock(loader).fetch([5, -6]), source.fetch([5, -6])) == ""


def test_wide_rows_are_copied_in_wide_numbers() -> None:
    table = torch.randn(300, 40, 25)
    stock, source = sources(TensorDataset(table, table[:, 1:, :24], table.transpose(1, 2)))
    indices = torch.randint(-300, 300, (130,)).tolist()
    assert difference(stock.fetch(indices), source.fetch(indices)) == ""


def test_shared_tables_give_batches_of_private_memory() -> None:
    stock, source = sources(TensorDataset(torch.randn(6, 3).share_memory_()))
    assert not stock.fetch([1])[0].is_shared()
    assert not source.fetch([1])[0].is_shared()


INDICES = {
    "of NumPy": list(numpy.array([3, 1, -2])),
    "small ones of NumPy": list(numpy.array([3, 1, -2], dtype="int32")),
    "of torch": list(torch.tensor([3, 1, -2])),
    "mixed": [3, numpy.int64(1), -2],
    "in a tuple": (3, 1, -2),
    "in a tensor": torch.tensor([3, 1, -2]),
    "in an array": numpy.array([3, 1, -2]),
    "in a range": range(3),
}


@pytest.mark.parametrize("kind", sorted(INDICES))
def test_samplers_may_give_indices_of_many_kinds(kind) -> None:
    table = TensorDataset(torch.randn(6, 3), torch.arange(6))
    rows = [4, 0, 2, 5]
    for own in (rows, torch.tensor(rows), numpy.array(rows)):
        for dataset in (table, Subset(table, own), ConcatDataset([table, Subset(table, own)])):
            stock, source = sources(dataset)
            assert difference(stock.fetch(INDICES[kind]), source.fetch(INDICES[kind])) == ""


@pytest.mark.parametrize(
    "indices",
    [[True, False], [1, True], [1.0], ["1"], [None], [], torch.tensor([[1]]), torch.tensor([True]),
     torch.tensor([1], dtype=torch.uint8), list(torch.tensor([True])), [torch.tensor([1])],
     numpy.array([1.0]), [numpy.uint8(1)], {1: 2}, iter([1]), torch.tensor([], dtype=torch.int64),
     [2**63], [slice(2)]],
)  # fmt: skip
def test_other_indices_are_left_to_torch(indices) -> None:
    _, source = sources(TensorDataset(torch.randn(6, 3)))
    with pytest.raises((TypeError, IndexError, OverflowError, RuntimeError)):
        source.fetch(indices)


@pytest.mark.parametrize("index", [6, -7, 1000])
def test_indices_outside_raise_as_they_do_in_torch(index) -> None:
    for tensor in (torch.randn(6, 3), torch.randn(6), torch.randn(6, 0), torch.randn(3, 6).t()):
        table = TensorDataset(tensor)
        views = (table, Subset(table, range(6)), ConcatDataset([table]), StackDataset(table))
        for dataset in views:
            stock, source = sources(dataset)
            with pytest.raises((IndexError, ValueError)):
                stock.fetch([0, index])
            with pytest.raises(IndexError):
                source.fetch([0, index])


# ---- what a script does to its data while a pass goes on


def changes():
    yield "a write", lambda table, subset: table.tensors[0].mul_(2)
    yield (
        "other tensors",
        lambda table, subset: setattr(
            table, "tensors", tuple(tensor * 3 for tensor in table.tensors)
        ),
    )
    yield "other rows", lambda table, subset: setattr(subset, "indices", [0, 0, 1, 1])
    yield "a write to the rows", lambda table, subset: subset.indices.__setitem__(0, 5)
    yield (
        "another dataset",
        lambda table, subset: setattr(subset, "dataset", TensorDataset(torch.ones(6, 2))),
    )
    yield (
        "other data",
        lambda table, subset: setattr(
            table.tensors[0], "data", torch.zeros(6, 7, dtype=torch.float64)
        ),
    )


@pytest.mark.parametrize("rows", [list, torch.tensor, numpy.array])
@pytest.mark.parametrize(("what", "change"), list(changes()), ids=lambda case: str(case)[:20])
def test_changes_between_batches_are_seen(what, change, rows) -> None:
    table = TensorDataset(torch.randn(6, 3), torch.arange(6))
    subset = Subset(table, rows([4, 0, 2, 1]))
    stock, source = sources(subset)
    before = source.fetch([0, 1, 2])
    change(table, subset)
    after = source.fetch([0, 1, 2])
    assert difference(before, after) != ""
    assert difference(stock.fetch([0, 1, 2]), after) == ""


def test_a_dataset_that_becomes_another_kind_is_given_back() -> None:
    table = TensorDataset(torch.randn(6, 3))
    _, source = sources(table)
    table.tensors[0].requires_grad_()
    with pytest.raises(TypeError, match="gradients"):
        source.fetch([0])
    _, source = sources(subset := Subset(TensorDataset(torch.randn(6, 3)), [1, 2]))
    subset.dataset = [1, 2, 3]
    with pytest.raises(TypeError, match="list"):
        source.fetch([0])
    _, source = sources(both := ConcatDataset([TensorDataset(torch.randn(2, 3))] * 2))
    both.datasets[1] = TensorDataset(torch.randn(2, 4))
    with pytest.raises(TypeError, match="different kinds"):
        source.fetch([0, 3])


# ---- what is refused


class Loud(TensorDataset):
    """A subclass may do anything."""


class Doubled(torch.Tensor):
    """A subclass of a tensor, too."""


class Stream(IterableDataset):
    """Has no indices."""

    def __iter__(self):
        return iter(range(4))


class Rows(Dataset):
    """A dataset of the script's own."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


X = torch.randn(4, 3)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    QUANTIZED = torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)
REFUSED = {
    "a subclass": Loud(X),
    "a subclass of Subset": Subset(Loud(X), [0]),
    "its own dataset": Rows(),
    "a list": [1, 2, 3],
    "a stack of others": StackDataset(X, Rows()),
    "a gradient": TensorDataset(X.clone().requires_grad_()),
    "a parameter": TensorDataset(torch.nn.Parameter(X.clone(), requires_grad=False)),
    "a tensor subclass": TensorDataset(X.as_subclass(Doubled)),
    "meta": TensorDataset(X.to("meta")),
    "sparse": TensorDataset(X.to_sparse()),
    "quantized": TensorDataset(QUANTIZED),
    "nested indices": Subset(TensorDataset(X), torch.tensor([[0], [1]])),
    "a mask": Subset(TensorDataset(X), torch.tensor([True, False])),
    "indices in a dict": Subset(TensorDataset(X), {0: 1, 1: 2}),
    "unsigned indices": Subset(TensorDataset(X), numpy.array([0, 1], dtype="uint8")),
    "no dimension": X[0, 0],
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_says_in_one_sentence_why_it_refuses(kind) -> None:
    dataset = REFUSED[kind]
    why = offer(DataLoader(dataset, batch_size=2, sampler=[0]))
    assert isinstance(why, str)
    assert why
    assert "\n" not in why
    assert not why.endswith(".")


@pytest.mark.parametrize(
    "parts",
    [
        (TensorDataset(X), TensorDataset(X, X)),
        (TensorDataset(X), TensorDataset(X[:, :2])),
        (TensorDataset(X), TensorDataset(X.double())),
        (StackDataset(a=X, b=X), StackDataset(b=X, a=X)),
    ],
)
def test_rows_of_different_kinds_are_left_to_torch(parts) -> None:
    _, source = sources(ConcatDataset(parts))
    with pytest.raises(TypeError, match="different kinds"):
        source.fetch([0, 5])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch_size": None}, "no batches"),
        ({"collate_fn": list}, "collate_fn"),
        ({"collate_fn": lambda rows: default_collate(rows[:1])}, "collate_fn"),
    ],
)
def test_other_ways_to_make_a_batch_are_refused(options, why) -> None:
    assert why in offer(DataLoader(TensorDataset(X), **options))
    assert "iterable" in offer(DataLoader(Stream()))


def test_a_script_that_changes_what_torch_does_is_left_alone(monkeypatch) -> None:
    table = TensorDataset(X)
    loader = DataLoader(table)
    assert isinstance(offer(loader), ByRows)
    table.__getitems__ = lambda indices: []
    assert "replaced" in offer(loader)
    del table.__getitems__
    with monkeypatch.context() as patched:
        patched.setattr(TensorDataset, "__getitem__", lambda self, index: 0)
        assert "replaced" in offer(loader)
    with monkeypatch.context() as patched:
        patched.setattr(TensorDataset, "__getitems__", lambda self, indices: [], raising=False)
        assert "replaced" in offer(loader)
    with monkeypatch.context() as patched:
        patched.setattr(Subset, "__getitems__", lambda self, indices: [])
        assert "replaced" in offer(DataLoader(Subset(table, [0])))
    from torch.utils.data._utils import collate

    with monkeypatch.context() as patched:
        patched.setitem(collate.default_collate_fn_map, tuple, lambda rows, **more: rows)
        assert "taught" in offer(loader)
    assert isinstance(offer(loader), ByRows)


def test_the_global_default_device_is_none_of_its_business() -> None:
    halves = random_split(TensorDataset(torch.randn(8, 3)), [5, 3])
    stock, source = sources(ConcatDataset(halves))
    with torch.device("meta"):
        ours = source.fetch([7, 0, 5])
    assert difference(stock.fetch([7, 0, 5]), ours) == ""


def test_read_only_arrays_of_indices_warn_no_more_than_in_torch() -> None:
    rows = numpy.array([2, 0, 1])
    rows.flags.writeable = False
    stock, source = sources(Subset(TensorDataset(X), rows))
    assert difference(stock.fetch([0, 2]), source.fetch([0, 2])) == ""
    assert positions_of(rows).tolist() == [2, 0, 1]


def test_a_pickled_source_still_fetches() -> None:
    import pickle

    stock, source = sources(Subset(StackDataset(a=X, b=TensorDataset(X, X)), [3, 1]))
    assert difference(stock.fetch([1, 0]), pickle.loads(pickle.dumps(source)).fetch([1, 0])) == ""


def test_leaves_look_through_views_but_not_through_subclasses() -> None:
    table, loud = TensorDataset(X), Loud(X)
    assert leaves(ConcatDataset([Subset(table, [0]), Subset(loud, [1])])) == (table, loud)

    class Picky(Subset):
        pass

    picky = Picky(table, [0])
    assert leaves(picky) == (picky,)


# ---- where nothing shows that the script leaves its data alone


def chosen(permit, **options):
    loader = DataLoader(Subset(TensorDataset(X), [0, 2]), batch_size=2, **options)
    sources = OfferedSources(ItemFacts(permit=permit), Notices())
    found = sources.choose(loader, [offer])
    return [None if checked is None else checked.source.light for checked in found]


def test_without_a_proof_the_main_process_reads_the_rows_when_torch_would() -> None:
    assert chosen(Permit(is_unchanged=False)) == [True, None]
    assert chosen(Permit(is_pure=False, is_unchanged=False)) == [True, None]
    assert chosen(Permit(is_unchanged=False), num_workers=1) == [None, None]


def test_with_a_proof_the_main_process_reads_them_in_place_of_workers() -> None:
    assert chosen(Permit()) == [True, None]
    assert chosen(Permit(), num_workers=1) == [True, None]


UNPROVEN = r"""
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset
from hasten.loader.proof.verdict import LoaderProof, MissingReason, ProofReason
from hasten.loader.sources import checked, gather, subsets

engine._granted = False
gap = MissingReason(ProofReason.OWNED, "the script holds y")
engine.proofs.of = lambda loader: LoaderProof((gap,))
checked.Checked._weigh = lambda self, *times_ns: None
told, fetched, fetch = [], [], subsets.ByRows.fetch
engine.notices.tell = told.append
subsets.ByRows.fetch = lambda self, indices: fetched.append(self.light) or fetch(self, indices)


class Own(TensorDataset):
    pass


def table(kind=TensorDataset):
    numbers = torch.Generator().manual_seed(0)
    return kind(torch.randn(40, 5, generator=numbers), torch.arange(40))


def spelled(batch):
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype), batch.stride(), batch.tolist()
    return [spelled(part) for part in (batch.values() if isinstance(batch, dict) else batch)]


def writes(data, number):
    x, y = data.tensors
    x[number] = -x[number]
    y += 1
    if number == 4:
        data.tensors = tuple(tensor.clone() for tensor in data.tensors)


def written(data, view):
    loader, seen = DataLoader(view(data), batch_size=6, shuffle=True), []
    for _ in range(3):
        for number, batch in enumerate(loader):
            seen.append(spelled(batch))
            writes(data, number)
    return seen, rng()


def evaluated(data, view):
    held, seen = DataLoader(Subset(data, [7, 1, 4]), batch_size=2), []
    for number, batch in enumerate(DataLoader(view(data), batch_size=6, shuffle=True)):
        seen.append(spelled(batch))
        with torch.no_grad():
            for other in held:
                seen.append(spelled(other))
                writes(data, number)
    return seen, rng()


def several(data, view):
    loader, seen = DataLoader(view(data), batch_size=6, shuffle=True), []
    for one, other in zip(loader, loader):
        seen += [spelled(one), spelled(other)]
        for number, inner in enumerate(loader):
            seen.append(spelled(inner))
            writes(data, number)
            if number == 2:
                break
    return seen, rng()


def rows_changed(data, view):
    subset, seen = Subset(view(data), list(range(12))), []
    for _ in range(3):
        for batch in DataLoader(subset, batch_size=3):
            seen.append(spelled(batch))
            subset.indices.reverse()
            subset.dataset = view(data)
    return seen, rng()


def seen_by_us(run):
    torch.manual_seed(7)
    undo = engine.add(gather.offer)
    try:
        return run()
    finally:
        undo()


views = {
    "table": lambda data: data, "subset": lambda data: Subset(data, list(range(1, 40, 2))),
    "concat": lambda data: ConcatDataset([Subset(data, [3, 1]), data]),
    "stack": lambda data: StackDataset(a=data, b=data),
}
for name, view in views.items():
    for run in (written, evaluated, several, rows_changed):
        before = stock(lambda: run(table(), view))
        del fetched[:]
        after = seen_by_us(lambda: run(table(), view))
        facts[f"{name} {run.__name__}"] = before == after
        facts[f"{name} {run.__name__} by rows"] = set(fetched) == {True} and len(fetched) > 6
facts["nothing to tell"] = told == []

before = stock(lambda: written(table(Own), views["table"]))
del fetched[:]
facts["subclass"] = seen_by_us(lambda: written(table(Own), views["table"])) == before
facts["subclass by rows"] = fetched == []
facts["told"] = len(told) == 1 and "the script holds y" in told[0]
"""


@pytest.mark.child
def test_what_the_script_writes_between_two_batches_is_in_the_next_without_a_proof(loaders) -> None:
    facts = loaders(UNPROVEN)
    assert len(facts) == 2 * 4 * 4 + 4
    assert [name for name, same in facts.items() if not same] == []
