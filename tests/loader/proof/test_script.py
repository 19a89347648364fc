"""What the script itself may do to the data, seen from its own loop."""

from time import perf_counter

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

from hasten.loader.proof.holders import sharing
from hasten.loader.proofs import Proofs

HEAD = """\
import sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from hasten.loader.proof.prove import prove


class Rows(Dataset):
    def __init__(self, count=12):
        self.rows = [float(i) for i in range(count)]
        self.table = np.arange(count, dtype=np.float32)
        self.records = [{"weight": 1.0} for _ in range(count)]
        self.gain = 1.0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.gain * self.rows[i] + self.table[i] * self.records[i]["weight"] * SCALE


def told(loader):
    proof = prove(loader)
    print("whole" if proof.is_whole else f"{proof.gaps[0].reason.name} {proof.message}")


SCALE = 1.0
rows = Rows()
"""
LOOP = """\
loader = DataLoader(rows, batch_size=4)
model = torch.nn.Linear(1, 1)
for epoch in range(2):
    told(loader)
    for number, batch in enumerate(loader):
        batch = batch * 2
        {body}
"""
READ = {
    "nothing": "pass",
    "lengths": "print(len(loader.dataset.rows), len(rows.table), rows.table.shape)",
    "a figure": "print(rows.gain, rows.table.mean(), rows.rows[0], max(rows.rows))",
    "its own batch": "batch[0] = 3.0",
    "its model": "model.weight.data.mul_(0.5)",
    "its model, evaluated": "model.eval(); model.train()",
    "its own list": "kept = []; kept.append(rows); kept += [1]; kept[0] = 2",
    "a copy of an array": "mine = rows.table.copy(); mine[0] = 2.0",
    "another object": "model.gain = 2.0",
    "other rows": "other = Rows(); other_gain = other.gain",
    "warnings that are silenced": (
        "np.errstate(divide='ignore'); np.seterr(all='warn'); "
        "[one.filterwarnings(action='ignore', message='x') for one in ()]"
    ),
    "a comparison": "print(rows.gain > 2, [row for row in rows.rows if row > 3])",
}
WRITTEN = {
    "an attribute": "rows.gain = 2.0",
    "through the loader": "loader.dataset.gain = 2.0",
    "by name": "setattr(rows, 'gain', 2.0)",
    "by the setter of all objects": "object.__setattr__(rows, 'gain', 2.0)",
    "by the setter of a module": "builtins.setattr(rows, 'gain', 2.0)",
    "its class, by its type": "kind = type(rows); kind.gain = 2.0",
    "by a made name": "setattr(rows, 'ga' + 'in', 2.0)",
    "its dictionary": "rows.__dict__['gain'] = 2.0",
    "all of its variables": "vars(rows).update(gain=2.0)",
    "a variable of the module": "SCALE = 2.0",
    "the class": "Rows.__getitem__ = lambda self, i: 0.0",
    "its class": "rows.__class__ = type('Other', (Rows,), {})",
    "an executed text": "exec('rows.gain = 2.0')",
    "a text that a module executes": "__import__('builtins').exec('rows.gain = 2.0')",
    "a list": "rows.rows[0] = 2.0",
    "a list by a method": "rows.rows.append(2.0)",
    "an array": "rows.table[0] = 2.0",
    "a view": "view = rows.table[:4]; view *= 2",
    "an array in place": "np.add(rows.table, 1, out=rows.table)",
    "a record": "rows.records[0]['weight'] = 2.0",
    "each record": "for record in rows.records: record['weight'] = 2.0",
    "by another name": "mine = rows; mine.gain = 2.0",
    "each number of an array": "for number in rows.table[:, None]: number *= 2",
    "modules": "sys.modules['__main__'].SCALE = 2.0",
    "part of what getattr gives": "getattr(rows, 'table')[:4] = 2.0",
    "what is one of two": "one = rows.table if number else None; one[0] = 2.0",
    "the worst record": "worst = max(rows.records, key=len); worst['weight'] = 2.0",
    "a list of the same records": "same = rows.records + []; same[0]['weight'] = 2.0",
    "a copied list of the same records": "same = rows.records.copy(); same[0]['weight'] = 2.0",
    "what an item may be": "rows[0].mul_(2)",
    "it anew": "rows.__init__(24)",
    "a function that items read": "from math import floor as SCALE",
    "code that is not loaded yet": "import nobody_knows_this; nobody_knows_this.run(rows)",
    "by a patch": "mock.patch.object(rows, 'gain', 2.0).start()",
    "a setting of the process": "np.seterrcall(print)",
    "what raises from now on": "np.errstate(divide='raise').__enter__()",
    "warnings that raise": "warnings.simplefilter('error')",
    "a context of decimals": "decimal.setcontext(decimal.BasicContext)",
    "a backend": "torch.backends.mkldnn.flags(enabled=False).__enter__()",
    "a flag of Pillow's": "ImageFile.LOAD_TRUNCATED_IMAGES = True",
}


@pytest.mark.parametrize("body", READ.values(), ids=READ)
def test_a_loop_that_only_looks_leaves_the_proof_whole(said, body) -> None:
    assert said(HEAD + LOOP.format(body=body)) == ["whole", "whole"]


@pytest.mark.parametrize("body", WRITTEN.values(), ids=WRITTEN)
def test_a_loop_that_may_write_is_told_with_its_line(said, body) -> None:
    text = HEAD + LOOP.format(body=f"if number > 90:\n            {body}")
    first = said(text)[0]
    line = next(n for n, one in enumerate(text.splitlines(), 1) if one.strip() == body)
    assert first.startswith(("OWNED", "UNWRITTEN"))
    assert f"train.py:{line})" in first


