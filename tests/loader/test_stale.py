"""Whatever a script changes, between two passes or in the middle of one, is in its batches."""

import re
import sys

import pytest

pytestmark = pytest.mark.child

FILES = r"""
import tempfile
from hasten.loader import loader_state

folder = tempfile.mkdtemp()


class Files(Numbers):
    def __getitem__(self, i):
        with open(f"{folder}/{i}") as file:
            return int(file.read())

def write(number, which=range(12)):
    for i in which:
        with open(f"{folder}/{i}", "w") as file:
            file.write(str(number + i))

def run(own, rewritten=range(12), count=5):
    write(0)
    loader, seen = DataLoader(Files(), batch_size=3, num_workers=own), []
    for epoch in range(count):
        seen.append([plain(batch) for batch in loader])
        time.sleep(0.05)
        write(100 * epoch, rewritten)
    return seen

for own in (0, 2):
    facts[f"rewritten {own}"] = same(lambda: run(own), 2)
    facts[f"left alone {own}"] = same(lambda: run(own, ()), 2)
loader_state.due = lambda number: True
facts["checked"] = same(lambda: run(0, range(3, 12)), 2)
import shutil
shutil.rmtree(folder)
"""

HIDDEN = r"""
import functools
import numpy as np

FACTOR = 1

class Part:
    def __init__(self, inside):
        self.inside = inside

class Slotted:
    __slots__ = ("inside",)

class Own(Numbers):
    factor = 1
    def __init__(self, factor=None):
        super().__init__()
        self.own = factor
    def __getitem__(self, i):
        return i * self.own()

class Trainer:
    def __init__(self):
        self.parts = {"deep": [Part([1])]}
    def collate(self, samples):
        return [self.parts["deep"][0].inside[0] * sample for sample in samples]

def nested():
    inner = Part(Part(Part([1])))
    data = Own(lambda: inner.inside.inside.inside[0])
    data.inner = inner
    return data, lambda n: inner.inside.inside.inside.__setitem__(0, n)

def names():
    return Own(lambda: FACTOR), lambda n: globals().update(FACTOR=n)

class Classy(Own):
    def __getitem__(self, i):
        return i * self.factor

def of_class():
    return Classy(), lambda n: setattr(Classy, "factor", n)

def closure():
    held = {"factor": [[[[1]]]]}
    return Own(lambda: held["factor"][0][0][0][0]), (
        lambda n: held["factor"][0][0][0].__setitem__(0, n))

def given(part):
    return part.inside[0]

def partial():
    part = Part([1])
    return Own(functools.partial(given, part)), lambda n: part.inside.__setitem__(0, n)

def slots():
    part = Slotted()
    part.inside = 1
    return Own(lambda: part.inside), lambda n: setattr(part, "inside", n)

def long_list():
    data = Own()
    data.rows = [{"factor": 1} for _ in range(300)]
    data.own = lambda: data.rows[200]["factor"]
    return data, lambda n: data.rows[200].update(factor=n)

def big_array():
    data = Own()
    data.rows = np.ones(100_000, dtype=int)
    data.own = lambda: int(data.rows[50_001])
    return data, lambda n: data.rows.__setitem__(50_001, n)

def collate():
    trainer = Trainer()
    return Numbers(), lambda n: trainer.parts["deep"][0].inside.__setitem__(0, n), trainer.collate

def run(make, own):
    data, change, *more = make()
    change(1)
    loader = DataLoader(data, 3, num_workers=own, collate_fn=more[0] if more else None)
    seen = []
    for epoch in range(5):
        seen.append([plain(batch) for batch in loader])
        if epoch != 1:
            change(epoch + 2)
    return seen

for make in (nested, names, of_class, closure, partial, slots, long_list, big_array, collate):
    for own in (0, 2):
        facts[f"{make.__name__} {own}"] = same(lambda: run(make, own), 2)
"""

COUNTING = r"""
class Counting:
    def __init__(self):
        self.calls = 0
    def collate(self, samples):
        self.calls += 29 in samples
        return self.calls, samples

def run(own):
    counting = Counting()
    loader = DataLoader(Numbers(60), 3, num_workers=own, collate_fn=counting.collate)
    return [list(loader) for _ in range(3)]

for own in (0, 1, 2):
    for wanted in (0, 1, 2):
        facts[f"{own} {wanted}"] = same(lambda: run(own), wanted)
"""

