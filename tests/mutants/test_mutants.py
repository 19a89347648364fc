"""The list of faults fits the source, and the changes of `--every` are what they say."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
try:
    _spec = importlib.util.spec_from_file_location("mutants_run", HERE / "run.py")
    run = importlib.util.module_from_spec(_spec)
    sys.modules[_spec.name] = run  # dataclasses look there
    _spec.loader.exec_module(run)
finally:
    sys.path.remove(str(HERE))

ROW = '[[group]]\nfile = "{}"\ntests = ["{}"]\n[[group.fault]]\nname = "a"\nold = "{}"\nnew = ""\n'
MAKEFILE, SELF = "Makefile", "tests/mutants/test_mutants.py"


def test_each_fault_of_the_list_can_be_planted() -> None:
    """Where this fails, mend `old` in faults.toml as the source was changed."""
    faults = run.read_list()
    assert len(faults) > 40
    for fault in faults:
        source = (run.ROOT / fault.file).read_text()
        assert fault.plant(source) != source, fault.name


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((MAKEFILE, SELF, "no such text"), "stands 0 times"),
        ((MAKEFILE, SELF, "READY"), "stands .* times"),
        (("no such file", SELF, "x"), "there is no no such file"),
        ((MAKEFILE, "tests/none.py", "mutants clean"), "there is no tests/none.py"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(tmp_path, row, message) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(ROW.format(*row))
    with pytest.raises(run.StaleList, match=message):
        run.read_list(path)


def test_two_faults_of_one_name_are_refused(tmp_path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(2 * ROW.format(MAKEFILE, SELF, "mutants clean"))
    with pytest.raises(run.StaleList, match="Two faults are called a"):
        run.read_list(path)


def changes(source):
    return [change for _, change, _ in run.places(source)]


def test_every_kind_of_place_is_changed() -> None:
    assert changes("x = a < 1") == ["a < 1 -> a <= 1", "a < 1 -> a >= 1", "1 -> 2", "1 -> 0"]
    assert changes("x = a and b") == ["a and b -> ((a) or (b))", "a and b -> (a)", "a and b -> (b)"]
    assert changes("x = max(a, b) * 0.5")[0] == "max(a, b) * 0.5 -> ((max(a, b)) / (0.5))"
    assert "max -> min" in changes("x = max(a, b)")
    assert changes("clear(a)") == ["clear(a) -> pass"]
    assert changes("x = not a") == ["not a -> (a)"]
    assert changes("x = baseline_s") == ["baseline_s -> candidate_s"]


def test_what_decides_nothing_is_left_alone() -> None:
    assert changes('x: int | None = f"{a + 1}"') == []
    assert changes("if TYPE_CHECKING:\n    import a") == []


def test_each_change_is_a_program() -> None:
    source = Path(run.__file__).read_text()
    for _, change, mutant in run.places(source):
        compile(mutant, change, "exec")
        assert mutant != source


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A tree of one value, which a test expects to be 1."""
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "value.py").write_text("def value():\n    return 1\n")
    (tmp_path / "test_value.py").write_text(
        "import value\n\ndef test_it():\n    assert value.value() == 1\n"
    )
    (tmp_path / "test_wrong.py").write_text("def test_it():\n    assert False\n")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "COPIED", [path.name for path in tmp_path.iterdir()])
    monkeypatch.setattr(run, "IMPORTS", ["pytest"])
    monkeypatch.setattr(run, "RECORD", tmp_path / "build" / "mutants.jsonl")
    return tmp_path


def fault(name, new, test="test_value.py"):
    return run.Fault(name=name, file="value.py", old="return 1", new=new, tests=(test,))


def test_a_run_that_was_cut_off_goes_on_and_one_test_that_fails_does_not_end_it(
    small, monkeypatch
) -> None:
    faults = [
        fault("wrong test", "return 2", "test_wrong.py"),
        fault("one", "return 2"),
        fault("two", "return +1"),
    ]
    found = [outcome for _, outcome, _ in run.outcomes(faults, 1)]
    assert found == [run.UNTRIED, run.KILLED, run.SURVIVED]
    tried = []
    monkeypatch.setattr(run, "try_fault", lambda one, *others: tried.append(one.name) or run.KILLED)
    (small / "test_value.py").write_text("import value\n\ndef test_it(): pass\n")
    assert [outcome for _, outcome, _ in run.outcomes(faults[1:], 1)] == 2 * [run.KILLED]
    assert tried == ["one", "two"], "what a changed test said of them holds no more"
    assert [outcome for _, outcome, _ in run.outcomes(faults, 1)] == 3 * [run.KILLED]
    assert tried == ["one", "two", "wrong test"]


def test_a_fault_that_no_test_notices_survives_and_one_that_hangs_is_killed(small) -> None:
    server = run.Server(small)
    try:
        assert server.run(["test_value.py"], limit_s=60.0) == run.ALL_PASSED
        for body, code in (
            ("return 2", run.SOME_FAILED),
            ("return 1", run.ALL_PASSED),
            ("return 3", run.SOME_FAILED),
            ("while True: pass", run.SOME_FAILED),
            ("return +1", run.ALL_PASSED),
        ):
            server.write("value.py", f"def value():\n    {body}\n")
            assert server.run(["test_value.py"], limit_s=60.0 if "r" in body[:1] else 2.0) == code
    finally:
        server.close()
