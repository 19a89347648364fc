"""Ways on which what items read comes to code that writes it, once training has begun."""

import pytest

HEAD = """\
import array, contextlib, heapq, inspect, logging, os, threading, weakref
from multiprocessing import RawArray
from multiprocessing.pool import ThreadPool
from pathlib import Path
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from hasten.loader.proof.prove import prove


class Rows(Dataset):
    def __init__(self, table=None):
        self.table = np.arange(12, dtype=np.float32) if table is None else table
        self.gain = 1.0

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return float(self.table[i]) * self.gain


def told(loader):
    proof = prove(loader)
    print("whole" if proof.is_whole else f"{proof.gaps[0].reason.name} {proof.message}")


"""
LOOP = """
loader = DataLoader(rows, batch_size=4)
def main():
    for epoch in range(2):
        told(loader)
        for x in loader:
            x = x * 2
        advance()
main()
"""
FETCH = """
rows = Rows()
def fetch(): return rows
class Holder:
    def __init__(self, get): self.get = get
    def soften(self): self.get().gain = 0.5
def use(get): get().gain = 0.5
"""
METHODS = """
rows = Rows()
class Source:
    def bound(self): return rows
    @staticmethod
    def static(): return rows
    @classmethod
    def of_class(cls): return rows
source = Source()
class Holder:
    def __init__(self, get): self.get = get
    def soften(self): self.get().gain = 0.5
"""
REGISTRY = """
DATASETS = {"train": Rows()}
class Registry:
"""
REGISTERED = """
registry = Registry()
rows = DATASETS["train"]
def advance():
    """
