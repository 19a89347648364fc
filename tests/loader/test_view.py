"""torch's iterator that the script holds: made as torch makes it here, or left to torch."""

import pytest
import torch

from hasten.loader import view

DEVICES = r"""
def run():
    torch.set_default_device("meta")
    try:
        return epochs(DataLoader(Numbers(), batch_size=2))
    except Exception as error:
        return repr(error)
    finally:
        torch.set_default_device("cpu")

facts["meta"] = same(run, 2)
undo = engine.add(lambda loader: "no source")
facts["meta, with offers"] = same(run, 2)
undo()
"""

REFUSED = r"""
from torch.utils.data import dataloader
from hasten.loader.view import LoaderView

class Torchs(dataloader._SingleProcessDataLoaderIter):
    def __init__(self, loader):
        if isinstance(loader, LoaderView):
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        super().__init__(loader)

def run():
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(Draws(), batch_size=2, shuffle=True, generator=generator)
    seen = [[[part.tolist() for part in batch] for batch in loader] for _ in range(3)]
    return seen, rng(), generator.get_state().tolist()

dataloader._SingleProcessDataLoaderIter = Torchs
facts["refused"] = same(run, 2)
facts["notes"] = engine.notices.notes
"""


@pytest.mark.child
def test_a_default_device_that_has_no_numbers_raises_as_torch_does(loaders) -> None:
    assert loaders(DEVICES) == {"meta": True, "meta, with offers": True}


def test_the_iterator_draws_its_seed_on_the_default_device(monkeypatch) -> None:
    monkeypatch.setattr(torch, "get_default_device", lambda: "some accelerator")
    monkeypatch.setattr(torch, "Generator", lambda device: f"of {device}")
    assert view.LoaderView(None, 0).generator == "of some accelerator"


@pytest.mark.child
def test_where_torch_cannot_make_it_torch_s_own_fetches_and_nothing_was_drawn(loaders) -> None:
    facts = loaders(REFUSED)
    assert facts["refused"] is True
    assert "a loader was left alone: RuntimeError" in facts["notes"][0]
