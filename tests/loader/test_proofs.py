"""A proof is made where it costs less than the waiting that it may save."""

import sys
import time
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import hasten.loader.proofs as proofs_module
from hasten.loader.proof.verdict import LoaderProof, MissingReason, ProofReason
from hasten.loader.proofs import Proofs
from hasten.records import LoaderTraits


def loader():
    return DataLoader(TensorDataset(torch.zeros(4)))


@pytest.fixture
def proofs():
    """Proofs of a script that has had those of its first loaders."""
    proofs = Proofs()
    for _ in range(3):
        proofs.of(loader())
    proofs.cost_s = 1.0
    return proofs


def test_the_first_loaders_that_a_script_trains_on_are_proven_at_once() -> None:
    proofs, one = Proofs(), loader()
    proofs.cost_s = 1.0
    assert proofs.repay(one)
    with torch.no_grad():
        assert not proofs.repay(one)
        proofs.waited(one, 1.0)
        assert proofs.repay(one)


def test_what_is_known_costs_nothing(proofs) -> None:
    one = loader()
    assert not proofs.repay(one)
    proofs.of(one)
    proofs.cost_s = 1.0
    assert proofs.repay(one)


def test_another_cell_of_a_notebook_needs_another_proof(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(proofs_module, "prove", lambda one: made.append(one) or LoaderProof())
    space = vars(sys.modules["__main__"])
    monkeypatch.setitem(space, "ask", partial(Proofs().of, loader()))
    for count, text in enumerate(["ask(); ask()", "ask()"], 1):
        exec(compile(text, f"<cell {count}>", "exec"), space)
        assert len(made) == count


def test_a_list_is_examined_once_and_is_not_kept_alive() -> None:
    """A list has no weak references; its loader has."""
    rows = [(torch.ones(2), 1)] * 4
    one, proofs = DataLoader(rows), Proofs()
    assert proofs.of(one) is proofs.of(one)
    assert proofs.of(DataLoader(rows, collate_fn=one.collate_fn)) is proofs.of(one)
    others = list(rows)
    held_count = sys.getrefcount(others)
    other = DataLoader(others)
    proofs.of(other)
    del other
    assert sys.getrefcount(others) == held_count


def test_waiting_for_datasets_of_one_kind_adds_up_until_one_is_proven(proofs) -> None:
    for _ in range(2):
        proofs.waited(loader(), 0.6)
    assert not proofs.repay(DataLoader(Plain()))
    one = loader()
    assert proofs.repay(one)
    proofs.of(one)
    proofs.cost_s = 1.0
    assert not proofs.repay(loader())


@pytest.mark.parametrize("is_folder", [True, False])
def test_pictures_that_torchvision_decodes_are_told_from_others(tmp_path, is_folder) -> None:
    from torchvision.datasets import ImageFolder

    class Own(ImageFolder):
        def __getitem__(self, index):
            return super().__getitem__(index)

    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").touch()
    pictures = (ImageFolder if is_folder else Own)(tmp_path)
    one, proofs = DataLoader(Subset(pictures, [0])), Proofs()
    proofs.look(one)
    traits = LoaderTraits(worker_count=0, is_map_style=True)
    assert proofs.add(id(one.dataset), traits).is_folder is is_folder


def told(monkeypatch, loader, proof=None, **seen):
    """Return what a loader's traits say after it was examined, where a proof says this."""
    proof = proof or LoaderProof()
    monkeypatch.setattr("hasten.loader.proofs.prove", lambda loader: proof)
    proofs = Proofs()
    proofs.look(loader)
    worker_count = loader.num_workers
    traits = LoaderTraits(worker_count=worker_count, is_map_style=True, **seen)
    return proofs.add(id(loader.dataset), traits)


IMPURE = (MissingReason(ProofReason.PURE, "it prints"),)
WRITTEN = (MissingReason(ProofReason.UNWRITTEN, "the script writes"),)


@pytest.mark.parametrize(
    ("proof", "draws"),
    [
        (LoaderProof(draws=True), True),
        (LoaderProof(draws=False), False),
        (LoaderProof(WRITTEN, draws=True), True),
        (LoaderProof(IMPURE, draws=True), None),
        (LoaderProof(IMPURE, draws=False), None),
    ],
)
def test_what_code_that_was_followed_draws_is_told_where_nobody_has_seen(
    monkeypatch, proof, draws
) -> None:
    one = DataLoader(TensorDataset(torch.zeros(4)), num_workers=2)
    assert told(monkeypatch, one, proof).draws is draws
    assert told(monkeypatch, one, proof, draws=False).draws is False


def test_what_sets_workers_up_is_no_draw_of_the_items(monkeypatch) -> None:
    seeded = DataLoader(TensorDataset(torch.zeros(4)), num_workers=2, worker_init_fn=print)
    assert told(monkeypatch, seeded, LoaderProof(draws=True)).draws is None
    unused = DataLoader(TensorDataset(torch.zeros(4)), worker_init_fn=print)
    assert told(monkeypatch, unused, LoaderProof(draws=True)).draws is True


def test_a_proof_without_workers_says_nothing_of_what_sets_workers_up() -> None:
    rows, proofs = TensorDataset(torch.zeros(4)), Proofs()
    unused = DataLoader(rows, worker_init_fn=print)
    assert not any("print" in gap.what for gap in proofs.of(unused).gaps)
    used = DataLoader(rows, worker_init_fn=print, num_workers=1)
    assert any("print" in gap.what for gap in proofs.of(used).gaps)


class Plain(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(3) + index


class Timed(Plain):
    def __getitem__(self, index):
        return time.time()


class Batched(Plain):
    def __getitems__(self, indices):
        return list(map(self.__getitem__, indices))


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (Timed(), "the clock"),
        (Subset(Timed(), [0]), "the clock"),
        (Batched(), "whole batches"),
        (TensorDataset(torch.zeros(4)), "in memory already"),
        (Plain(), ""),
    ],
)
def test_why_no_sample_may_be_kept_is_told(monkeypatch, dataset, why) -> None:
    found = told(monkeypatch, DataLoader(dataset)).unkept
    assert why in found
    assert bool(found) is bool(why)


def test_a_dataset_is_examined_once_for_each_proof(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(
        "hasten.loader.proofs.what_is_kept", lambda loader: asked.append(loader) or ("", False)
    )
    monkeypatch.setattr("hasten.loader.proofs.prove", lambda loader: LoaderProof())
    proofs, data = Proofs(), Plain()
    for _ in range(3):
        proofs.look(DataLoader(data))
    assert len(asked) == 1
    proofs.look(DataLoader(data, collate_fn=list))
    assert len(asked) == 2