OPTIONS = """
from argparse import Namespace
class More(Rows):
    def __getitem__(self, i):
        return self.rows[i] * self.args.size + self.args.sizes[0]
args = Namespace(size=2, sizes=[3, 4], lr=0.1)
rows = More()
rows.args = args
"""
TABLE = """
import pandas
class More(Rows):
    def __getitem__(self, i):
        return self.frame.iloc[i, 0]
rows = More()
rows.frame = pandas.DataFrame({"a": [1.0] * 12})
"""
HELPERS = """
from pathlib import Path
Path(__file__).with_name("helpers.py").write_text('''
def harder(data): data.gain = 2.0
class Sampler:
    def __init__(self, data): self.data = data
    def __iter__(self):
        self.data.gain = 2.0
        yield 1
''')
"""
MAPPED = """\
buffer = np.memmap('rows.bin', np.float32, 'w+', shape=(12,))
class More(Rows):
    def __getitem__(self, i):
        return torch.tensor(np.memmap('rows.bin', dtype=np.float32, mode='r', shape=(12,))[i])
rows = More()
"""
ELSEWHERE = {
    "a function that is called": (
        "def harder(data): data.gain = 2.0\n", "if number > 90: harder(rows)", "UNWRITTEN",
    ),
    "a function that is handed over": (
        "def harder(*_): rows.gain = 2.0\nhooks = [harder]\n", "hooks[0] if 0 else None",
        "UNWRITTEN",
    ),
    "a function that writes what it is given, of items that are but numbers": (
        "class Few(Rows):\n    def __getitem__(self, i): return self.gain * i\nrows = Few()\n"
        "def mark(one):\n    one['weight'] = 2.0\n    one['all'].append(3.0)\n"
        "map(mark, [{'all': []}])\n", "pass", "whole",
    ),
    "a function that writes what it is given, of items that read an heir of a deque": (
        "import collections\nclass Mine(collections.deque):\n    pass\n"
        "class Few(Rows):\n    def __getitem__(self, i): return self.mine[i]\n"
        "rows = Few()\nrows.mine = Mine(range(12))\n"
        "def mark(one):\n    one[0] = 2.0\nmap(mark, [[0.0]])\n", "pass", "OWNED",
    ),
    "a function that writes what it is given": (
        "def mark(one):\n    one['weight'] = 2.0\nmap(mark, [{'all': []}])\n", "pass", "OWNED",
    ),
    "a function that adds to what it is given": (
        "def mark(one):\n    one['all'].append(3.0)\nmap(mark, [{'all': []}])\n", "pass", "OWNED",
    ),
    "a function of its own named like Python's": (
        "def eval(data): return len(data)\n", "if number > 90: eval(rows)", "whole",
    ),
    "what a model applies": (
        "def start(m): m.gain.data.rows.fill_(0.0)\ntorch.nn.Linear(1, 1).apply\n"
        "if 0: torch.nn.Linear(1, 1).apply(start)\n",
        "if number > 90: model.apply(start)", "whole",
    ),
    "a class that looks into its parents": (
        "class More(Rows):\n    def __init__(self):\n        super(More, self).__init__()\n"
        "        self.fill()\n    def fill(self): self.gain = 2.0\nrows = More()\n",
        "pass", "whole",
    ),
    "what is applied to it": (
        "def start(m): m.gain = 2.0\n", "if number > 90: rows.apply(start)", "UNWRITTEN",
    ),
    "what is applied with it": (
        "def start(m, data): data.gain = 2.0\n", "if number > 90: model.apply(start, rows)",
        "UNWRITTEN",
    ),
    "a meter that writes itself": (
        "class Meter:\n    def __init__(self): self.gain = 1.0\n    def __str__(self):\n"
        "        return '{gain}'.format(**self.__dict__)\nmeter = Meter()\n",
        "print(meter)", "whole",
    ),
    "an object that shares its dictionary": (
        "class Meter:\n    def __str__(self):\n        self.__dict__['gain'] = 2.0\n"
        "        return ''\nmeter = Meter()\nmeter.__dict__ = rows.__dict__\n",
        "print(meter)", "OWNED",
    ),
    "an object that writes into its own dictionary": (
        "class Meter:\n    def __str__(self):\n        self.__dict__['gain'] = 2.0\n"
        "        return ''\nmeter = Meter()\n",
        "print(meter)", "whole",
    ),
    "a special method of a class without objects": (
        "class Sampler:\n    def __iter__(self):\n        rows.gain = 2.0\n        yield 1\n",
        "pass", "whole",
    ),
    "a special method of a class that has an object": (
        "class Sampler:\n    def __iter__(self):\n        rows.gain = 2.0\n        yield 1\n"
        "kept = {'a': [Sampler()]}\n", "pass", "UNWRITTEN",
    ),
    "a special method of the parent of a class that has one": (
        "class Sampler:\n    def __iter__(self):\n        rows.gain = 2.0\n        yield 1\n"
        "kept = type('Other', (Sampler,), {})()\n", "pass", "UNWRITTEN",
    ),
    "a special method of a class that is renamed": (
        "class Sampler:\n    def __iter__(self):\n        rows.gain = 2.0\n        yield 1\n"
        "Sampler.__name__ = 'Other'\nkept = [Sampler()]\n", "pass", "UNWRITTEN",
    ),
    "a special method of a class that the loop may make an object of": (
        "class Sampler:\n    def __iter__(self):\n        rows.gain = 2.0\n        yield 1\n",
        "if number > 90: list(Sampler())", "UNWRITTEN",
    ),
    "a method of its own named as if Python called it": (
        "class More(Rows):\n    def __init__(self):\n        super().__init__()\n"
        "        self.__read_data__()\n    def __read_data__(self): self.gain = 2.0\n"
        "rows = More()\n", "pass", "whole",
    ),
    "a method of its own that the loop calls": (
        "class More(Rows):\n    def __read_data__(self): self.gain = 2.0\nrows = More()\n",
        "if number > 90: rows.__read_data__()", "UNWRITTEN",
    ),
    "a protocol of a library": (
        "class More(Rows):\n    def __array_of__(self): self.gain = 2.0\nrows = More()\n",
        "pass", "UNWRITTEN",
    ),
    "options that are read": (
        OPTIONS, "if number > 90: print(args.lr, rows.args.size)", "whole",
    ),
    "options that are set": (OPTIONS, "if number > 90: args.size = 3", "UNWRITTEN"),
    "a list among options": (OPTIONS, "if number > 90: args.sizes.append(3)", "OWNED"),
    "options that are handed over": (OPTIONS, "if number > 90: list(map(print, [args]))", "OWNED"),
    "a table that is counted": (
        TABLE, "print(len(rows.frame.index), rows.frame.index[0])", "whole",
    ),
    "what a table lies on": (TABLE, "if number > 90: rows.frame.index.values[0] = 3", "OWNED"),
    "a function under another name": (
        HELPERS + "from helpers import harder as eased\n", "if number > 90: eased(rows)",
        "UNWRITTEN",
    ),
    "a class under another name": (
        HELPERS + "from helpers import Sampler as Other\n", "if number > 90: list(Other(rows))",
        "UNWRITTEN",
    ),
    "a function of nobody": ("def harder(data): data.gain = 2.0\n", "pass", "whole"),
    "a global of a function": (
        "def harder():\n    global SCALE\n    SCALE = 2.0\n", "if number > 90: harder()",
        "UNWRITTEN",
    ),
    "what came before the loop": ("rows.gain = 2.0\nrows.rows[0] = 1.0\n", "pass", "whole"),
    "an array that the script keeps": (
        "mine = rows.table\n", "if number > 90: mine[0] = 1.0", "OWNED",
    ),
    "memory that an array shares": (
        "mine = torch.from_numpy(rows.table)\n", "if number > 90: mine.zero_()", "OWNED",
    ),
    "memory of a byte array": (
        "RAW = bytearray(8)\nview = np.frombuffer(RAW, np.uint8)\n"
        "class More(Rows):\n    def __getitem__(self, i): return RAW[0]\nrows = More()\n",
        "if number > 90: view[0] = 1", "OWNED",
    ),
    "what a view is of": (
        "gains = {'a': 1.0}\nVIEW = __import__('types').MappingProxyType(gains)\n"
        "class More(Rows):\n    def __getitem__(self, i): return VIEW['a']\nrows = More()\n",
        "if number > 90: gains['a'] = 2.0", "PURE",
    ),
    "a function that a decorator keeps": (
        "hooks = []\ndef hook(f):\n    hooks.append(f)\n@hook\ndef harder(): rows.gain = 2.0\n",
        "if number > 90: hooks[0]()", "UNWRITTEN",
    ),
    "a method by its name": (
        "class More(Rows):\n    def harder(self): self.gain = 2.0\nrows = More()\n",
        "if number > 90: getattr(rows, 'hard' + 'er')()", "UNWRITTEN",
    ),
    "a function that returns it": (
        "def data(): return rows\n", "if number > 90: data().gain = 2.0", "UNWRITTEN",
    ),
    "a helper of a class": (
        "class Help:\n    @staticmethod\n    def harder(data): data.gain = 2.0\n",
        "if number > 90: Help.harder(rows)", "UNWRITTEN",
    ),
    "any number of arguments": (
        "def harder(*many):\n    for one in many: one.gain = 2.0\n",
        "if number > 90: harder(1, 2, rows)", "UNWRITTEN",
    ),
    "arguments by name": (
        "def harder(**many): many['data'].gain = 2.0\n", "if number > 90: harder(data=rows)",
        "UNWRITTEN",
    ),
    "an argument left out": (
        "def harder(data=rows): data.gain = 2.0\n", "if number > 90: harder()", "UNWRITTEN",
    ),
    "a box that it is put into": (
        "box = []\n", "if number > 90: box.append(rows); box[0].gain = 2.0", "UNWRITTEN",
    ),
    "a setter that is handed over": (
        "later = __import__('functools').partial(setattr, rows, 'gain', 2.0)\n",
        "if number > 90: later()", "UNWRITTEN",
    ),
    "a class of which there is one": (
        "class One:\n    made = None\n    def __new__(cls, *_):\n"
        "        cls.made = cls.made or super().__new__(cls)\n        return cls.made\n"
        "    def __init__(self, gain=1.0): self.gain = gain\nrows.gain = One()\n"
        "class More(Rows):\n    def __getitem__(self, i): return self.gain.gain\n"
        "mine, rows = rows, More()\nrows.gain = mine.gain\n",
        "if number > 90: One(2.0)", "UNWRITTEN",
    ),
    "the class of a class": (
        "class Meta(type):\n    def harder(cls): cls.gain = 2.0\n"
        "class Level(metaclass=Meta):\n    gain = 1.0\n"
        "class More(Rows):\n    def __getitem__(self, i): return Level.gain\nrows = More()\n",
        "if number > 90: Level.harder()", "UNWRITTEN",
    ),
    "a parameter that an optimizer steps": (
        "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.scale = torch.nn.Parameter(torch.ones(1))\n"
        "class More(Rows):\n    def __getitem__(self, i): return self.net.scale.item()\n"
        "rows = More()\nrows.net = Net()\n"
        "optimizer = torch.optim.SGD(rows.net.parameters(), 0.1)\n",
        "if number > 90: optimizer.step()", "UNWRITTEN",
    ),
    "files that items look for": (
        "import os\nclass More(Rows):\n"
        "    def __getitem__(self, i): return os.path.exists('label')\nrows = More()\n",
        "if number > 90: open('label', 'w')", "UNWRITTEN",
    ),
    "a mapped file": (
        "np.save('rows.npy', np.ones(12))\nclass More(Rows):\n"
        "    def __getitem__(self, i): return float(self.mapped[i])\nrows = More()\n"
        "rows.mapped = np.load('rows.npy', mmap_mode='r')\n",
        "if number > 90: np.load('rows.npy', mmap_mode='r+')[0] = 2", "UNWRITTEN",
    ),
    "a mapped file beside checkpoints": (
        "np.save('rows.npy', np.ones(12))\nclass More(Rows):\n"
        "    def __getitem__(self, i): return float(self.mapped[i])\nrows = More()\n"
        "rows.mapped = np.load('rows.npy', mmap_mode='r')\n",
        "if number > 90: torch.save(model.state_dict(), 'best.pt')", "whole",
    ),
    "statistics of a batch": (
        "class More(Rows):\n    def __getitem__(self, i):\n"
        "        x = torch.ones(2, 3)\n"
        "        return torch.nn.functional.batch_norm(x, self.mean, self.mean, training=True)\n"
        "rows = More()\nrows.mean = torch.ones(3)\n", "pass", "PURE",
    ),
    "holes that are filled": (
        "class More(Rows):\n"
        "    def __getitem__(self, i): return np.nan_to_num(self.table, copy=False).sum()\n"
        "rows = More()\n", "pass", "PURE",
    ),
    "a list of warnings": (
        "import warnings\nwarnings.showwarning = lambda *a, **k: None\n", "pass", "PURE",
    ),
    "a field of a named tuple": (
        "from collections import namedtuple\nSplits = namedtuple('Splits', 'train test')\n"
        "class Trainer:\n    def __init__(self, train): self.train = train\n"
        "data = Splits(rows, None)\n", "if number > 90: data.train.gain = 2.0", "UNWRITTEN",
    ),
    "a dictionary with attributes": (
        "class State(dict):\n    __getattr__ = dict.__getitem__\n"
        "class Trainer:\n    def __init__(self, train): self.train = train\n"
        "state = State(train=rows)\n", "if number > 90: state.train.gain = 2.0", "UNWRITTEN",
    ),
    "a buffer of a module": (
        "class Bank(torch.nn.Module):\n    def __init__(self, features):\n"
        "        super().__init__()\n        self.register_buffer('features', features)\n"
        "    def drop(self): self.features = None\n"
        "class More(Rows):\n    def __getitem__(self, i): return self.kept.features[i]\n"
        "rows = More()\nrows.kept = bank = Bank(torch.ones(12))\n",
        "if number > 90: bank.features[0] = 2.0", "OWNED",
    ),
    "an argument of a partial": (
        "level = __import__('functools').partial(np.copyto, rows.table)\n",
        "if number > 90: level(2.0)", "OWNED",
    ),
    "a file that items map anew and the script has mapped": (
        MAPPED, "if number > 90: buffer[3] = 2.0", "OWNED",
    ),
    "a file that items map anew": (MAPPED, "pass", "whole"),
    "a query that names a variable": (
        "import pandas as pd\nLEVEL = 1\nclass More(Rows):\n    def __getitem__(self, i):\n"
        "        return float(self.frame.query('a <= @LEVEL')['a'].sum())\n"
        "rows = More()\nrows.frame = pd.DataFrame({'a': range(3)})\n",
        "if number > 90: LEVEL = 2", "PURE",
    ),
    "records in an array": (
        "class More(Rows):\n    def __getitem__(self, i): return self.boxes[i]['weight']\n"
        "rows = More()\nrows.boxes = np.array([{'weight': 1.0}] * 12, dtype=object)\n"
        "first = [rows.boxes[0]]\n", "if number > 90: first[0]['weight'] = 2.0", "OWNED",
    ),
    "a figure by its name alone": (
        "class Size:\n    def __init__(self): self.h = 1\n"
        "class More(Rows):\n    def __getitem__(self, i): return self.config.size.h\n"
        "rows = More()\nrows.config = config = __import__('types').SimpleNamespace(size=Size())\n",
        "if number > 90: config.size.h = 2", "UNWRITTEN",
    ),
    "an array that is kept and left alone": ("mine = rows.table\n", "pass", "whole"),
    "a container that leads to it": (
        "kept = {'a': [rows.records]}\n", "if number > 90: kept['a'][0][0].clear()", "OWNED",
    ),
}  # fmt: skip
KEEPER = """
class Keeper:
    def __init__(self, table): self.table = table
    def step(self): self.table[0] = 2.0
KINDS = {"keeper": Keeper, "other": [Keeper]}
Kind = Keeper
def harder(data): data.gain = 2.0
def data(): return rows
"""
OTHER = """
class Other(Dataset):
    def __init__(self, table): self.table = table
    def __len__(self): return 2
    def __getitem__(self, i):
        part = self.table[i : i + 1]
        part[0] = 2.0
        return part
"""
BUILT = """
class More(Rows):
    def __init__(self, other=None):
        super().__init__()
        {init}
    def _load_it(self): self.gain = 2.0
    def _again(self): {again}
rows = More()
"""
# What a function, class or method is called by, or may not be called by.
CALLED = {
    "a class by a variable": (KEEPER, "if number > 90: Kind([1.0]).step()", "whole"),
    "a class of a table": (KEEPER, "if number > 90: KINDS['keeper']([1.0]).step()", "whole"),
    "a class by a variable, given it": (
        KEEPER, "if number > 90: Kind(rows.table).step()", "OWNED",
    ),
    "a class of a table, given it": (
        KEEPER, "if number > 90: KINDS['keeper'](rows.table).step()", "OWNED",
    ),
    "a class of a list in a table, given it": (
        KEEPER, "if number > 90: KINDS['other'][0](rows.table).step()", "OWNED",
    ),
    "a class by a variable of a variable, given it": (
        KEEPER + "Third = KINDS['keeper'] if SCALE else Kind\nThis = Third\n",
        "if number > 90: This(rows.table).step()", "OWNED",
    ),
    "a function by a variable": (
        KEEPER + "change = harder\n", "if number > 90: change(rows)", "UNWRITTEN",
    ),
    "a function by a variable of the loop": (
        KEEPER, "change = harder; number > 90 and change(rows)", "UNWRITTEN",
    ),
    "a function of a table that is handed on": (
        KEEPER + "TABLE = {'a': harder}\n",
        "if number > 90: list(map(TABLE['a'], [loader.dataset]))", "UNWRITTEN",
    ),
    "a function of a table": (
        KEEPER + "TABLE = {'a': harder}\n", "if number > 90: TABLE['a'](rows)", "UNWRITTEN",
    ),
    "a function of a table that is handed on by a variable": (
        KEEPER + "TABLE = {'a': harder}\n",
        "got = TABLE['a']; number > 90 and list(map(got, [loader.dataset]))", "UNWRITTEN",
    ),
    "functions of a table, one by one": (
        KEEPER + "TABLE = {'a': harder}\n",
        "if number > 90: [one(rows) for one in TABLE.values()]", "UNWRITTEN",
    ),
    "a function of a tuple": (
        KEEPER + "first, second = harder, len\n", "if number > 90: first(rows)", "UNWRITTEN",
    ),
    "a function that a class has": (
        KEEPER + "class Has:\n    change = harder\n", "if number > 90: Has.change(rows)",
        "UNWRITTEN",
    ),
    "a function that a library calls of a class": (
        KEEPER + "def moved(self, data): data.gain = 2.0\n"
        "class Net(torch.nn.Module):\n    forward = moved\n",
        "if number > 90: Net()(rows)", "UNWRITTEN",
    ),
    "a function by a text": (
        KEEPER + "change = harder\n",
        "if number > 90: getattr(sys.modules[__name__], 'change')(rows)", "UNWRITTEN",
    ),
    "a function by a variable that returns it": (
        KEEPER + "get = data\n", "if number > 90: get().gain = 2.0", "UNWRITTEN",
    ),
    "a setter by a variable": (
        "change = setattr\n", "if number > 90: change(rows, 'gain', 2.0)", "UNWRITTEN",
    ),
    "an object of another class": (
        OTHER, "if number > 90: Other(np.ones(3))[0]", "whole",
    ),
    "an object of another class that is given it": (
        OTHER, "if number > 90: Other(rows.table)[0]", "OWNED",
    ),
    "an object of another class that has it": (
        OTHER + "other = Other(rows.table)\n", "if number > 90: other[0]", "OWNED",
    ),
    "a method that builds": (
        BUILT.format(init="self._load_it()", again="pass"), "if number > 90: More()", "whole",
    ),
    "a method that builds, and is called": (
        BUILT.format(init="self._load_it()", again="pass"),
        "if number > 90: More().rows; rows._load_it()", "UNWRITTEN",
    ),
    "a method that builds, and again": (
        BUILT.format(init="self._load_it()", again="self._load_it()"),
        "if number > 90: More(); rows._again()", "UNWRITTEN",
    ),
    "a method that builds by itself": (
        BUILT.format(init="self._again()", again="self._load_it()"), "if number > 90: More()",
        "whole",
    ),
    "a method that builds something else": (
        BUILT.format(init="self = other or self; self._load_it()", again="pass"),
        "if number > 90: More(rows)", "UNWRITTEN",
    ),
    "a method that builds later": (
        BUILT.format(init="self.later = lambda: self._load_it()", again="pass"),
        "if number > 90: More(); rows.later()", "UNWRITTEN",
    ),
    "a method that nobody calls by its name": (
        BUILT.format(init="pass", again="pass"),
        "if number > 90: getattr(rows, '_load_it')()", "UNWRITTEN",
    ),
    "a method of it by a variable": (
        "class More(Rows):\n    def harden(self): self.table[0] = 2.0\nrows = More()\n"
        "again = rows.harden\n", "if number > 90: again()", "OWNED",
    ),
    "a method of what holds it by a variable": (
        "class Trainer:\n    def __init__(self, data): self.data = data\n"
        "    def fit(self):\n        at_end = self.harden if SCALE else self.rest\n"
        "        for number in range(2):\n            told(DataLoader(self.data))\n"
        "            if number > 90: at_end()\n"
        "    def harden(self): self.data.gain *= 0.5\n    def rest(self): pass\n"
        "Trainer(rows).fit()\n", "pass", "UNWRITTEN",
    ),
    "a method that builds, by its name": (
        BUILT.format(init="self._load_it()", again="pass"),
        "if number > 90: More(); getattr(rows, '_load_it')()", "UNWRITTEN",
    ),
    "a method that builds, by a name that is kept": (
        BUILT.format(init="self._load_it()", again="pass"),
        "later = getattr(loader.dataset, '_load_it'); number > 90 and (More(), later())",
        "UNWRITTEN",
    ),
    "a method that builds the class": (
        "class More(Rows):\n    gain = 1.0\n    def __init__(self):\n"
        "        self.rows, self.table = [1.0] * 12, np.ones(12)\n"
        "        self.records = [{'weight': 1.0}] * 12\n        self._load()\n"
        "    @classmethod\n    def _load(cls): cls.gain = 2.0\nrows = More()\n",
        "if number > 90: More()", "UNWRITTEN",
    ),
    "a method that builds step by step": (
        "class More(Rows):\n    def __init__(self):\n        super().__init__()\n"
        "        self.steps = self._steps()\n    def _steps(self):\n"
        "        self.gain = 2.0\n        yield\nrows = More()\n",
        "if number > 90: More(); next(rows.steps)", "UNWRITTEN",
    ),
    "a generator that has not begun": (
        "def steps(data):\n    data.gain = 2.0\n    yield\nfollowing = steps(rows)\n",
        "if number > 90: next(following)", "UNWRITTEN",
    ),
    "what a decorator puts into an object": (
        "from dataclasses import dataclass\n@dataclass\nclass Harder:\n    data: Rows\n"
        "    def __enter__(self): self.data.gain = 2.0\n    def __exit__(self, *_): pass\n",
        "with Harder(rows): pass", "UNWRITTEN",
    ),
    "what a class has": (
        "class Harder:\n    data = None\n    def __enter__(self): self.data.gain = 2.0\n"
        "    def __exit__(self, *_): pass\nHarder.data = rows\n",
        "with Harder(): pass", "UNWRITTEN",
    ),
    "what a library puts into an object": (
        "from torch.utils.data import Subset\nclass Part(Subset):\n"
        "    def __getitem__(self, i):\n        self.dataset.gain = 2.0\n        return 1.0\n",
        "if number > 90: Part(rows, [1])[0]", "UNWRITTEN",
    ),
    "a function of two variables": (
        KEEPER + "first = second = harder\n",
        "number > 90 and list(map(second, [loader.dataset]))", "UNWRITTEN",
    ),
    "a function of a list that is made of variables": (
        KEEPER + "hard = harder if SCALE else data\n",
        "[print, hard][number > 90](rows)", "UNWRITTEN",
    ),
    "a function or a setter by a variable": (
        "def count(*many): pass\nchange = count if SCALE > 9 else setattr\n",
        "number > 90 and change(rows, 'gain', 2.0)", "UNWRITTEN",
    ),
    "a class that is one, by its parent": (
        "class One:\n    made = None\n    def __new__(cls):\n"
        "        cls.made = cls.made or super().__new__(cls)\n        return cls.made\n"
        "class Options(One):\n    def __init__(self): self._load()\n"
        "    def _load(self): self.gain = 2.0\n"
        "class More(Rows):\n    def __getitem__(self, i): return self.options.gain\n"
        "rows = More()\nrows.options = Options()\n",
        "if number > 90: Options()", "UNWRITTEN",
    ),
    "an object by a computed text, before": (
        "act = getattr(torch.nn, ''.join(['Re', 'LU']))()\n"
        "def adjust(optimizer, epoch):\n"
        "    for group in optimizer.param_groups: group['lr'] = 0.1 ** epoch\n"
        "optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)\n",
        "adjust(optimizer, epoch)", "whole",
    ),
    "a function that an option is called like": (
        "class Options: train = True\n"
        "def train(optimizer): optimizer.param_groups[0]['lr'] = 0.1\n"
        "optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)\n",
        "train(optimizer) if getattr(Options, 'train', False) else None", "whole",
    ),
    "a transform that works in place": (
        "def erase(image):\n    image[:1] = 0.0\n    return image\nclass More(Rows):\n"
        "    def __init__(self, transform):\n        super().__init__()\n"
        "        self.transform = transform\n"
        "    def __getitem__(self, i): return self.transform(self.table[i : i + 1].copy())\n"
        "rows = More(transform=erase)\n", "pass", "whole",
    ),
    "a field of a tuple": (
        "from typing import NamedTuple\nclass Setup(NamedTuple):\n    data: Rows\n"
        "    rate: float\nsetup = Setup(rows, 0.1)\n",
        "if number > 90: setup.data.gain = 2.0", "UNWRITTEN",
    ),
    "what a decorator puts into an object, named like another": (
        "from dataclasses import dataclass\n@dataclass\nclass Harder:\n    data: Rows\n"
        "    def __enter__(self): self.data.gain = 2.0\n    def __exit__(self, *_): pass\n"
        "class Table:\n    def __init__(self): self.data = []\n",
        "with Harder(rows): pass", "UNWRITTEN",
    ),
    "numbers among options": (
        "from dataclasses import dataclass\n@dataclass\nclass Config:\n    size: int = 4\n"
        "    lr: float = 0.1\nconfig = Config()\nclass More(Rows):\n"
        "    def __getitem__(self, i): return self.rows[i] * self.config.size\n"
        "rows = More()\nrows.config = config\ndef rate(epoch):\n    lr = config.lr\n"
        "    lr *= 0.5 ** epoch\n    return lr\n", "rate(epoch)", "whole",
    ),
    "a constructor that the one object inherits": (
        "class Base:\n    def __init__(self): self.gain = 1.0\nclass Options(Base):\n"
        "    made = None\n    def __new__(cls):\n"
        "        cls.made = cls.made or super().__new__(cls)\n        return cls.made\n"
        "class More(Rows):\n    def __getitem__(self, i): return self.options.gain\n"
        "rows = More()\nrows.options = Options()\nrows.options.gain = 3.0\n",
        "if number > 90: Options()", "UNWRITTEN",
    ),
    "a function of items out of a table": (
        "class Sample:\n    def __init__(self, gain): self.gain = gain\n"
        "def jitter(one):\n    one.gain = one.gain * 0.5\n    return one\n"
        "TABLE = {'jitter': jitter}\nclass More(Rows):\n"
        "    def __getitem__(self, i): return jitter(Sample(self.gain)).gain\nrows = More()\n",
        "if number > 90: TABLE['jitter'](rows)", "UNWRITTEN",
    ),
    "new numbers of its size": (
        "", "mine = torch.zeros([len(rows), rows.table.size]).to('cpu'); mine[0] = 1.0", "whole",
    ),
    "a function that a method of lists is called like": (
        "def append(rows, row): rows.append(row)\n", "kept = []; kept.append(rows)", "whole",
    ),
    "a function that a method is called like, and that could be called so": (
        "def append(rows, row=2.0): rows.append(row)\n",
        "if number > 90: [].append(rows)", "OWNED",
    ),
    "a function that a method is called like, with all that it needs": (
        "def append(rows, row): rows.append(row)\n",
        "if number > 90: model.append(rows, 2.0)", "OWNED",
    ),
    "a function that a method is called like, with what a keyword gives it": (
        "def append(row, rows): rows.append(row)\n",
        "if number > 90: model.append(rows=rows)", "OWNED",
    ),
    "a function that a method is called like, with what a table gives it": (
        "def append(row, rows): rows.append(row)\n",
        "if number > 90: model.append(*[2.0, rows])", "OWNED",
    ),
    "an option that needs what is not installed": (
        "def count():\n    import nobody_knows_this\n", "if number > 90: count()", "whole",
    ),
    "an option that looks elsewhere": (
        "def count():\n    sys.path.append('more')\n    import nobody_knows_this\n",
        "if number > 90: count()", "UNWRITTEN",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "body", "reason"), CALLED.values(), ids=CALLED)