FLOWS = {
    "a variable that a comprehension has, too": """
rows = data = Rows()
def advance():
    sizes = [data for data in range(3)]
    data.gain = 0.5
""",
    "a variable that a lambda has, too": """
rows = data = Rows()
def advance():
    size = lambda: (data := 3)
    data.gain = 0.5
""",
    "a variable that a function within has, too": """
rows = data = Rows()
def advance():
    def size():
        data = 3
        return data
    data.gain = 0.5
""",
    "a variable that a class within has, too": """
rows = data = Rows()
def advance():
    class Sizes: data = 3
    data.gain = 0.5
""",
    "a list of all code that a comprehension has, too": """
rows, bag = Rows(), []
def fill():
    sizes = [bag for bag in range(3)]
    bag.append(loader.dataset)
def advance():
    fill()
    bag[0].gain = 0.5
""",
    "a class that is made later": """
rows = Rows()
def advance():
    class Phase: part = loader.dataset
    Phase.part.gain = 0.5
""",
    "a namespace with a field named like another's": """
from types import SimpleNamespace
rows = Rows()
class Box:
    def __init__(self): self.data = 3
def advance():
    both = SimpleNamespace(data=loader.dataset)
    both.data.gain = 0.5
""",
    "a tuple with a field named like another's": """
from collections import namedtuple
rows, Splits = Rows(), namedtuple("Splits", "train, test")
class Box:
    def __init__(self): self.train = True
def advance():
    splits = Splits(loader.dataset, None)
    splits.train.gain = 0.5
""",
    "a result, where a method is named like it": """
from concurrent.futures import ThreadPoolExecutor
rows, pool = Rows(), ThreadPoolExecutor(1)
class Meter:
    def result(self): return 3
def fetch(): return rows
def advance(): pool.submit(fetch).result().gain = 0.5
""",
    "a queue, where a method is named like its own": """
import queue
rows = Rows()
class Meter:
    def get_nowait(self): return 3
def advance():
    found = queue.Queue()
    found.put(loader.dataset)
    found.get_nowait().gain = 0.5
""",
    "what is got by a text": """
import operator
rows = Rows()
def advance(): operator.setitem(operator.attrgetter("dataset.table")(loader), 0, 9.0)
""",
    "added to a list by +=": """
rows = Rows()
def advance():
    todo = []
    todo += [loader.dataset]
    for one in todo: one.gain = 0.5
""",
    "a list that is the table in the next round": """
rows = Rows()
def advance():
    found = np.zeros(12)
    for _ in range(2):
        found[0] = 9.0
        found = loader.dataset.table
""",
    "a list that is written by what runs later": """
rows = Rows()
def advance():
    found = []
    late = (found.fill(9.0) for _ in range(1))
    found = loader.dataset.table
    list(late)
""",
    "a list in the same statement": """
rows = Rows()
def advance():
    found = []
    found[0] = 9.0 if (found := loader.dataset.table) is not None else 8.0
""",
    "a list that a pattern may replace": """
rows = Rows()
def advance():
    found = []
    match loader.dataset:
        case Rows(table=found): pass
    found[0] = 9.0
""",
    "what an asynchronous loop gives": """
rows = Rows()
async def each(): yield loader.dataset.table
async def write():
    async for found in each(): found[0] = 9.0
def advance():
    steps = write()
    try: steps.send(None)
    except StopIteration: pass
""",
    "a variable of a comprehension": """
rows = Rows()
def advance():
    [one.fill(9.0) for one in [loader.dataset.table]]
""",
    "a variable that a function within sets": """
rows = Rows()
def advance():
    found = np.zeros(12)
    def take():
        nonlocal found
        found = loader.dataset.table
    take()
    found[0] = 9.0
""",
    "a variable that a function within writes into": """
rows = Rows()
def advance():
    def write(): found[0] = 9.0
    found = loader.dataset.table
    write()
""",
    "matched": """
rows = Rows()
def advance():
    match loader:
        case DataLoader(dataset=found): found.gain = 0.5
""",
    "a list in a table": """
rows, pools = Rows(), {}
def advance():
    pools.setdefault("train", []).append(loader.dataset)
    for one in pools["train"]: one.gain = 0.5
""",
    "a heap": """
rows, worst = Rows(), []
def advance():
    heapq.heappush(worst, (0, loader.dataset))
    worst[0][1].gain = 0.5
""",
    "what another function fills": """
rows = Rows()
def fill(bag, one): bag.append(one)
def advance():
    bag = []
    fill(bag, loader.dataset)
    bag[0].gain = 0.5
""",
    "a generator that is sent it": """
rows = Rows()
def stepper():
    while True:
        one = yield
        one.gain *= 0.5
steps = stepper()
next(steps)
def advance(): steps.send(loader.dataset)
""",
    "an object that takes it up": """
rows = Rows()
class Callback:
    def attach(self, loader): self.seen = loader.dataset
    def soften(self): self.seen.gain *= 0.5
callback = Callback()
def advance():
    callback.attach(loader)
    callback.soften()
""",
    "an object that takes it up by name": """
rows = Rows()
class Callback:
    def attach(self, one): setattr(self, "pool", one)
    def soften(self): self.pool.gain *= 0.5
callback = Callback()
def advance():
    callback.attach(loader.dataset)
    callback.soften()
""",
    "a class with a small name": """
rows = Rows()
class pool:
    def __init__(self, one): self.one = one
    def show(self): print(self.one)
def advance():
    mine = pool(loader.dataset)
    mine.one.gain = 0.5
""",
    "a variable of the class": """
class Trainer:
    shared = {}
    def soften(self): self.shared["rows"].gain = 0.5
Trainer.shared["rows"] = rows = Rows()
trainer = Trainer()
def advance(): trainer.soften()
""",
    "a proxy": """
rows = Rows()
proxy = weakref.proxy(rows)
def advance(): proxy.gain = 0.5
""",
    "a registry that is indexed": REGISTRY
    + "    def __getitem__(self, name): return DATASETS[name]"
    + REGISTERED + "registry['train'].gain = 0.5",
    "a registry that is asked for attributes": REGISTRY
    + "    def __getattr__(self, name): return DATASETS[name]"
    + REGISTERED + "registry.train.gain = 0.5",
    "a registry that is called": REGISTRY
    + "    def __call__(self, name): return DATASETS[name]"
    + REGISTERED + "registry('train').gain = 0.5",
    "a registry that is gone through": REGISTRY
    + "    def __iter__(self): return iter(DATASETS.values())"
    + REGISTERED + "for one in registry: one.gain = 0.5",
    "a registry that is entered": REGISTRY
    + "    def __enter__(self): return DATASETS['train']\n    def __exit__(self, *error): pass"
    + REGISTERED + "\n    with registry as one: one.gain = 0.5",
    "a function that is handed over": FETCH + "def advance(): use(fetch)",
    "a function that looks it up first": FETCH
    + "def find(part):\n    found = loader.dataset\n    return found.table[part:]\n"
    + "def change(get): get(0)[:] = 0.5\ndef advance(): change(find)",
    "a function that is called in a lambda": FETCH + "def advance(): use(lambda: fetch())",
    "a generator that is handed over": FETCH
    + "def each(): yield rows\ndef first(get):\n    for one in get(): one.gain = 0.5\n"
    + "def advance(): first(each)",
    "a partial function": FETCH
    + "from functools import partial\nget = partial(fetch)\ndef advance(): get().gain = 0.5",
    "a function in a list": FETCH
    + "every = [fetch]\ndef advance():\n    for one in every: one().gain = 0.5",
    "a lambda": FETCH + "get = lambda: rows\ndef advance(): get().gain = 0.5",
    "a function that an object keeps": FETCH
    + "holder = Holder(fetch)\ndef advance(): holder.soften()",
    "a lambda that an object keeps": FETCH
    + "holder = Holder(lambda: rows)\ndef advance(): holder.get().gain = 0.5",
    "a bound method by another name": METHODS
    + "read = source.bound\ndef advance(): read().gain = 0.5",
    "a static method by another name": METHODS
    + "read = Source.static\ndef advance(): read().gain = 0.5",
    "a class method by another name": METHODS
    + "read = Source.of_class\ndef advance(): read().gain = 0.5",
    "a static method that an object keeps": METHODS
    + "holder = Holder(Source.static)\ndef advance(): holder.soften()",
    "a bound method that an object keeps": METHODS
    + "holder = Holder(source.bound)\ndef advance(): holder.soften()",
    "a bound method in a list": METHODS
    + "every = [source.bound]\ndef advance():\n    for one in every: one().gain = 0.5",
    "a static method of two classes": METHODS
    + "class Other:\n    read = Source.static\ndef advance(): Other.read().gain = 0.5",
    "a pool that calls it": FETCH
    + "pool = ThreadPool(1)\ndef advance(): pool.apply_async(fetch).get().gain = 0.5",
    "the class of another one": """
class More(Rows):
    scale = 1.0
    def scaled(self, scale): self.__class__.scale = scale
    def __getitem__(self, i): return self.table[i] * self.scale
rows, others = More(), More()
def advance(): others.scaled(0.5)
""",
    "the type of it": """
class More(Rows):
    scale = 1.0
    def __getitem__(self, i): return self.table[i] * self.scale
rows = More()
def advance(): type(loader.dataset).scale = 0.5
""",
    "a function that items call, too": """
class Record:
    def __init__(self, value): self.value = value
def doubled(record):
    record.value = record.value * 2
    return record
class More(Rows):
    def __init__(self): super().__init__(); self.template = Record(1.0)
    def __getitem__(self, i): return doubled(Record(self.table[i])).value * self.template.value
rows = More()
def advance(): doubled(rows.template)
""",
    "a method of a network": """
class Net(torch.nn.Module):
    def __init__(self, rows): super().__init__(); self.rows = rows
    def forward(self, x): self.rows.gain = 0.5
rows = Rows()
net = Net(rows)
def advance(): net(1)
""",
    "a method of a thread": """
class Worker(threading.Thread):
    def __init__(self, rows): super().__init__(); self.rows = rows
    def run(self): self.rows.gain = 0.5
rows = Rows()
def advance(): Worker(rows).start()
""",
    "a method of a handler": """
class Meter(logging.Handler):
    def __init__(self, rows): super().__init__(); self.rows = rows
    def emit(self, record): self.rows.gain = 0.5
rows = Rows()
logging.getLogger().addHandler(Meter(rows))
def advance(): logging.getLogger().error("now")
""",
    "a function that a pool applies": """
rows, pool = Rows(), ThreadPool(1)
def soften(one): one.gain = 0.5
def advance(): pool.apply(soften, (loader.dataset,))
""",
    "functions that are listed": """
rows = Rows()
class Hooks:
    @staticmethod
    def on_end(one): one.gain = 0.5
def advance():
    for name, one in inspect.getmembers(Hooks, inspect.isfunction): one(loader.dataset)
""",
    "the frame below": """
rows = Rows()
def advance(): inspect.currentframe().f_back.f_globals["rows"].gain = 0.5
""",
    "a module under another name": """
from importlib import import_module as load
rows = Rows()
def advance(): load("__main__").rows.gain = 0.5
""",
    "a method named as one of torch's": """
class Lines(Rows):
    def __init__(self, net): super().__init__(); self.net = net
    def __getitem__(self, i): return float(self.net.weight)
class Net(torch.nn.Module):
    def __init__(self): super().__init__(); self.weight = torch.nn.Parameter(torch.ones(1))
class Meter:
    def parameters(self): return 3
net = Net()
rows = Lines(net)
print(Meter().parameters())
def advance():
    for one in net.parameters(): one.data.mul_(0.5)
""",
    "bytes": """
memory = bytearray(range(12))
rows = Rows(np.frombuffer(memory, np.uint8))
def advance(): memory[3] = 100
""",
    "an array of Python's": """
memory = array.array("f", range(12))
rows = Rows(torch.frombuffer(memory, dtype=torch.float32))
def advance(): memory[3] = 100
""",
    "memory for processes": """
memory = RawArray("f", 12)
rows = Rows(np.frombuffer(memory, np.float32))
def advance(): memory[3] = 100
""",
    "a masked array": """
table = np.arange(12.0)
masked = np.ma.masked_array(table, copy=False)
rows = Rows(table)
del table
def advance(): masked[3] = 100
""",
    "the groups of an optimizer": """
class Noisy(Rows):
    def __init__(self, group): super().__init__(); self.group = group
    def __getitem__(self, i): return self.table[i] * self.group["lr"]
optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
rows = Noisy(optimizer.param_groups[0])
def advance(): schedule.step()
""",
    "what a layer keeps": """
layer = torch.nn.BatchNorm1d(1)
rows = Rows(layer.running_mean.expand(12))
def advance(): layer(torch.rand(4, 1))
""",
    "an archive beside the data": """
import zipfile
class Looking(Rows):
    def __getitem__(self, i): return self.table[i] * os.path.exists(f"{i}.zip")
rows = Looking()
def advance(): zipfile.ZipFile("1.zip", "w").close()
""",
}  # fmt: skip
RUNNING = {
    "the rest of a context": """
@contextlib.contextmanager
def stage():
    rows = Rows()
    yield DataLoader(rows, batch_size=4)
    rows.gain = 0.5
def epoch(loader):
    told(loader)
    for x in loader: pass
with stage() as loader: epoch(loader)
epoch(loader)
""",
    "what a call is given after a pass": """
class More(Rows):
    def soften(self, gain): self.gain = gain
def epoch(loader):
    told(loader)
    return sum(float(x.sum()) for x in loader)
rows = More()
loader = DataLoader(rows, batch_size=4)
print(str)
def report(*losses): pass
report(epoch(loader), rows.soften(0.5), epoch(loader))
""",
}
EFFECTS = {
    "a mapped file": """
np.save("seen.npy", np.zeros(12, np.float32))
class Counting(Rows):
    def __getitem__(self, i):
        seen = np.load("seen.npy", mmap_mode="r+")
        seen[i] += 1
        return float(seen[i])
""",
    "the name of a file": """
class Moving(Rows):
    def __getitem__(self, i):
        Path(f"{i}.new").rename(f"{i}.old")
        return 1.0
""",
    "a picture in an array": """
import PIL.Image
class Moving(Rows):
    def __getitem__(self, i): return float(self.table[i].getpixel((0, 0)))
table = [PIL.Image.fromarray(np.zeros((4, 4), np.uint8)) for _ in range(12)]
""",
}
RECORDS = """
class Record:
    def __init__(self): self.gain = 1.0
records = [Record() for _ in range(12)]
def collate(many): return torch.tensor([one.gain for one in many])
loader = DataLoader(records, batch_size=4, collate_fn=collate)
"""
SHARED = {
    "what next gives where there are no more batches": """
def advance():
    steps = iter(loader)
    for _ in range(4): one = next(steps, records[0])
    one.gain = 0.5
""",
    "batches of another library": """
from types import SimpleNamespace
graphs = SimpleNamespace(DataLoader=lambda data: iter(data))
def advance():
    for one in graphs.DataLoader(records): one.gain = 0.5
""",
    "batches of a function that hands on what it is given": """
def merge(many): return many[0] if isinstance(many[0], Record) else torch.tensor(many)
other = DataLoader([1, 2, 3], collate_fn=merge)
def advance():
    batches = DataLoader(records, collate_fn=merge)
    for one in batches: one.gain = 0.5
""",
    "a loader, or a list of what items read": """
def advance(some=True):
    part = loader
    if some:
        part = []
        for place in range(3): part.append(records[place])
    for one in part: one.gain = 0.5
""",
    "a loader, or what is imported": """
def advance():
    part = loader
    from __main__ import records as part
    for one in part: one.gain = 0.5
""",
    "batches that hold it": """
plain = DataLoader(records, batch_size=4, collate_fn=list)
def advance():
    for many in plain:
        for one in many: one.gain = 0.5
""",
    "items without batches": """
plain = DataLoader(records, batch_size=None)
def advance():
    for one in plain: one.gain = 0.5
""",
    "batches of what is made later": """
def advance():
    one = next(iter(DataLoader([*map(loader.dataset.__getitem__, range(3))], batch_size=None)))
    one.gain = 0.5
""",
}
TABLE = """
class Table(Dataset):
    def __init__(self): self.items = records
    def __len__(self): return 12
    def __getitem__(self, i): return self.items[i]
loader = DataLoader(Table(), batch_size=4, collate_fn=collate)
del records
def whole(): return loader.dataset
"""
LOOKALIKES = {
    "what a bar is given by name": """
from tqdm import tqdm
def advance():
    for one in tqdm(iterable=whole(), disable=True): one.gain = 0.5
""",
    "what is numbered by name": """
def advance():
    for one in enumerate(iterable=whole()): one[1].gain = 0.5
""",
    "what an object walks through": """
from types import SimpleNamespace
library = SimpleNamespace(track=whole)
def advance():
    for one in library.track(): one.gain = 0.5
""",
    "a part of a loader that a pattern takes": """
def advance():
    match loader:
        case DataLoader(dataset=part):
            for one in part: one.gain = 0.5
""",
    "what is called by the name of a method": """
class Maker:
    def make(self): return loader
maker = Maker()
def advance():
    maker.make = whole
    for one in maker.make(): one.gain = 0.5
""",
    "what is called by the name of a method, set before": """
class Maker:
    def make(self): return loader
maker = Maker()
maker.make = whole
def advance():
    for one in maker.make(): one.gain = 0.5
""",
    "items of a loader whose batch size is nothing by default": """
def make(size=None): return DataLoader(whole(), batch_size=size)
def advance():
    for one in make(): one.gain = 0.5
""",
    "items of a loader whose batch size is passed on": """
def make(size): return DataLoader(whole(), size)
def advance():
    for one in make(None): one.gain = 0.5
""",
    "items of a loader whose batch size is an option": """
from argparse import Namespace
args = Namespace(size=None)
def advance():
    for one in DataLoader(whole(), batch_size=args.size): one.gain = 0.5
""",
    "items of a loader whose batch size is set": """
from argparse import Namespace
args = Namespace(size=4)
def advance():
    setattr(args, "size", None)
    for one in DataLoader(whole(), batch_size=args.size): one.gain = 0.5
""",
    "items of a loader whose batch size stands in a table": """
config = {"size": None}
def advance():
    for one in DataLoader(whole(), batch_size=config["size"]): one.gain = 0.5
""",
    "items of a loader whose batch size is got": """
config = {"sizes": {"train": 4}}
def advance():
    for one in DataLoader(whole(), batch_size=config["sizes"].get("test")): one.gain = 0.5
""",
}
FOLDS = """
from torch.utils.data import Subset
rows, data = Rows(), 3
def collate(many): return torch.tensor(many)
def loaders(fold):
    train = DataLoader(Subset(rows, range(fold, 12)), batch_size=4)
    return train, DataLoader(Subset(rows, range(fold)), batch_size=4)
def main():
    for fold in range(3, 5):
        {made}
        total, batches = 0.0, train
        told(batches)
        for x in train:
            x += 0.1
            total += x.mean()
        sizes = [data.shape for data in test]
        for x in test:
            x[0] = 2.0
            total += x.sum()
main()
"""
SIZES = (
    ("many = int('4')", "many"),
    ("args = SimpleNamespace(many=4, seed=None)", "args.many"),
    ("config = {'many': 4, 'seed': None}", "config['many']"),
    ("class Config: many = 8 // 2", "(Config.many if data else 2)"),
)
MADE = (
    "train, test = loaders(fold)",
    "train, test = DataLoader(rows, batch_size=4), DataLoader(rows, 4, shuffle=True)",
    "train = DataLoader(rows, 4, collate_fn=collate); test = DataLoader(rows, collate_fn=collate)",
)


