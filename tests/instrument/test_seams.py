"""What stands in torch's place goes again; what a script hands to torch is found in any form."""

from types import SimpleNamespace

import pytest
import torch

from hasten.instrument.seams import Seam, differentiated

ONE, TWO = torch.ones(1), torch.ones(2)


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((ONE,), {}, (ONE,)),
        (([ONE, TWO], [ONE, TWO]), {}, (ONE, TWO)),
        ((), {"tensors": ONE}, (ONE,)),
        ((), {"outputs": (TWO, ONE), "inputs": ONE}, (TWO, ONE)),
        ((), {}, ()),
        (([ONE, "an edge of the graph"],), {}, (ONE,)),
    ],
)
def test_the_roots_of_a_backward_pass_come_in_any_way(args, kwargs, found) -> None:
    seen = differentiated(args, kwargs)
    assert [id(root) for root in seen] == [id(root) for root in found]


def placed():
    """Return a place, a seam at its `save`, and what has come by that seam."""
    seen: list[str] = []

    def make(original, seam):
        def save(name):
            if seam.on:
                seen.append(name)
            return original(name)

        return save

    place = SimpleNamespace(save=str.upper)
    seam = Seam(place, "save", make)
    seam.install()
    return place, seam, seen


def test_a_seam_leaves_the_original_behind() -> None:
    place, seam, seen = placed()
    assert place.save("a") == "A"
    seam.remove()
    seam.remove()
    assert place.save is str.upper
    seam.install()
    place.save("b")
    assert seen == ["a", "b"]


def test_what_the_script_put_over_a_seam_stays() -> None:
    place, seam, seen = placed()
    below = place.save
    place.save = atomic = lambda name: below(name) + "!"
    seam.remove()
    assert place.save is atomic
    assert place.save("a") == "A!"
    assert seen == []
    seam.install()
    assert place.save is atomic
    assert place.save("b") == "B!"
    assert seen == ["b"]
    place.save = below
    seam.remove()
    assert place.save is str.upper


NESTED = r"""
import json, pickle, warnings
import torch
from hasten.instrument import Watch

facts = {}
Watch(measuring=True).install()
softmax = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax())  # without a dim
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    softmax(torch.ones(2, 4))
facts["from"] = [one.filename.rpartition("site-packages/")[2] for one in caught]
facts["save"] = pickle.loads(pickle.dumps(torch.save)) is torch.save
"""


@pytest.mark.child
def test_a_warning_of_a_nested_module_names_the_place_that_it_names_without_us(gathered) -> None:
    facts = gathered(NESTED)
    assert facts["from"] == ["torch/nn/modules/module.py"]
    assert facts["save"]