def test_what_is_called_by_another_name_is_followed(said, before, body, reason) -> None:
    assert said(HEAD + before + LOOP.format(body=body))[0].split()[0] == reason


@pytest.mark.parametrize(("before", "body", "reason"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_code_elsewhere_counts_where_it_can_still_run(said, before, body, reason) -> None:
    assert said(HEAD + before + LOOP.format(body=body))[0].split()[0] == reason


def test_what_is_handed_over_is_told_with_its_line(said) -> None:
    before, body, _ = ELSEWHERE["a setter that is handed over"]
    line = 1 + HEAD.count("\n")
    told = said(HEAD + before + LOOP.format(body=body))[0]
    assert "hands setattr over, for anybody to call" in told
    assert f"train.py:{line})" in told


PARENT = """
class Base(Dataset):
    def __init__(self, data=None):
        if data is not None:
            data.gain = 2.0
        self.data = data
        self.rows = [1.0] * 12
        self.most = max(map(float, self.rows))
    def __len__(self): return 12
    def __getitem__(self, i): return self.rows[i]
"""
TOLD = PARENT + "class More(Base):\n    def __init__(self, data): {told}\n"
SCALED = """
class More(Rows):
    def __init__(self, data=None):
        super().__init__()
        self.table = self.__scaled(np.arange(12.0) if data is None else data)
    def __scaled(self, target):
        target[target <= 3] = 0
        return target.astype(np.float32)
rows = More()
"""
HIDDEN = """
class Help:
    def __harder(self, data): data.gain = 2.0
help = Help()
"""
UNMADE = """
class Other(Rows):
    def fill(self, data): data.rows.append(2.0)
    def look(self): return self.fill
"""
DICT = """
class Easy(dict):
    def __setattr__(self, name, value): self[name] = value
easy = Easy(gain=1.0)
"""
NAMES = """
import os
class More(Rows):
    def __getitem__(self, i): return len(self.names[i])
rows = More()
rows.names = ["a"] * 12
"""
CLASSES = {
    "a parent whose parts its building uses": (
        PARENT + "class More(Base): pass\nrows = Base()\n", "pass", "whole",
    ),
    "a parent that is told what it reads": (
        TOLD.format(told="super().__init__(data)") + "rows = More(None)\n",
        "if number > 90: More(rows)", "OWNED",
    ),
    "a parent that is told by its name": (
        TOLD.format(told="Base.__init__(self, data)") + "rows = More(None)\n",
        "if number > 90: More(rows)", "OWNED",
    ),
    "a parent that builds its heir": (
        PARENT + "class More(Base): pass\nrows = More()\n", "if number > 90: More(rows)",
        "OWNED",
    ),
    "a parent whose heir is handed over": (
        PARENT + "class More(Base): pass\nrows, kinds = More(), [More]\n",
        "if number > 90: kinds[0](rows)", "OWNED",
    ),
    "a method of the parent": (
        "class Base(Rows):\n    def put(self): self.rows.append(1.0)\n"
        "class More(Base):\n    def grow(self): super().put()\nrows = More()\n",
        "if number > 90: rows.grow()", "OWNED",
    ),
    "a class that is only compared": (SCALED, "if isinstance(rows, More): print(2)", "whole"),
    "a class that is compared with others": (
        SCALED, "if issubclass(type(rows), (list, More)): print(2)", "whole",
    ),
    "a class that is compared by code of the script": (
        "def isinstance(one, kind): return kind(one)\n" + SCALED,
        "if number > 90: isinstance(rows.table, More)", "OWNED",
    ),
    "a class that its own class compares": (
        "class Meta(type):\n    def __instancecheck__(cls, one): return cls(one)\n" + SCALED,
        "if number > 90: isinstance(rows.table, More)", "OWNED",
    ),
    "a private method that only building calls": (SCALED, "if number > 90: More()", "whole"),
    "a private method that gets what is read": (
        SCALED, "if number > 90: More(rows.table)", "OWNED",
    ),
    "a private method that is called by its other name": (
        HIDDEN, "if number > 90: help._Help__harder(rows)", "UNWRITTEN",
    ),
    "a private method that is found by its other name": (
        HIDDEN, "if number > 90: getattr(help, '_Help__harder')(rows)", "UNWRITTEN",
    ),
    "a private method that is handed over by its other name": (
        HIDDEN, "if number > 90: list(map(help._Help__harder, [loader.dataset]))", "UNWRITTEN",
    ),
    "a private setter that is called by its other name": (
        "class More(Rows):\n    def __init__(self):\n        super().__init__()\n"
        "        self.__set()\n    def __set(self): self.gain = 2.0\nrows = More()\n",
        "if number > 90: More(); rows._More__set()", "UNWRITTEN",
    ),
    "a class that makes one of itself": (
        "class Help:\n    def __init__(self, data): data.gain = 2.0\n    @classmethod\n"
        "    def make(cls, data): return cls(data)\n", "if number > 90: Help.make(rows)",
        "UNWRITTEN",
    ),
    "an object that makes another of its class": (
        "class Help:\n    def __init__(self, data=None):\n        if data: data.gain = 2.0\n"
        "    def make(self, data): return type(self)(data)\nhelp = Help()\n",
        "if number > 90: help.make(rows)", "UNWRITTEN",
    ),
    "a method that is called by its class": (
        "class Help:\n    def harder(self, data): data.gain = 2.0\n",
        "if number > 90: Help.harder(1, rows)", "UNWRITTEN",
    ),
    "a method of a class without objects": (UNMADE, "model.fill = len", "whole"),
    "a method of a class that has an object": (
        UNMADE + "kept = {'a': [Other()]}\n", "model.fill = len", "OWNED",
    ),
    "a method of a class that is unpickled": (
        UNMADE + "import pickle\n", "if number > 90: pickle.loads(b'').fill(rows)", "OWNED",
    ),
    "a method of a class that is found by its parent": (
        UNMADE, "if number > 90: Rows.__subclasses__()[0]().fill(rows)", "OWNED",
    ),
    "a lambda of a function that nobody calls": (
        "def start():\n    return lambda data: data.rows.append(1.0)\n", "pass", "whole",
    ),
    "a lambda that is kept": (
        "def start():\n    return lambda data: data.rows.append(1.0)\nkept = [start()]\n", "pass",
        "OWNED",
    ),
    "a lambda of a function that the loop calls": (
        "def start():\n    return lambda data: data.rows.append(1.0)\n",
        "if number > 90: start()(rows)", "OWNED",
    ),
    "a lambda of a module": ("kept = [lambda: rows.rows.append(1.0)]\n", "pass", "OWNED"),
    "a lambda of the loop": ("", "kept = lambda: rows.rows.append(1.0)", "OWNED"),
    "a text whose method has the name of one of its own": (
        "class Words:\n    def encode(self): return rows\nmark = __import__('hashlib').sha256()\n",
        "if number > 90: data = repr(batch).encode(); data += b'.'; Words", "whole",
    ),
    "a method of its own that has the name of a text's": (
        "class Words:\n    def encode(self): return rows\n",
        "if number > 90: data = Words().encode(); data.gain = 2.0", "UNWRITTEN",
    ),
    "a path that is made of what it reads": (
        NAMES, "name = os.path.join('a', rows.names[0]); name += '.pt'", "whole",
    ),
    "a function of its own that has the name of a path's": (
        NAMES + "def join(one, other): return other\n",
        "if number > 90: mine = join('a', rows); mine.names = []", "UNWRITTEN",
    ),
    "a method of its own class that does nothing": (
        "class More(Rows):\n    def __del__(self): self.close()\n    def close(self): pass\n"
        "rows = More()\n", "pass", "whole",
    ),
    "a method of its own class that writes": (
        "class More(Rows):\n    def __del__(self): self.close()\n"
        "    def close(self): self.rows.clear()\nrows = More()\n", "pass", "OWNED",
    ),
    "a dictionary of its own that items do not read": (DICT, "easy.gain = 2.0", "whole"),
    "a dictionary of its own that items read": (
        DICT + "class More(Rows):\n    def __getitem__(self, i): return self.easy['gain']\n"
        "rows = More()\nrows.easy = easy\n", "if number > 90: easy.level = 2.0", "OWNED",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "body", "reason"), CLASSES.values(), ids=CLASSES)
def test_classes_are_followed_to_their_parents_and_their_objects(
    said, before, body, reason
) -> None:
    assert said(HEAD + before + LOOP.format(body=body))[0].split()[0] == reason


def test_a_loop_in_functions_is_followed_through_its_calls(said) -> None:
    train = (
        "def train(model, loader, epoch):\n"
        "    for x in loader:\n"
        "        x.data = x.data * 2\n"
        "def main():\n"
        "    loader = DataLoader(Rows(), batch_size=4)\n"
        "    for epoch in range(2):\n"
        "        told(loader)\n"
        "        train(None, loader, epoch)\n"
        "        {after}\n"
        "main()\n"
    )
    assert said(HEAD + train.format(after="pass")) == ["whole", "whole"]
    assert said(HEAD + train.format(after="loader.dataset.gain = epoch"))[0].startswith("UNWRITTEN")


def test_a_local_that_a_transform_encloses_is_set_where_it_is_bound(said) -> None:
    text = (
        "def main():\n"
        "    gain = 1.0\n"
        "    rows = [1.0, 2.0, 3.0]\n"
        "    def collate(many): return torch.tensor(many) * gain\n"
        "    loader = DataLoader(rows, batch_size=2, collate_fn=collate)\n"
        "    for epoch in range(2):\n"
        "        told(loader)\n"
        "        {after}\n"
        "main()\n"
    )
    assert said(HEAD + text.format(after="other = 2.0")) == ["whole", "whole"]
    assert said(HEAD + text.format(after="gain = 2.0"))[0].startswith("UNWRITTEN")


def test_a_batch_that_a_trainer_writes_into_is_its_own(said) -> None:
    text = (
        "class Trainer:\n"
        "    def __init__(self, loader):\n"
        "        self.loader, self.history = loader, []\n"
        "    def fit(self):\n"
        "        for x in self.loader:\n"
        "            told(self.loader)\n"
        "            x += 1.0\n"
        "            self.history.append(x.sum())\n"
        "trainer = Trainer(DataLoader(rows, batch_size=6))\n"
        "trainer.fit()\n"
    )
    assert said(HEAD + text) == ["whole", "whole"]


MAIN = """\
def main():
    rows = Rows()
    rows.gain = 2.0
    loader = DataLoader(rows, batch_size=4)
    for epoch in range(2):
        told(loader)
        for batch in loader:
            batch * 2
{after}

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("after", "reason"), [("", "whole"), ("        rows.gain = 3.0", "UNWRITTEN")]
)
def test_a_main_function_that_is_running_is_not_called_again(said, after, reason) -> None:
    assert said(HEAD + MAIN.format(after=after))[0].split()[0] == reason


BAR = """
from torchvision.transforms import v2
class More(Rows):
    def __init__(self):
        super().__init__()
        self.change = v2.Identity()
        self.change.register_buffer("scale", torch.ones(1))
    def __getitem__(self, i): return self.change(torch.ones(1)) * self.rows[i]
def epoch(loader):
    bar = {bar}
    for batch in bar:
        told(loader)
        batch = batch.to("cpu")
        {after}
epoch(DataLoader(More(), batch_size=6))
"""
BARS = {
    "tqdm": ("__import__('tqdm').tqdm(loader, disable=True)", "pass", "whole"),
    "an iterator": ("iter(loader)", "pass", "whole"),
    "what is read": ("loader", "loader.dataset.change.to('cpu')", "UNWRITTEN"),
    "a bar over what is read": (
        "__import__('tqdm').tqdm([loader.dataset.change], disable=True)", "pass", "UNWRITTEN",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("bar", "after", "reason"), BARS.values(), ids=BARS)
def test_batches_that_come_through_a_bar_are_batches(said, bar, after, reason) -> None:
    pytest.importorskip("tqdm")
    pytest.importorskip("torchvision")
    assert said(HEAD + BAR.format(bar=bar, after=after))[0].split()[0] == reason


def test_what_python_starts_with_is_no_part_of_the_script(tmp_path) -> None:
    from hasten.loader.proof.source import is_user_file

    assert is_user_file(str(tmp_path / "customize.py"))
    assert not is_user_file(str(tmp_path / "sitecustomize.py"))


HIDDEN = {
    "a variable that is declared before the loop": (
        """
def main():
    global SCALE
    loader = DataLoader(rows, batch_size=4)
    for epoch in range(2):
        for batch in loader:
            told(loader)
            SCALE *= 0.5
main()
""",
        "UNWRITTEN",
    ),
    "a variable of the function around, declared before the loop": (
        """
def around():
    level = 1.0
    class More(Rows):
        def __getitem__(self, i): return self.rows[i] * level
    loader = DataLoader(More(), batch_size=4)
    def train():
        nonlocal level
        for batch in loader:
            told(loader)
            level *= 0.5
    train()
around()
""",
        "UNWRITTEN",
    ),
    "the dataset of a trainer, by a callback": (
        """
class Level:
    __slots__ = ("share",)
class More(Rows):
    def __init__(self):
        super().__init__()
        self.level = Level()
        self.level.share = 1.0
    def __getitem__(self, i): return self.rows[i] * self.level.share
class Trained(torch.nn.Linear):
    def extra_repr(self, trainer=None):
        if trainer: trainer.loader.dataset.level.share = 0.5
        return ""
loader, net = DataLoader(More(), batch_size=4), Trained(1, 1)
for batch in loader:
    told(loader)
    repr(net)
""",
        "UNWRITTEN",
    ),
    "a list of a class, by a method": (
        """
class More(Rows):
    weights = [1.0] * 12
    def __getitem__(self, i): return self.rows[i] * self.weights[i]
    def anneal(self): type(self).weights[:] = [0.5] * 12
rows = More()
loader = DataLoader(rows, batch_size=4)
for batch in loader:
    told(loader)
    rows.anneal()
""",
        "OWNED",
    ),
    "what a dataclass is ordered by": (
        """
from dataclasses import dataclass, field
@dataclass(order=True)
class Record:
    score: float
    row: int = field(compare=False)
class More(Rows):
    def __init__(self):
        super().__init__()
        self.tries = tuple(tuple(Record(0.0, n) for n in range(3)) for _ in range(12))
    def __getitem__(self, i): return max(self.tries[i]).row
rows = More()
loader = DataLoader(rows, batch_size=4)
for batch in loader:
    told(loader)
    rows.tries[0][1].score = 2.0
""",
        "UNWRITTEN",
    ),
    "an episode that was drawn": (
        """
class Episode:
    def __init__(self): self.weight = 1.0
class More(Rows):
    def __init__(self):
        super().__init__()
        self.episodes = [Episode() for _ in range(12)]
    def __getitem__(self, i): return self.episodes[i : i + 1][0].weight
rows = More()
loader = DataLoader(rows, batch_size=4)
for batch in loader:
    told(loader)
    for one in rows.episodes: one.weight *= 0.9
""",
        "UNWRITTEN",
    ),
    "a class of what is made for an item": (
        """
class Noise:
    strength = 0.0
    def __call__(self, x): return x + self.strength
class More(Rows):
    def __getitem__(self, i): return Noise()(self.rows[i])
loader = DataLoader(More(), batch_size=4)
for batch in loader:
    told(loader)
    Noise.strength = 2.0
""",
        "UNWRITTEN",
    ),
    "one of two kinds of paths": (
        """
class Sample:
    def __init__(self, path): self.path = path
class More(Rows):
    def __init__(self):
        super().__init__()
        self.samples, self.cache = [Sample("a.png"), Sample("b.npy")] * 6, {}
    def __getitem__(self, i):
        sample = self.samples[i]
        if sample.path.endswith(".npy"):
            return 1.0
        self.cache[i] = self.rows[i]
        return 2.0
loader = DataLoader(More(), batch_size=4)
for batch in loader:
    told(loader)
""",
        "PURE",
    ),
    "members of two dictionaries": (
        """
class More(Rows):
    def __init__(self):
        super().__init__()
        self.extra = {"box": np.ones(2)}
    def __getitem__(self, i):
        record = self.records[i] | self.extra
        record["box"] *= 2.0
        return record["box"].copy()
loader = DataLoader(More(), batch_size=4)
for batch in loader:
    told(loader)
""",
        "PURE",
    ),
    "a stage that is no function": (
        """
import functools
from torchvision import transforms as T
def jitter(x, amount): return x + SCALE * amount
class More(Rows):
    def __init__(self):
        super().__init__()
        self.change = T.Compose([T.Normalize(0.0, 1.0), functools.partial(jitter, amount=2.0)])
    def __getitem__(self, i): return self.change(torch.ones(1, 2, 2))
loader = DataLoader(More(), batch_size=4)
for batch in loader:
    told(loader)
    SCALE = 2.0
""",
        "UNWRITTEN",
    ),
    "the list of a sampler of batches": (
        """
from torch.utils.data import BatchSampler, SubsetRandomSampler
some = [*range(12)]
order = SubsetRandomSampler(some)
loader = DataLoader(rows, batch_sampler=BatchSampler(order, 4, False))
for batch in loader:
    told(loader)
    order.indices[0] = 3
""",
        "UNWRITTEN",
    ),
}


LATE = {
    "a variable that is set before the loop": """
def main():
    global SCALE
    SCALE = 2.0
    loader = DataLoader(rows, batch_size=4)
    for batch in loader: told(loader)
main()
""",
    "objects that set themselves up once": """
from dataclasses import dataclass
@dataclass(frozen=True)
class Settings:
    gain: float
    def __post_init__(self): object.__setattr__(self, "gain", 2 * self.gain)
class More(Rows):
    def __init__(self):
        super().__init__()
        self.settings = Settings(1.0)
    def __getitem__(self, i): return self.rows[i] * self.settings.gain
loader = DataLoader(More(), batch_size=4)
for batch in loader:
    told(loader)
    other = Settings(2.0)
""",
    "a network that adds in place": """
class Block(torch.nn.Linear):
    def forward(self, x):
        mean = x.mean()
        x = super().forward(x)
        x += mean
        return x
class More(Rows):
    mean = 0.5
    def __getitem__(self, i): return torch.full((1,), self.rows[i] - self.mean)
loader, net = DataLoader(More(), batch_size=4), Block(1, 1)
for batch in loader:
    told(loader)
    loss = net(batch).sum()
    loss += 1
""",
    "the type of what is read, for a look": """
loader = DataLoader(rows, batch_size=4)
for batch in loader:
    told(loader)
    print(type(rows).__name__, type(batch) is type(rows.table))
""",
}


@pytest.mark.parametrize("text", LATE.values(), ids=LATE)
def test_what_does_no_harm_leaves_the_proof_whole(said, text) -> None:
    assert set(said(HEAD + text)) == {"whole"}


@pytest.mark.parametrize(("text", "reason"), HIDDEN.values(), ids=HIDDEN)
def test_what_is_written_is_found_where_the_way_to_it_was_lost(said, text, reason) -> None:
    if "torchvision" in text:
        pytest.importorskip("torchvision")
    assert said(HEAD + text)[0].split()[0] in (reason, "OWNED")


def test_another_sampler_of_the_same_dataset_is_another_proof() -> None:
    rows = [1.0, 2.0, 3.0, 4.0]

    class Rows(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return rows[i]

    proofs, data = Proofs(), Rows()
    order = SubsetRandomSampler([0, 1])
    plain = DataLoader(data, 2)
    assert proofs.of(plain) is proofs.of(plain)
    other = DataLoader(data, 2, sampler=order)
    assert proofs.of(other) is not proofs.of(plain)
    assert proofs.of(other) is proofs.of(other)


RETURNED = """
def told_once(loader):
    told(loader)
    return [batch for batch in loader]
def told_number(loader): return len(told_once(loader))
def build():
    data = Rows()
    told_once(DataLoader(data, batch_size=4))
    return data, 1
"""


@pytest.mark.parametrize(
    ("first", "later", "found"),
    [
        ("mine, _ = build()", "mine.gain = 2.0", "UNWRITTEN"),
        ("rows.table[:] = told_number(DataLoader(rows))", "", "OWNED"),
        ("kept = told_once(DataLoader(rows))", "kept[0] = 2.0", "whole"),
    ],
    ids=["its result is the data", "its result is written into it", "its result is anything"],
)
def test_a_call_that_is_running_gives_its_result_a_name(said, first, later, found) -> None:
    assert said(f"{HEAD}{RETURNED}{first}\n{later}\n")[0].startswith(found)


CONFIG = """\
import torch
cfg = {"scale": 1.0}
ROWS = [1.0, 2.0] * 6
LEVEL = torch.ones(1)
class Config:
    params = {"scale": 1.0}
"""
DATA = """\
from torch.utils.data import Dataset
import config
from config import Config, cfg
class Rows(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, i):
        scale = cfg["scale"] * Config.params["scale"] * config.LEVEL.item()
        return scale * config.ROWS[i]
"""
TRAINED_ELSEWHERE = """\
import random
import torch
from torch.utils.data import DataLoader
import config, data
from hasten.loader.proof.prove import prove

loader = DataLoader(data.Rows(), batch_size=4)
for epoch in range(2):
    proof = prove(loader)
    print("whole" if proof.is_whole else f"{proof.gaps[0].reason.name} {proof.message}")
    for batch in loader:
        BODY
"""
SET_IN_A_MODULE = (
    "config.cfg['scale'] = 0.5", "config.cfg.update(scale=0.5)", "config.LEVEL.fill_(0.5)",
    "random.shuffle(config.ROWS)", "config.Config.params['scale'] = 0.5",
    "config.Config.params.get('sub', config.cfg)['scale'] = 0.5",
)  # fmt: skip
LOOKED_AT = (
    "print(config.cfg['scale'], len(config.ROWS), config.Config.params)",
    "torch.save({'config': config.cfg, 'epoch': epoch}, '/dev/null')",
    "print({value: key for key, value in config.cfg.items()}, config.cfg.get('scale'))",
    "weights = torch.tensor(config.ROWS); weights.mul_(2)",
    "batch = torch.nn.functional.relu_(batch.mul_(2))",
)


@pytest.mark.parametrize(
    ("body", "is_whole"),
    [*((body, False) for body in SET_IN_A_MODULE), *((body, True) for body in LOOKED_AT)],
)
def test_tables_of_modules_are_written_through_the_name_of_the_module(
    said, tmp_path, body, is_whole
) -> None:
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "data.py").write_text(DATA)
    found = said(TRAINED_ELSEWHERE.replace("BODY", body))
    assert found == ["whole", "whole"] if is_whole else found[0].startswith("OWNED")


def test_code_of_a_module_that_no_table_knows_counts(said, tmp_path) -> None:
    (tmp_path / "plans.py").write_text("def harder(data): data.gain = 2.0\n")
    load = (
        "import importlib.util as util\n"
        "spec = util.spec_from_file_location('plans', 'plans.py')\n"
        "plans = util.module_from_spec(spec)\nspec.loader.exec_module(plans)\n"
    )
    text = HEAD + load + LOOP.format(body="plans.harder(rows)")
    assert said(text)[0].startswith("UNWRITTEN")


OBJECTS = """\
from dataclasses import dataclass
class Record:
    weight = 1.0
@dataclass
class Some(Dataset):
    epoch: int = 0
    def __post_init__(self):
        self.records = [Record() for _ in range(12)]
        self.gain = 1 / (1 + self.epoch)
    def __len__(self):
        return 12
    def __getitem__(self, i):
        return self.gain * self.records[i].weight
rows, easy = Some(), set()
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("for one in set(rows.records) - easy: one.weight = 2.0", "UNWRITTEN"),
        ("rows.epoch = epoch; rows.__post_init__()", "UNWRITTEN"),
        ("print(len(rows.records) - len(easy))", "whole"),
    ],
)
def test_parts_of_a_set_are_what_they_are_and_an_object_may_be_made_anew(
    said, body, reason
) -> None:
    assert said(HEAD + OBJECTS + LOOP.format(body=body))[0].startswith(reason)