@pytest.mark.parametrize("text", SHARED.values(), ids=SHARED)
def test_members_of_what_only_may_be_a_loader_are_no_batches(said, text) -> None:
    loop = LOOP.replace("loader = DataLoader(rows, batch_size=4)", "")
    assert said(HEAD + RECORDS + text + loop)[0].split()[0] in ("OWNED", "UNWRITTEN")


@pytest.mark.parametrize("text", LOOKALIKES.values(), ids=LOOKALIKES)
def test_what_looks_like_a_loader_may_give_what_items_read(said, text) -> None:
    loop = LOOP.replace("loader = DataLoader(rows, batch_size=4)", "")
    assert said(HEAD + RECORDS + TABLE + text + loop)[0].split()[0] == "UNWRITTEN"


@pytest.mark.parametrize("made", MADE)
def test_loaders_that_are_made_anew_for_each_fold_give_batches(said, made) -> None:
    assert said(HEAD + FOLDS.format(made=made)) == ["whole", "whole"]


@pytest.mark.parametrize(("head", "size"), SIZES)
def test_loaders_of_a_known_batch_size_give_batches(said, head, size) -> None:
    more = f"from types import SimpleNamespace\n{head}\ndef loaders(fold, size=4)"
    text = FOLDS.format(made=f"train, test = loaders(fold, {size})")
    text = text.replace("def loaders(fold)", more).replace("batch_size=4\n", f"batch_size={size}\n")
    assert said(HEAD + text.replace("batch_size=4", "batch_size=size")) == ["whole", "whole"]


