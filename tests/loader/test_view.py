"""torch's iterator that the script holds: made as torch makes it here, or left to torch."""

from types import SimpleNamespace

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
            raise RuntimeError("Expected a 'cuda' device type for generator\nbut found 'cpu'")
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

SHUT_DOWN = r"""
def run(kept):
    loader = DataLoader(Numbers(40), batch_size=2, num_workers=2, persistent_workers=kept)
    iterator = iter(loader)
    seen = [plain(next(iterator)), iterator._num_workers, iterator._prefetch_factor]
    seen += [iterator._timeout, iterator._persistent_workers]
    workers = list(iterator._workers)
    seen += [len(set(worker.pid for worker in workers)), [one.is_alive() for one in workers]]
    if kept:
        seen.append([one.pid for one in loader._iterator._workers] == [one.pid for one in workers])
        loader._iterator._shutdown_workers()
        loader._iterator = None
    del iterator
    for worker in workers:
        worker.terminate()
        worker.join(10)
    return seen, epochs(loader, 2)

facts["kept"], facts["anew"] = same(lambda: run(True), 2), same(lambda: run(False), 2)
"""


@pytest.mark.child
def test_the_workers_of_an_iterator_can_be_seen_and_ended(loaders) -> None:
    assert loaders(SHUT_DOWN) == {"kept": True, "anew": True}


@pytest.mark.child
def test_a_default_device_that_has_no_numbers_raises_as_torch_does(loaders) -> None:
    assert loaders(DEVICES) == {"meta": True, "meta, with offers": True}


def test_the_iterator_draws_its_seed_on_the_default_device(monkeypatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda *_: SimpleNamespace(device="some accelerator"))
    monkeypatch.setattr(torch, "Generator", lambda device: f"of {device}")
    assert view.LoaderView(None, 0).generator == "of some accelerator"


@pytest.mark.child
def test_where_torch_cannot_make_it_torch_s_own_fetches_and_nothing_was_drawn(loaders) -> None:
    facts = loaders(REFUSED)
    assert facts["refused"] is True
    assert facts["notes"][0].startswith("a loader was left alone: RuntimeError: Expected a 'cuda'")
    assert "\n" not in facts["notes"][0], "a note is one line"
