import linecache

import torch
from torch.utils.data import DataLoader, TensorDataset

from hasten.instrument.starts import LoaderLines


class Mine(DataLoader):
    def __init__(self, dataset, lines, **details) -> None:
        super().__init__(dataset, **details)
        lines.note(self)


def made_by_a_library():
    """Stand for a function of an installed package."""
    text = "def make(kind, *args):\n    return kind(*args)\n"
    names = {}
    exec(compile(text, torch.__file__, "exec"), names)
    return names["make"]


def test_a_line_of_the_script_is_told_and_that_of_a_library_is_not() -> None:
    lines, data, other = LoaderLines(), *(TensorDataset(torch.zeros(4)) for _ in range(2))
    mine = Mine(data, lines)
    newer = Mine(data, lines, batch_size=2)
    theirs = made_by_a_library()(Mine, other, lines)
    path, line = lines.of(id(data))
    assert path == __file__
    assert linecache.getline(path, line).strip() == "newer = Mine(data, lines, batch_size=2)"
    assert lines.of(id(other)) is None
    del mine, newer, theirs
    assert lines.of(id(data)) is None


class Unhashable(Mine):
    __hash__ = None


def test_a_loader_without_a_hash_has_a_line_too() -> None:
    lines, data = LoaderLines(), TensorDataset(torch.zeros(4))
    loader = Unhashable(data, lines)
    path, line = lines.of(id(loader.dataset))
    assert linecache.getline(path, line).strip() == "loader = Unhashable(data, lines)"


class Module:
    def __init__(self, data, lines) -> None:
        self.loader = Mine(data, lines)


def test_a_constructor_of_the_script_s_own_is_where_its_loader_is_made() -> None:
    lines, data = LoaderLines(), TensorDataset(torch.zeros(4))
    module = Module(data, lines)
    path, line = lines.of(id(module.loader.dataset))
    assert linecache.getline(path, line).strip() == "self.loader = Mine(data, lines)"