PICTURES = """\
import os
import pandas as pd
from PIL import Image
class Pictures(Dataset):
    def __init__(self):
        self.table = pd.DataFrame({"file": [f"{i}.png" for i in range(12)], "label": range(12)})
    def __len__(self):
        return 12
    def __getitem__(self, i):
        with Image.open(os.path.join("pictures", self.table.iloc[i, 0])) as file:
            pixels = torch.from_numpy(np.array(file)).float().div_(255.0)
        return pixels, torch.tensor(self.table.loc[i, "label"])
rows = Pictures()
loader = DataLoader(rows, batch_size=4)
told(loader)
print(rows.table["label"].value_counts())
"""


def test_pictures_whose_names_stand_in_a_table_are_proved(said) -> None:
    assert said(HEAD + PICTURES) == ["whole"]


def test_what_lies_in_the_memory_of_others_is_found() -> None:
    table, other = torch.arange(12.0), torch.ones(3)
    rows = numpy.asarray(table)
    views = [table[2:4], table.view(3, 4), rows[3:5], other, torch.empty(0), rows[:3], rows[8:]]
    found = sharing([rows[3:8], torch.ones(1)], views)
    assert found == {id(one) for one in views[:3]}
    assert sharing([], views) == set()


def test_many_samples_that_are_tensors_of_their_own_are_compared_in_a_moment() -> None:
    """Each with each, these would be a thousand million pairs, and minutes."""
    samples = [torch.ones(2) for _ in range(30_000)]
    begun = perf_counter()
    assert len(sharing(samples, samples)) == len(samples)
    assert perf_counter() - begun < 10.0
