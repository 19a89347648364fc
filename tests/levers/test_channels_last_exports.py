"""channels_last: what leaves Python has the script's layout, and so has all that is left behind."""

import pytest

FLAT = """
from torch import nn


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.point, self.head = nn.Conv2d(6, 4, 1), nn.Linear(144, 3)

    def forward(self, x):
        h = self.point(self.norm(self.conv(x)).relu())
        return self.head(h.view(h.size(0), -1))
"""

PROGRAM = (
    f"FLAT = {FLAT!r}"
    + r"""
import copy, io, sys, tempfile

PLAN = {"channels_last": True}


def last(t):
    return t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous()


folder = tempfile.mkdtemp()
with open(f"{folder}/flat.py", "w") as source:  # TorchScript reads it
    source.write(FLAT)
sys.path.insert(0, folder)
from flat import Flat

Net, x = Flat, torch.rand(2, 3, 8, 8)


def scripted(net):
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(net), file)
    return file.getvalue()


def traced(net):
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(net, x), file)
    return file.getvalue()


def exported(net):
    file = io.BytesIO()
    torch.export.save(torch.export.export(net, (x,)), file)
    return file.getvalue()


def load_script(saved):
    return torch.jit.load(io.BytesIO(saved))


def load_exported(saved):
    return torch.export.load(io.BytesIO(saved)).module()


facts["exports"] = {}
for export, load in ((scripted, load_script), (traced, load_script), (exported, load_exported)):
    run = Run()
    run.pulled.switch(PLAN)
    run.train(count=3)
    seen = [last(run.net.conv.weight)]
    run.net.eval()
    saved = export(run.net)
    seen += [last(run.net.conv.weight), last(run.optimizer.state[run.net.conv.weight]["exp_avg"])]
    run.net.train()
    run.train(count=2)
    seen.append(last(run.net.conv.weight))
    run.close()
    facts["exports"][export.__name__] = seen
    load(saved)(x)

run = Run()
run.pulled.switch(PLAN)
script = torch.jit.script(run.net)  # before it is called
run.train(count=2)
facts["exported before"] = last(run.net.conv.weight)
run.close()

# ---- what is left behind

run = Run()
run.pulled.switch(PLAN)
run.train(count=2)
held, best = run.net.state_dict(), copy.deepcopy(run.net.state_dict())
average = copy.deepcopy(run.net)
everything = [run.net.conv.weight, held["conv.weight"], best["conv.weight"], average.conv.weight]
facts["under"] = [last(t) for t in everything]
run.pulled.switch({})
facts["back"] = [last(t) for t in everything]
facts["still shared"] = held["conv.weight"].data_ptr() == run.net.conv.weight.data_ptr()
facts["views"] = [t.view(-1).numel() for t in everything]
facts["view put back"] = not hasattr(torch.Tensor.view, "__wrapped__")
run.close()

run = Run()
run.pulled.switch(PLAN)
run.train(count=2)
array = run.net.conv.weight.detach().numpy()
run.pulled.switch({})
facts["held by others"] = [
    last(run.net.conv.weight), run.net.conv.weight.detach().view(-1).numel(),
    hasattr(torch.Tensor.view, "__wrapped__"),
    bool((torch.from_numpy(array) == run.net.conv.weight).all())]
run.close()
"""
)


@pytest.fixture(scope="module")
def exports(training):
    return training(PROGRAM)


pytestmark = pytest.mark.child


@pytest.mark.parametrize("kind", ["scripted", "exported"])
def test_a_module_that_is_exported_has_its_own_layout_from_then_on(kind, exports) -> None:
    assert exports["exports"][kind] == [True, False, False, False]


def test_a_trace_which_scripts_draw_as_they_train_leaves_the_layout_alone(exports) -> None:
    assert exports["exports"]["traced"] == [True] * 4


def test_a_module_that_was_exported_before_its_first_call_stays_as_it_is(exports) -> None:
    assert not exports["exported before"]


def test_the_undo_finds_state_dicts_and_copies(exports) -> None:
    assert exports["under"] == [True] * 4
    assert exports["back"] == [False] * 4
    assert exports["still shared"]
    assert exports["views"] == [162] * 4
    assert exports["view put back"]


def test_views_are_answered_as_long_as_somebody_else_holds_the_memory(exports) -> None:
    assert exports["held by others"] == [True, 162, True, True]
