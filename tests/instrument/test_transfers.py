"""The seam at `Tensor.to` and `Tensor.cuda`: there only when wanted, and hard to notice."""

import pytest

PROGRAM = r"""
import json, threading
import torch
from hasten.instrument import Watch
from hasten.instrument.ledger import INDEX
from hasten.records import Phase

facts = {}
own = torch.Tensor.to
watch = Watch(measuring=False)
watch.install()
facts["absent"] = "to" not in vars(torch.Tensor)

seen = []


def convert(original, tensor, args, kwargs):
    seen.append(original.__name__)
    return original(tensor, *args, **kwargs)


undo = watch.live.on_transfer(convert)
x = torch.arange(3)
facts["value"] = x.to(torch.float64).tolist()
facts["keywords"] = str(x.to(dtype=torch.float16).dtype)
facts["original on the class"] = torch.Tensor.to is own
facts["name"] = x.to.__name__
facts["seen"] = list(seen)
try:
    x.to("no such device")
except RuntimeError as error:
    facts["error"] = "no such device" in str(error)

thread = threading.Thread(target=lambda: x.to(torch.float64))
seen.clear()
thread.start(), thread.join()
facts["other thread"] = list(seen)


class Image(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        seen.append("image" if func is torch.Tensor.to else "other")
        return super().__torch_function__(func, types, args, kwargs)


seen.clear()
kept = torch.ones(2).as_subclass(Image).to(torch.float64)
facts["subclass"] = [type(kept).__name__, list(seen)]

compiled = torch.compile(lambda t: t.to(torch.float64) + 1, backend="eager", fullgraph=True)
facts["compiled"] = compiled(x).tolist()

watch.pause()
seen.clear()
x.to(torch.float64)
facts["paused"] = list(seen)
watch.resume()
x.to(torch.float64)
facts["resumed"] = list(seen)
undo()
seen.clear()
x.to(torch.float64)
facts["undone"] = [list(seen), vars(torch.Tensor).get("to", own) is own]
watch.detach()

timed = Watch(measuring=True)
timed.install()
timed.ledger.loop_begins()
undo = timed.live.on_transfer(convert)
before = timed.ledger.current
during = []
end = timed.live.on_transfer(convert)
timed.live.answers.movers.insert(0, lambda original, *rest: during.append(timed.ledger.current))
x.to(torch.float64)
facts["phase"] = [during == [INDEX[Phase.TRANSFER]], timed.ledger.current == before]
timed.detach()
"""


@pytest.fixture(scope="module")
def moves(gathered):
    return gathered(PROGRAM)


@pytest.mark.child
def test_nothing_stands_there_unless_a_lever_or_the_clock_asks(moves) -> None:
    assert moves["absent"]
    assert moves["undone"] == [[], True]


@pytest.mark.child
def test_values_keywords_and_errors_pass_through(moves) -> None:
    assert moves["value"] == [0.0, 1.0, 2.0]
    assert moves["keywords"] == "torch.float16"
    assert moves["name"] == "to"
    assert moves["seen"] == ["to", "to"]
    assert moves["error"]


@pytest.mark.child
def test_the_class_still_shows_the_original_to_tensor_subclasses(moves) -> None:
    assert moves["original on the class"]
    assert moves["subclass"] == ["Image", ["to", "image"]]


@pytest.mark.child
def test_only_the_loops_own_thread_is_asked(moves) -> None:
    assert moves["other thread"] == []


@pytest.mark.child
def test_the_graph_of_a_compiled_function_does_not_break_there(moves) -> None:
    assert moves["compiled"] == [1.0, 2.0, 3.0]


@pytest.mark.child
def test_it_leaves_and_comes_back_with_the_other_seams(moves) -> None:
    assert moves["paused"] == []
    assert moves["resumed"] == ["to"]


@pytest.mark.child
def test_the_time_of_a_cpu_tensor_is_transfer(moves) -> None:
    assert moves["phase"] == [True, True]
