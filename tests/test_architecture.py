"""The rules of the house, as tests. Each failure message says what to do."""

import ast
import dataclasses
import graphlib
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import hasten.errors
from hasten import records

SRC = Path(hasten.errors.__file__).parent
STAGES = {
    "machine", "trials", "instrument", "loader", "root_calls", "levers", "compare", "search",
    "verify", "diagnose", "report",
}  # fmt: skip
SHARED = {
    "records",
    "protocol",
    "lever",
    "units",
    "errors",
    "rank",
    "generators",
    "modules",
    "torch_threads",
    "after_import",
    "cgroup",
    "kernel_files",
}
WIRING = {
    "session",
    "child",
    "cli",
    "testing",
    "notebook",
    "api",
    "workload",
    "__main__",
    "__init__",
}
CHILD_SIDE = {"instrument", "loader", "root_calls", "levers"}
FOR_LEVERS = {"loader", "root_calls"}
OTHERS_OF_THE_NAME = {
    "diagnose/families/numbers.py": {"channels_last"},  # torch's memory format
    "report/edits/kinds/models.py": {"channels_last"},
}
LONGEST_FILE, LONGEST_FUNCTION = 800, 60
MOST_PARTS = 15  # methods, or attributes that it sets
LARGER = {
    "MergedView": "a method for each function of os that trials may call",
    "Races": "each race of a tuning, and what it costs",
    "SearchDriver": "the story of a search",
    "SearchStrategy": "each move of the search is a method",
    "Store": "one file format: its header, its table",
    "TrainingHealthMonitor": "an observer: a method for each event of the loop",
    "VariableScope": "a visitor: a method for each kind of expression",
    "View": "a method for each event of a tuning",
    "Writes": "a visitor: a method for each kind of write",
    "_SnapshotTaker": "a method for each kind of value",
}
UNITS = (
    "_s",
    "_ns",
    "_bytes",
    "_ratio",
    "_count",
    "_index",
    "index",
    "line",
    "seed",
)
SENTENCES = {"why", "reason", "note", "message", "remedy", "sentence", "failure", "doubt"}
HEAVY = {"torch", "numpy", "rich", "typer", "msgspec", "tomlkit", "IPython"}


@cache
def modules():
    paths = sorted(SRC.rglob("*.py"))
    return [(path.relative_to(SRC), ast.parse(path.read_text())) for path in paths]


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """Drop the trees: later tests would collect garbage among them."""
    yield
    modules.cache_clear()


def imports(tree, *, top_only=False):
    nodes = tree.body if top_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "hasten":
                yield from (f"hasten.{alias.name}" for alias in node.names)


def home(path):
    return path.parts[0].removesuffix(".py")


def test_every_module_has_a_place_in_the_house() -> None:
    homes = {home(path) for path, _ in modules()}
    assert homes <= STAGES | SHARED | WIRING, "a new top-level module needs a decision"


def test_stages_never_import_one_another() -> None:
    for path, tree in modules():
        if home(path) not in STAGES:
            continue
        for name in imports(tree):
            parts = name.split(".")
            if parts[0] == "hasten" and len(parts) > 1:
                allowed = SHARED | {home(path)} | (FOR_LEVERS if home(path) == "levers" else set())
                assert path.parts[:2] == ("trials", "site") or parts[1] in allowed, (
                    f"{path} imports {name}: pass a record instead"
                )


def test_no_module_needs_itself_by_way_of_others() -> None:
    """Imports for the type checker alone count, too: they are what a reader has to know."""
    own = {".".join(("hasten", *path.with_suffix("").parts)): tree for path, tree in modules()}
    own = {name.removesuffix(".__init__"): tree for name, tree in own.items()}
    needs = {
        name: {
            full if (full := f"{node.module}.{alias.name}") in own else node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hasten")
            for alias in node.names
        }
        - {name}
        for name, tree in own.items()
    }
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a cycle: {' <- '.join(error.args[1])}")


