"""What one trial has compiled, the next one has, and the real run after them."""

import json
import os
import subprocess
import sys

import pytest

from hasten.lever import COMPILED_KEY
from hasten.protocol import CostsRead, ReadCosts
from hasten.records import Entry, Plan, Workload
from hasten.session import Options, doctor, run
from hasten.session.setup import kept_code, open_runner
from hasten.trials import compiled_code
from hasten.trials.compiled_code import CompiledCode, LentCode, handed_out, is_handed_out
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
import json
seen = torch._dynamo.utils.counters
print(json.dumps({"aot": seen["aot_autograd"], "inductor": seen["inductor"]}))
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


def test_trials_begin_with_what_an_earlier_tuning_has_left(scratch, tmp_path) -> None:
    kept = scratch("kept", kernel="old") / "compiled"
    with CompiledCode(kept) as code:
        code.lend(scratch("plain"), Plan())
        assert code._folder is None
        first, second = scratch("first"), scratch("second")
        code.lend(first, COMPILED)
        assert seen(first) == {"kernel": "old"}
        code.collect(scratch("one", other="2"))
        code.lend(second, COMPILED)
        assert seen(second) == {"kernel": "old", "other": "2"}
        code.kept = kept
    assert seen(kept) == {"kernel": "old", "other": "2"}
    with CompiledCode(tmp_path / "nothing") as code:
        code.lend(scratch("none"), COMPILED)
        assert code._folder is None


def test_a_real_run_does_not_begin_with_kept_code_where_torchs_folder_is_chosen(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert (is_handed_out(tmp_path), is_handed_out(None)) == (True, False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert not is_handed_out(tmp_path)


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


def test_a_tuning_leaves_its_code_in_place_of_what_was_kept_before(scratch, tmp_path) -> None:
    place = tmp_path / "kept" / "this"
    one = scratch("one", kernel="1")
    for name in ("locks", "precompiled_headers"):
        (one / "compiled" / name).mkdir()
        (one / "compiled" / name / name).write_text("not for a run")
    for trial in (scratch("old", gone="0"), one):
        with CompiledCode() as code:
            code.kept = place
            code.collect(trial)
    assert seen(place) == {"kernel": "1"}
    assert place.parent.stat().st_mode & 0o777 == 0o700
    with CompiledCode() as code:
        code.collect(scratch("other", other="2"))
    assert seen(place) == {"kernel": "1"}


def test_what_was_kept_longest_ago_goes_first(scratch, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(compiled_code, "_MOST_KEPT_BYTES", 20_000)
    for age, name in enumerate(("newest", "older", "oldest")):
        (tmp_path / "kept" / name).mkdir(parents=True)
        (tmp_path / "kept" / name / "kernel").write_bytes(bytes(10_000))
        os.utime(tmp_path / "kept" / name, (age and -age, -age))
    with CompiledCode() as code:
        code.kept = tmp_path / "kept" / "this"
        code.collect(scratch("one", kernel="1"))
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"this", "newest"}


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Start a real run under a plan, of a script whose tuning has left code; return its variables.

    Torch's own folder lies in `tmp`.
    """
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("getpass.getuser", lambda: "a:b")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py", "-x"), cwd=str(tmp_path), python=sys.executable
    )
    place = kept_code(workload)
    (place / "ab").mkdir(parents=True)
    (place / "ab" / "kernel").write_text("1")

    def start(plan=COMPILED):
        begun = []
        monkeypatch.setattr(os, "execvpe", lambda name, command, env: begun.append(env))
        run(workload, plan)
        return begun[0].get("TORCHINDUCTOR_CACHE_DIR")

    return start


def test_a_real_run_finds_what_its_tuning_has_compiled(started, tmp_path) -> None:
    own = tmp_path / "tmp" / "torchinductor_a_b"
    (own / "ab").mkdir(parents=True)
    (own / "ab" / "mine").write_text("2")
    assert started() == str(own)
    assert seen(own) == {"kernel": "1", "mine": "2"}
    assert started(Plan().with_lever("malloc_retention", True)) is None


@pytest.mark.parametrize(
    "case", ["chosen", "foreign", "linked", "nameless", "never tuned", "other processor", "unknown"]
)
def test_a_real_run_without_kept_code_is_left_alone(started, case, tmp_path, monkeypatch) -> None:
    own, before = tmp_path / "tmp" / "torchinductor_a_b", None
    if case == "chosen":
        before = str(tmp_path / "chosen")
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", before)
    elif case == "foreign":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    elif case == "linked":
        (tmp_path / "elsewhere").mkdir()
        own.symlink_to(tmp_path / "elsewhere")
    elif case == "nameless":

        def nobody():
            raise KeyError

        monkeypatch.setattr("getpass.getuser", nobody)
    elif case != "never tuned":
        kind = None if case == "unknown" else "flags: sse2"
        monkeypatch.setattr("hasten.machine.cpu.processor_kind", lambda root: kind)
    else:
        assert handed_out(tmp_path / "nothing") == {}
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert started() == before
    assert not list((tmp_path / "tmp").rglob("kernel"))
    assert not list(tmp_path.glob("elsewhere/*"))


@pytest.mark.slow
@pytest.mark.child
def test_the_second_trial_compiles_for_less_and_so_does_the_real_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    (tmp_path / "train.py").write_text(SCRIPT)
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path), python=sys.executable
    )

    def compile_s(runner: TrialRunner) -> float:
        runner.steps(Plan(), 4)  # an optimizer has stepped before the lever is applied
        runner.steps(COMPILED, 4)
        trial = runner.children.trial(COMPILED)
        found = trial.ask(ReadCosts(), CostsRead, 60.0).compile_s
        runner.children.clear()
        return found

    with (
        CompiledCode() as code,
        open_runner(workload, Options(), doctor(sys.executable), code) as runner,
    ):
        first_s, second_s = compile_s(runner), compile_s(runner)
        code.kept = kept_code(workload)
    assert second_s < 0.4 * first_s
    assert not any("inductor" in name for name in os.listdir(tmp_path))
    # Another number of threads would be another graph.
    command = [sys.executable, "-m", "hasten", "run", "--set", "torch_compile=default", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    counts = json.loads(done.stdout)
    assert counts["aot"]["autograd_cache_hit"] == counts["aot"]["total"] == 1
    assert "fxgraph_cache_miss" not in counts["inductor"]
    (own,) = tmp_path.glob("torchinductor_*")
    assert not list(own.rglob("*.gch"))
