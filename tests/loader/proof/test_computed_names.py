"""Names that a script puts together, and names that a function shares with something else."""

import ast

import pytest

from hasten.loader.proof.computed_names import matching, pattern_of

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from hasten.loader.proof.prove import prove


class Rows(Dataset):
    def __init__(self):
        self.gain = 2.0
        self.fill(12)

    def fill(self, count):
        self.rows = [float(i) for i in range(count)]

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return self.rows[i] * self.gain


def told(loader):
    proof = prove(loader)
    print("whole" if proof.is_whole else f"{proof.gaps[0].reason.name} {proof.message}")


"""
LOOP = """
def train(loader, step):
    for epoch in range(2):
        told(loader)
        for batch in loader:
            step(batch * 2)
"""
LAYERS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer0, self.layer1, self.act = nn.Linear(4, 4), nn.Linear(4, 4), "relu"
    def forward(self, x):
        for i in range(2):
            x = {called}(x.float())
        return x
train(DataLoader(Rows(), 4), Net())
"""
WRITER = """
class Writer:
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        add = getattr(self.inner, name, None)
        def wrapper(*args):
            if add is not None: add({given})
        return wrapper
class Helper:
    def soften(self, data): data.gain = 0.5
helper, rows = Helper(), Rows()
"""
KEEPER = """
class Keeper:
    def __init__(self): self.inner = None
    def ask(self, name): getattr(self.inner, name, print)(rows)
class Helper:
    def soften(self, data): data.gain = 0.5
helper, keeper, rows = Helper(), Keeper(), Rows()
"""
TRAINER = """
class Meter:
    def __init__(self): self.sums = {{}}
    def result(self): return dict(self.sums)
class Trainer:
    def __init__(self, loader, model):
        self.loader, self.model, self.meter = loader, model, Meter()
    def epoch(self):
        told(self.loader)
        for batch in self.loader:
            loss = self.model(batch.float()[:, None]).sum()
            self.meter.sums.update(loss=loss.item())
        log = self.meter.result()
        log.update(count=1)
        return log
    def run(self):
        for epoch in range(2):
            result = self.epoch()
            log = {{"epoch": epoch}}
            log.update(result)
            {more}
"""
SETTINGS = """
class Settings:
    known = []
    def __init__(self, given): given.gain = 0.5
    @classmethod
    def read(cls, given):
        {more}
        return cls(given)
"""
KEPT = "train(DataLoader(rows, 4), lambda batch: batch[0] > 90 and keeper.ask('soften'))\n"
PLAIN = "train(DataLoader(Rows(), 4), lambda batch: batch)\n"
WHOLE = {
    "layers by their numbers": LAYERS.format(called="getattr(self, f'layer{i}')"),
    "layers by sums of strings": LAYERS.format(called="getattr(self, 'layer' + str(i))"),
    "layers by a template": LAYERS.format(called="getattr(self, 'layer%d' % i)"),
    "layers by a format": LAYERS.format(called="getattr(self, 'layer{}'.format(i))"),
    "a library's function": LAYERS.format(called="getattr(F, self.act)"),
    "a library's function in a package": LAYERS.format(called="getattr(nn.functional, self.act)"),
    "what an object of a library's is asked for": WRITER.format(given="*args")
    + "writer = Writer([])\ntrain(DataLoader(rows, 4), lambda batch: writer.append(batch))\n",
    "a library's function beside an argument of its name": LAYERS.format(
        called="getattr(F, self.act)"
    ).replace("train(", "dict(F=F)\ntrain("),
    "what nothing is asked for": WRITER.format(given="rows")
    + "writer = Writer(None)\ntrain(DataLoader(rows, 4), lambda batch: writer.soften(1))\n",
    "what is none of the script's objects": KEEPER + KEPT,
    "what a network of a library's is asked for": KEEPER
    + "keeper.inner = nn.Sequential(nn.Linear(1, 1))\n"
    + KEPT,
    "a variable named like a method": TRAINER.format(more="pass")
    + "Trainer(DataLoader(Rows(), 4), nn.Linear(1, 1)).run()\n",
    "a class that makes itself": SETTINGS.format(more="pass")
    + "from types import SimpleNamespace\nsettings = Settings.read(SimpleNamespace())\n"
    + PLAIN,
    "a number of a function's": "\ndef soften(data): data.gain = 0.5\nsoften.count = 0\n"
    "print(soften.count)\n" + PLAIN,
}
LATER = "\nrows = Rows()\ntrain(DataLoader(rows, 4), lambda batch: batch[0] > 90 and {late})\n"
ASKED = "train(DataLoader(rows, 4), lambda batch: batch[0] > 90 and writer.soften(1))\n"
WRITTEN = {
    "a name that fits": LATER.format(late="getattr(rows, f'fi{batch:s}')(3)"),
    "a name of which nothing is known": "\nnames = ['fill']"
    + LATER.format(late="getattr(rows, names[0])(3)"),
    "a function by a variable": "\nimport __main__ as here\n"
    "def soften(data): data.gain = 0.5\ndo_soften = soften\n"
    + LATER.format(late="getattr(here, f'do_{batch}')(rows)"),
    "a name that was a library's": "\nnames, F = ['soften'], type('Own', (), {})\n"
    "def soften(data): data.gain = 0.5\n" + LATER.format(late="getattr(F, names[0])(rows)"),
    "what an object of the script is asked for": WRITER.format(given="rows")
    + "writer = Writer(helper)\n"
    + ASKED,
    "what an object of the script will be asked for": KEEPER
    + "def turn(one): keeper.inner = helper\nlist(map(turn, []))\n"
    + KEPT,
    "what an object of the script is set to by name": KEEPER
    + "def turn(one): setattr(keeper, one, helper)\nlist(map(turn, []))\n"
    + KEPT,
    "a method that a class names": "\nclass Soft(Rows):\n"
    "    def soften(self): self.gain = 0.5\n    anew = soften\nrows = Soft()\n"
    "train(DataLoader(rows, 4), lambda batch: batch[0] > 90 and rows.anew())\n",
    "a class that hands itself over": SETTINGS.format(more="cls.known.append(cls)")
    + "from types import SimpleNamespace\nsettings = Settings.read(SimpleNamespace())\n"
    + LATER.format(late="Settings.known[0](rows)"),
    "a static method that is handed over": "\nclass Hooks:\n    @staticmethod\n"
    "    def soften(data): data.gain = 0.5\nhooks = [Hooks.soften]\n"
    + LATER.format(late="[one(rows) for one in hooks]"),
    "a class of which only a method is named before": "\nclass Run:\n    @classmethod\n"
    "    def main(cls):\n        for epoch in range(2):\n            told(loader)\n"
    "            for batch in loader: batch[0] > 90 and cls.soften()\n    @staticmethod\n"
    "    def soften(): rows.gain = 0.5\nrows = Rows()\nloader = DataLoader(rows, 4)\nRun.main()\n",
    "a property that is asked for more": "\nclass Run:\n    @property\n"
    "    def stage(self):\n        self.data.gain *= 0.5\n        return 'late'\n"
    "run, rows = Run(), Rows()\nrun.data = rows\n"
    "train(DataLoader(rows, 4), lambda batch: batch[0] > 90 and run.stage.title())\n",
    "part of a row by a name that the script sets": "\nclass Wide(Rows):\n"
    "    def __init__(self):\n        super().__init__()\n        self.split = 'train'\n"
    "        self.rows = torch.ones(12, 4)\n    def __getitem__(self, i): return self.rows[i]\n"
    "def soften(row):\n    first, second = row.split(2)\n    first *= 0.5\n"
    "rows = Wide()\n"
    "train(DataLoader(rows, 4), lambda batch: batch[0, 0] > 90 and soften(rows[3]))\n",
    "a class that a library's method makes": "\nclass Made(nn.Embedding):\n"
    "    def __init__(self, given): given.gain = 0.5\n"
    + LATER.format(late="Made.from_pretrained(rows)"),
    "a class that a library's method makes, and another one's": "\nclass Made(nn.Embedding):\n"
    "    def __init__(self, given): given.gain = 0.5\nclass Other:\n"
    "    def from_pretrained(self): pass\n" + LATER.format(late="Made.from_pretrained(rows)"),
    "a class that its own method lets a library make": "\nclass Made(nn.Embedding):\n"
    "    def __init__(self, given): given.gain = 0.5\n    @classmethod\n"
    "    def load(cls, given): return super().from_pretrained(given)\n"
    + LATER.format(late="Made.load(rows)"),
    "a class by another name in its method": SETTINGS.format(more="pass").replace("cls", "kind")
    + LATER.format(late="Settings.read(rows)"),
    "an object that asks another one": KEEPER
    + "import weakref\nkeeper.inner = weakref.proxy(helper)\n"
    + KEPT,
    "an object of a library's that asks another one": KEEPER
    + "from unittest.mock import Mock\nkeeper.inner = Mock(wraps=helper)\n"
    + KEPT,
    "an object that is read from a file": KEEPER + "import pickle\nkeeper.inner = []\n"
    "def turn(text): global keeper; keeper = pickle.loads(text)\nlist(map(turn, []))\n" + KEPT,
    "an object of an heir that gets its own": "\nfrom dataclasses import dataclass\n"
    + KEEPER
    + "@dataclass\nclass Heir(Keeper):\n    inner: object\n"
    "list(map(lambda one: Heir(one).ask('soften'), []))\n" + KEPT,
    "an object that a library has": "\nimport types, json\nclass Helper:\n"
    "    def soften(self, data): data.gain = 0.5\njson.current = Helper()\nnames = ['soften']\n"
    + LATER.format(late="getattr(json.current, names[0])(rows)"),
    "a static method's parameter": "\nclass Task:\n    def __init__(self): self.inner = None\n"
    "    @staticmethod\n    def ask(task, name): getattr(task.inner, name)(rows)\n"
    "class Helper:\n    def soften(self, data): data.gain = 0.5\n"
    "from types import SimpleNamespace\nother = SimpleNamespace(inner=Helper())\ntask = Task()\n"
    + LATER.format(late="task.ask(other, 'soften')"),
    "a class that was an import": "\nfrom torch import optim\nclass optim:\n    pass\n"
    "def soften(data): data.gain = 0.5\nnames = ['soften']\n"
    + LATER.format(late="getattr(optim, names[0])(rows)"),
    "a name that is put together of what is known": "\nimport __main__ as here\n"
    "def soften(data): data.gain = 0.5\n" + LATER.format(late="getattr(here, 'sof' + 'ten')(rows)"),
    "a network that gives a row": "\nclass Net(nn.Module):\n"
    "    def forward(self, i): return rows.table[i]\nclass Wide(Rows):\n"
    "    def __getitem__(self, i): return self.table[i] * 2\nrows = Wide()\n"
    "rows.table = torch.ones(12, 4)\nclass Run:\n    def __init__(self):\n"
    "        self.model, self.loader = Net(), DataLoader(rows, 4)\n"
    "    def run(self):\n        for epoch in range(2):\n            told(self.loader)\n"
    "            for batch in self.loader:\n                row = self.model(3)\n"
    "                batch[0, 0] > 90 and row.mul_(2)\nRun().run()\n",
    "a function by its own call": "\ndef soften(data): data.gain = 0.5\n"
    + LATER.format(late="soften.__call__(rows)"),
}


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_a_name_that_cannot_mean_what_writes_leaves_the_proof_whole(said, text) -> None:
    assert said(HEAD + LOOP + text) == ["whole", "whole"]


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_a_name_that_may_mean_what_writes_is_found(said, text) -> None:
    assert said(HEAD + LOOP + text)[0].startswith(("OWNED", "UNWRITTEN"))


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("'layer'", "layer"),
        ("f'layer{i}_{j:02d}'", "layer*_*"),
        ("'layer' + str(i) + '_norm'", "layer*_norm"),
        ("'layer%d_norm' % i", "layer*"),
        ("'{}_{}'.format(i, j)", "*"),
        ("names[i]", "*"),
        ("3 + i", "**"),
        ("'layer' + format(i, '02d')", "layer*"),
        ("'layer' + i.hex()", "layer*"),
    ],
)
def test_the_known_parts_of_a_computed_name(text, pattern) -> None:
    assert pattern_of(ast.parse(text, mode="eval").body) == pattern


def test_a_pattern_means_whole_names() -> None:
    names = {"layer", "layer1", "my_layer1", "layer.1", "norm"}
    assert matching(["layer*"], names) == {"layer", "layer1", "layer.1"}
    assert matching(["layer.1"], names) == {"layer.1"}
    assert matching([], names) == set()
