"""Functions of modules that come late: placed once they are there, in every thread, and back."""

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec

import pytest
import torch

from hasten.instrument.live import LiveTraining
from hasten.instrument.stand_ins import StandIns, stand_in_later

SOURCE = """
runs = []
def double(x):
    return 2 * x
def call(x):
    return double(x)
class Kind:
    def half(self, x):
        return x / 2
"""


def ten_more(original, x):
    return original(x) + 10


@pytest.fixture
def late(tmp_path, monkeypatch):
    """The name of a module that can be imported and is not."""
    (tmp_path / "late_home").mkdir()
    (tmp_path / "late_home" / "__init__.py").write_text("")
    (tmp_path / "late_home" / "part.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield "late_home.part"
    assert sys.meta_path == before
    for name in ("late_home.part", "late_home"):
        sys.modules.pop(name, None)


def test_a_module_is_not_imported_for_it_and_is_served_once_it_is_there(late) -> None:
    undo = stand_in_later(late, "double", ten_more)
    assert late not in sys.modules
    assert find_spec(late) is not None
    assert late not in sys.modules
    part = importlib.import_module(late)
    assert part.call(1) == 12
    assert "exec_module" not in vars(part.__loader__)
    undo()
    assert part.call(1) == 2


def test_a_module_that_is_there_is_served_at_once(late) -> None:
    part = importlib.import_module(late)
    undo = LiveTraining().on_function(late, "double", ten_more)
    assert part.call(1) == 12
    undo()
    assert part.call(1) == 2


def test_a_function_of_a_module_that_is_still_being_imported_is_served(late, tmp_path) -> None:
    undos = []

    def meanwhile(name):
        undos.append(stand_in_later(late, name, ten_more))

    (tmp_path / "late_home" / "part.py").write_text(
        "import builtins\nbuiltins.meanwhile('double')\n"  # before it is there
        f"{SOURCE}\nbuiltins.meanwhile('Kind.half')\n"  # right after
    )
    sys.modules["builtins"].meanwhile = meanwhile
    try:
        part = importlib.import_module(late)
    finally:
        del sys.modules["builtins"].meanwhile
    (tmp_path / "next_home.py").write_text("")
    importlib.import_module("next_home")
    assert part.call(1) == 12
    assert hasattr(part.Kind.half, "__wrapped__")
    for undo in undos:
        undo()
    assert part.call(1) == 2


def test_a_module_that_never_comes_leaves_nothing_behind(late) -> None:
    stand_in_later(late, "double", ten_more)()
    assert importlib.import_module(late).call(1) == 2


def test_a_function_that_this_release_does_not_have_is_passed_over(late) -> None:
    undo = stand_in_later(late, "triple", ten_more)
    part = importlib.import_module(late)
    undo()
    assert not hasattr(part, "triple")


def test_a_function_of_a_class_is_named_with_a_dot(late) -> None:
    part = importlib.import_module(late)
    undo = stand_in_later(late, "Kind.half", lambda original, kind, x: original(kind, x) + 10)
    assert part.Kind().half(2) == 11
    undo()
    assert part.Kind().half(2) == 1


def test_it_is_asked_in_every_thread(late) -> None:
    part = importlib.import_module(late)
    undo = LiveTraining(lambda: False).on_function(late, "double", ten_more)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(part.call, 1).result() == 12
    undo()


def test_torch_s_compiler_looks_through_what_stands_in(late) -> None:
    """The script asked for one whole graph, and gets an error for what cannot be compiled."""

    def reads(original, x):
        return original(x) + 10 * bool(x > 0)

    part = importlib.import_module(late)
    compiled = torch.compile(part.call, backend="eager", fullgraph=True)
    one = torch.ones(())
    for add in (partial(stand_in_later, late), partial(StandIns(lambda: bool(one > 0)).add, part)):
        undo = add("double", reads)
        assert compiled(one) == 2
        assert part.call(one) == 12
        undo()
    torch._dynamo.utils.counters.clear()  # whether torch has compiled is asked of the process
