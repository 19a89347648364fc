"""What one trial has compiled, the next one has."""

import os
import sys

import pytest

from hasten.lever import COMPILED_KEY
from hasten.records import Entry, Plan, Workload
from hasten.session import Options, doctor
from hasten.session.setup import open_runner
from hasten.trials import compiled_code
from hasten.trials.compiled_code import CompiledCode, LentCode
from hasten.trials.runner import TrialRunner

COMPILED = Plan().with_lever("torch_compile", "default")
SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10_000):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)

    def make(name, **files):
        place = tmp_path / name
        (place / "compiled" / "ab").mkdir(parents=True)
        for file, text in files.items():
            (place / "compiled" / "ab" / file).write_text(text)
        return place

    return make


def seen(place):
    return {path.name: path.read_text() for path in place.rglob("*") if path.is_file()}


def test_a_trial_begins_with_what_those_before_it_have_compiled(scratch) -> None:
    with CompiledCode() as code:
        code.collect(scratch("one", kernel="1"))
        code.collect(scratch("two", kernel="later", other="2"))
        new, other = scratch("new"), scratch("other")
        told = code.lend(new, COMPILED)
        assert told == {COMPILED_KEY: str(new / "compiled")}
        assert seen(new) == {"kernel": "1", "other": "2"}
        code.lend(other, Plan())  # it compiles nothing
        assert seen(other) == {}
        kept = code._folder
    assert not kept.exists()


@pytest.mark.parametrize(
    ("plan", "spoiled", "handed"),
    [(COMPILED, False, {"kernel": "1"}), (COMPILED, True, {}), (Plan(), False, {})],
)
def test_a_trial_hands_on_what_it_has_compiled_since_it_began(
    scratch, plan, spoiled, handed
) -> None:
    with CompiledCode() as code:
        own, new = LentCode(code, scratch("own", kernel="1")), scratch("new")
        own.lend(COMPILED)
        own.hand_on()  # it has not begun: what is there may be half written
        assert code._folder is None
        own.go_over(plan)
        if spoiled:
            own.spoil()
        own.hand_on()
        code.lend(new, COMPILED)
        assert seen(new) == handed


def test_a_folder_that_the_user_has_chosen_for_torch_is_left_to_be_it(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "chosen"))
    with CompiledCode() as code:
        assert code.lend(tmp_path, COMPILED) == {}
    assert not list(tmp_path.iterdir())


def test_nothing_is_kept_where_nothing_was_compiled(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with CompiledCode() as code:
        code.lend(tmp_path, COMPILED)
        code.collect(tmp_path)
        assert code._folder is None


def test_files_of_another_disk_are_copied(scratch, monkeypatch) -> None:
    def elsewhere(own, other) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(compiled_code.Path, "hardlink_to", elsewhere)
    with CompiledCode() as code:
        code.collect(scratch("one", kernel="1"))
        assert seen(code._folder) == {"kernel": "1"}


def test_a_full_disk_leaves_no_half_a_file(scratch, monkeypatch) -> None:
    def full(own, other) -> None:
        other.write_text("ha")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiled_code.shutil, "copy2", full)
    monkeypatch.setattr(compiled_code.Path, "hardlink_to", full)
    with CompiledCode() as code:
        code.collect(scratch("one", kernel="1"))
        assert seen(code._folder) == {}


@pytest.mark.slow
@pytest.mark.child
def test_the_second_trial_compiles_for_less_and_the_users_cache_stays(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    (tmp_path / "train.py").write_text(SCRIPT)
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path), python=sys.executable
    )

    def compile_s(runner: TrialRunner) -> float:
        runner.steps(Plan(), 4)  # an optimizer has stepped before the lever is applied
        runner.steps(COMPILED, 4)
        found = runner.facts(COMPILED).compile_s
        runner.children.clear()
        return found

    with (
        CompiledCode() as code,
        open_runner(workload, Options(), doctor(sys.executable), code) as runner,
    ):
        first_s, second_s = compile_s(runner), compile_s(runner)
    assert second_s < 0.4 * first_s
    assert not any("inductor" in name for name in os.listdir(tmp_path))