def test_no_meaning_is_read_out_of_a_sentence() -> None:
    """A sentence is made at the very end; an enum or a field carries what it says."""
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                asked = getattr(node.func.value, "attr", getattr(node.func.value, "id", ""))
                is_test = node.func.attr in {"startswith", "endswith"}
                assert not (is_test and asked in SENTENCES), f"{path}:{node.lineno}"
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
                asked = getattr(node.comparators[0], "attr", getattr(node.comparators[0], "id", ""))
                wanted = str(getattr(node.left, "value", ""))
                assert not (asked in SENTENCES and " " in wanted), f"{path}:{node.lineno}"


def test_shared_modules_know_no_stage() -> None:
    for path, tree in modules():
        if home(path) in SHARED - {"lever"}:
            stages = {n for n in imports(tree) if set(n.split(".")[1:2]) & STAGES}
            assert not stages, f"{path} imports {stages}: nouns know no stage"


def test_levers_never_import_another_lever() -> None:
    for path, tree in modules():
        if home(path) == "levers":
            assert not [n for n in imports(tree) if n.startswith("hasten.levers")], path


def test_a_lever_is_named_in_its_own_file_alone() -> None:
    levers = {path.stem for path in (SRC / "levers").glob("[a-z]*.py")}
    for path, tree in modules():
        own = path.stem if home(path) == "levers" else ""
        named = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and node.value in levers - {own}
        }
        assert not named - OTHERS_OF_THE_NAME.get(str(path), set()), f"{path} names {named}"


def test_importing_the_package_never_imports_torch() -> None:
    for path, tree in modules():
        heavy = {n.split(".")[0] for n in imports(tree, top_only=True)} & {"torch"}
        assert not heavy, f"{path} imports {heavy} at the top: move it into the function"


def test_child_side_code_needs_only_the_standard_library_and_torch() -> None:
    for path, tree in modules():
        if home(path) in CHILD_SIDE | {"child", "lever", "protocol", "records", "errors"}:
            heavy = {n.split(".")[0] for n in imports(tree)} & (HEAVY - {"torch"})
            assert not heavy, f"{path} runs in the user's process but imports {heavy}"


def test_import_is_light() -> None:
    code = (
        "import sys, hasten, hasten.records; "
        f"print(sorted({HEAVY!r} & set(m.split('.')[0] for m in sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(SRC.parent), "PATH": ""},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_files_and_functions_stay_short() -> None:
    for path, tree in modules():
        assert len((SRC / path).read_text().splitlines()) <= LONGEST_FILE, f"split {path}"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= LONGEST_FUNCTION, f"split {path}:{node.name} ({length} lines)"


def own_attributes(cls):
    targets = (
        target
        for node in ast.walk(cls)
        for target in getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
    )
    return {
        part.attr
        for target in targets
        for part in ast.walk(target)
        if isinstance(part, ast.Attribute) and getattr(part.value, "id", "") == "self"
    }


def test_no_class_grows_beyond_its_reason() -> None:
    large = set()
    for _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
                if max(len(methods), len(own_attributes(node))) > MOST_PARTS:
                    large.add(node.name)
    assert large <= LARGER.keys(), "split it along what changes together, or say why not"
    assert large == LARGER.keys(), "it has become smaller: take it off the list"


def test_no_two_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for path, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path))
    shared = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert not shared, f"one name for two things: {shared}"


def test_every_number_in_a_record_names_its_unit() -> None:
    for cls in vars(records).values():
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            for item in dataclasses.fields(cls):
                if str(item.type) in {"int", "float", "float | None", "int | None"}:
                    assert item.name.endswith(UNITS), f"{cls.__name__}.{item.name}: which unit?"


def test_records_are_frozen() -> None:
    for cls in vars(records).values():
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            assert cls.__dataclass_params__.frozen, f"{cls.__name__} can be changed"


def test_the_exception_tree_in_the_docstring_is_the_real_one() -> None:
    def draw(cls, depth=0):
        yield ("" if depth == 0 else "|   " * (depth - 1) + "+-- ") + cls.__name__
        for child in cls.__subclasses__():
            yield from draw(child, depth + 1)

    drawn = (hasten.errors.__doc__ or "").split("\n\n", 1)[1].strip().splitlines()
    assert drawn == list(draw(hasten.errors.HastenError))


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_every_stage_says_what_it_is_for(stage) -> None:
    assert (importlib.import_module(f"hasten.{stage}").__doc__ or "").strip()