@pytest.mark.parametrize("text", FLOWS.values(), ids=FLOWS)
def test_code_that_gets_at_what_items_read_while_the_script_runs_is_found(said, text) -> None:
    assert said(HEAD + text + LOOP)[0].split()[0] in ("OWNED", "UNWRITTEN")


@pytest.mark.parametrize("text", RUNNING.values(), ids=RUNNING)
def test_code_that_has_begun_and_is_not_on_the_stack_is_found(said, text) -> None:
    assert said(HEAD + text)[0].split()[0] == "UNWRITTEN"


@pytest.mark.parametrize("text", EFFECTS.values(), ids=EFFECTS)
def test_items_that_change_files_or_share_memory_are_refused(said, text) -> None:
    kind = "Moving" if "Moving" in text else "Counting"
    more = f"rows = {kind}({'table' if 'table =' in text else ''})\n"
    loop = "def advance(): pass\n" + LOOP.replace("for x in loader:", "for x in []:")
    assert said(HEAD + text + more + loop)[0].split()[0] == "PURE"


def test_ordinary_objects_around_a_loader_leave_the_proof_whole(said) -> None:
    text = """
class Net(torch.nn.Module):
    def __init__(self): super().__init__(); self.line = torch.nn.Linear(1, 1)
    def forward(self, x):
        y = self.line(x)
        y += x
        self.last = y
        return y
class Trainer:
    best = {}
    def __init__(self, loader): self.loader, self.seen = loader, 0
    def fit(self, net):
        for x in self.loader:
            y = net(x[:, None].float())
            self.seen += len(x)
            self.best.setdefault("loss", []).append(float(y.sum()))
rows, net = Rows(), Net()
trainer = Trainer(DataLoader(rows, batch_size=4))
def advance(): trainer.fit(net)
"""
    assert said(HEAD + text + LOOP) == ["whole", "whole"]