MIDST = r"""
import numpy
numpy.random.seed(1)

class Both(Draws):
    def __getitem__(self, i):
        return self.scale * i, torch.rand(()).item()

values = {"number": lambda step: 1 + step, "type": lambda step: 1.0 if step % 2 else 1}

def run(make, own, value, period):
    data, seen = make(120), []
    loader = DataLoader(data, batch_size=2, num_workers=own)
    for _ in range(2 if own else 1):
        for step, batch in enumerate(loader):
            data.scale = value(step // period)
            seen.append([plain(part) for part in batch])
    return repr(seen), rng()

for name, value in values.items():
    for make in (Numbers, Both):
        for own in (0, 2):
            for wanted in (0, 1, 2):
                for period in (3, 8):
                    label = f"{name} {make.__name__} {own} {wanted} {period}"
                    facts[label] = same(lambda: run(make, own, value, period), wanted)
facts["notes"] = engine.notices.notes
"""

DEEP = r"""
class Part:
    def __init__(self, **inside):
        vars(self).update(inside)

class Sized(Numbers):
    def __init__(self, count):
        super().__init__(count)
        self.transform = Part(transforms=[Part(size=(1, 1))])
    def __getitem__(self, i):
        return i * self.transform.transforms[0].size[0]

class Collate:
    def __init__(self):
        self.inner = Part(size=(1, 1))
    def __call__(self, samples):
        return [self.inner.size[0] * sample for sample in samples]

class Trainer(Collate):
    collate = Collate.__call__

def run(make, own):
    data, collate = (Sized(120), None) if make is None else (Numbers(120), make())
    part = data.transform.transforms[0] if make is None else collate.inner
    if make is Trainer:
        collate = collate.collate
    loader, seen = DataLoader(data, 2, num_workers=own, collate_fn=collate), []
    for _ in range(2 if own else 1):
        for step, batch in enumerate(loader):
            part.size = (1 + step // 7, 1)
            seen.append(plain(batch))
    return seen

for make in (None, Collate, Trainer):
    for own in (0, 2):
        for wanted in (0, 1, 2):
            facts[f"{make} {own} {wanted}"] = same(lambda: run(make, own), wanted)
"""

ASIDE = r"""
class Trainer:
    def __init__(self):
        self.step, self.factor = 0, 2
        self.model = torch.nn.Linear(2, 2)
    def collate(self, samples):
        return self._times(samples)
    def _times(self, samples):
        return [self.factor * sample for sample in samples]

class Collator:
    def __init__(self, model):
        self.model = model
    def __call__(self, samples):
        return samples

def run(call):
    trainer = Trainer()
    collate = call(trainer)
    for _ in DataLoader(Numbers(60), 2, collate_fn=collate):
        trainer.step += 1
        with torch.no_grad():
            trainer.model.weight.add_(1)
    trainer.factor = 3

for name, call in {"trainer": lambda t: t.collate, "model": lambda t: Collator(t.model)}.items():
    ours(lambda: run(call), 1)
    facts[name] = list(engine.notices.notes)
"""

BEGUN = r"""
def run(own, count):
    data, seen = Numbers(24), []
    loader = DataLoader(data, batch_size=3, num_workers=own)
    for epoch in range(count):
        iterator = iter(loader)
        data.scale = epoch + 2
        seen.append([plain(batch) for batch in iterator])
    return seen

for own in (0, 2):
    for wanted in (0, 1, 2):
        facts[f"{own} {wanted}"] = same(lambda: run(own, 4), wanted)
"""

EXHAUSTED = r"""
def run():
    loader = DataLoader(Numbers(24), batch_size=3)
    seen, first = [], iter(loader)
    for _ in range(8):
        seen.append(plain(next(first)))
    seen.append(next(first, "end"))
    second = iter(loader)
    for _ in range(8):
        seen.append(plain(next(second)))
        seen.append(next(first, "end"))
    return seen, next(second, "end"), next(first, "end")

for wanted in (0, 1, 2):
    facts[str(wanted)] = same(run, wanted)
"""

TURNED = r"""
from hasten.loader import loader_state
loader_state.due = lambda number: True

class Late(Draws):
    epoch = 0
    def __getitem__(self, i):
        if self.epoch == 2 and i == 20:
            self.seen = True
        return super().__getitem__(i)

def run():
    data, seen = Late(40), []
    loader = DataLoader(data, batch_size=4, num_workers=2)
    for data.epoch in range(4):
        seen.append([[part.tolist() for part in batch] for batch in loader])
    return seen, rng()

facts["same"] = same(run, 0)
facts["notes"] = engine.notices.notes
"""


def unequal(facts):
    return {name: found for name, found in facts.items() if found is not True}