def test_a_list_of_results_may_become_an_array(said) -> None:
    text = """
KINDS = {"rows": Rows}
rows = Rows()
def pair():
    Kind = KINDS["rows"]
    data = Kind()
    return data, DataLoader(data, batch_size=4)
def evaluate():
    data, batches = pair()
    found = []
    for x in batches: found.append(x.numpy())
    found = np.array(found)
    found = found.reshape(-1)
    return len(found)
def advance(): evaluate()
"""
    assert said(HEAD + text + LOOP) == ["whole", "whole"]


def test_functions_that_return_what_is_their_own_may_be_handed_over_and_kept(said) -> None:
    text = """
from functools import partial
class Net(torch.nn.Module):
    def __init__(self, make): super().__init__(); self.line = make(1, 1)
    def forward(self, x): return self.line(x)
class Wide(Net): pass
def plain(*sizes): return torch.nn.Linear(*sizes)
def mean(scores, targets): return ((scores - targets) ** 2).mean()
def size(): return len(rows)
def evaluate(net):
    right = 0
    for x in loader: right += int((net(x[:, None].float()) > 0).sum())
    return right / len(loader.dataset)
class Trainer:
    def __init__(self, net, criterion, checks, size):
        self.net, self.criterion, self.checks, self.size = net, criterion, checks, size
        self.best = {}
    def fit(self):
        for x in loader:
            scores = self.net(x[:, None].float())
            loss = self.criterion(scores, x[:, None].float()) / self.size()
            loss.backward()
        for name, check in self.checks.items():
            score = check(self.net)
            score += 1
            self.best[name] = score
rows = Rows()
net = {"net": Net, "wide": Wide}["wide"](partial(plain))
trainer = Trainer(net, mean, {"right": evaluate}, size)
def advance(): trainer.fit()
"""
    assert said(HEAD + text + LOOP) == ["whole", "whole"]


def test_methods_that_return_what_is_read_may_be_called_for_a_look(said) -> None:
    text = """
rows = Rows()
class Data:
    def __init__(self, batch_size): self.batch_size, self.seen = batch_size, 0
    def training(self): return rows
    @staticmethod
    def loader(size): return DataLoader(rows, batch_size=size)
    def count(self): return len(self.training())
class Trainer:
    def __init__(self, net, data, size, log):
        self.net, self.data, self.size, self.log = net, data, size, log
        self.lines = []
    def note(self, text): self.lines.append(text)
    def fit(self):
        for x in loader:
            loss = self.net(x[:, None].float()).mean() / self.size()
            loss.backward()
        self.log(f"{float(loss)} of {len(self.data.training())}")
        self.data.seen += 1
class Log:
    def __init__(self): self.lines = []
    def add(self, text): self.lines.append(text)
log = Log()
data = Data(4)
trainer = Trainer(torch.nn.Linear(1, 1), data, data.count, log.add)
def advance(): trainer.fit()
"""
    assert said(HEAD + text + LOOP) == ["whole", "whole"]