AHEAD = (
    FILES[: FILES.index("for own in")]
    + r"""
facts["all but the first batch"] = same(lambda: run(2, range(3, 12), 3), 2)

class Scaled(Numbers):
    def __getitem__(self, i):
        with open(f"{folder}/scale") as file:
            return i * int(file.read())

def rescaled():
    seen = []
    for epoch in range(2):
        write(1, ["scale"])
        time.sleep(0.1)
        for number, batch in enumerate(DataLoader(Scaled(64), batch_size=2)):
            if number == 20:
                write(3, ["scale"])
            seen.append(plain(batch))
    return seen

def write(number, which=range(12)):
    for i in which:
        with open(f"{folder}/{i}", "w") as file:
            file.write(str(number + (i if isinstance(i, int) else 0)))

from hasten.loader.cache.cached import Cache
undo = engine.add(Cache(1 << 24).offer)
facts["under the cache"] = same(rescaled, 2)
import shutil
shutil.rmtree(folder)
"""
)


def test_a_file_that_is_written_in_mid_pass_is_read_anew_under_a_cache(loaders) -> None:
    assert unequal(loaders(AHEAD)) == {}


CHANGING = (
    FILES[: FILES.index("for own in")]
    + r"""
class Listed(Numbers):
    def __getitem__(self, i):
        time.sleep(0.002)
        with open(f"{folder}/manifest") as file:
            return i + 0 * len(file.read())

def listed():
    seen = []
    for number, batch in enumerate(DataLoader(Listed(96), batch_size=2)):
        with open(f"{folder}/manifest", "a") as file:
            file.write("x")
        seen.append(plain(batch))
    return seen

open(f"{folder}/manifest", "w").close()
facts["the same"] = same(listed, 2)
facts["told"] = any("files that items read keep changing" in note for note in engine.notices.notes)
import shutil
shutil.rmtree(folder)
"""
)


def test_workers_are_given_up_where_the_files_that_they_read_keep_changing(loaders) -> None:
    assert unequal(loaders(CHANGING, python=sys.executable)) == {}


@pytest.mark.slow
def test_files_that_are_written_between_passes_are_read_anew(loaders) -> None:
    assert unequal(loaders(FILES)) == {}


def test_a_change_between_passes_is_seen_wherever_it_hides(loaders) -> None:
    assert unequal(loaders(HIDDEN)) == {}


def test_a_collate_function_that_counts_goes_on_counting(loaders) -> None:
    assert unequal(loaders(COUNTING)) == {}


@pytest.mark.slow
def test_a_dataset_that_the_loop_changes_in_mid_pass_is_read_as_it_is_then(loaders) -> None:
    facts = loaders(MIDST)
    assert "no worker processes: the script changes the dataset between two batches" in (
        facts.pop("notes")
    )
    assert unequal(facts) == {}


def test_a_change_in_mid_pass_is_seen_inside_transforms_and_the_collate_function(loaders) -> None:
    assert unequal(loaders(DEEP)) == {}


def test_what_the_loop_changes_beside_the_items_costs_no_workers(loaders) -> None:
    assert loaders(ASIDE) == {"trainer": [], "model": []}


def test_workers_of_the_script_s_own_have_the_dataset_of_when_the_pass_began(loaders) -> None:
    assert unequal(loaders(BEGUN)) == {}


def test_an_iterator_that_has_ended_takes_no_batch_of_a_later_pass(loaders) -> None:
    assert unequal(loaders(EXHAUSTED)) == {}


def test_streams_played_here_go_on_in_workers_where_items_turn_out_to_remember(loaders) -> None:
    facts = loaders(TURNED)
    assert any("not without workers" in note for note in facts.pop("notes"))
    assert unequal(facts) == {}


BROKEN = r"""
told = []
engine.notices.tell = told.append


class Env(Numbers):
    def __getitem__(self, i):
        time.sleep(0.002)  # so that workers pay
        return torch.tensor(i * int(os.environ["FACTOR"])), i


loader = DataLoader(Env(200), batch_size=4)


def run():
    os.environ["FACTOR"], seen = "1", []
    for _ in range(3):
        for batch, _ in loader:
            seen.append(batch.tolist())
            if len(seen) == 60:
                os.environ["FACTOR"] = "2"  # nothing that looks at the dataset sees it
    return seen


plain = run()
undo = engine.want(2)
now = run()
undo()
wrong = [number for number, (one, other) in enumerate(zip(plain, now)) if one != other]
facts["wrong"] = wrong
facts["told"] = told

"""


def test_what_a_granted_assumption_gets_wrong_ends_and_is_told_with_its_batch(loaders) -> None:
    facts = loaders(BROKEN)
    assert all(60 <= number < 60 + 32 + 4 for number in facts["wrong"])
    assert facts["wrong"], facts
    (told,) = facts["told"]
    assert "loader workers stopped at their batch" in told
    assert "items made in another process, or twice, differ" in told
    assert int(re.search(r"the last that was compared and equal is batch (\d+)$", told)[1]) <= 60
