import errno
import json
import os
import py_compile
import subprocess
import sys
import zipapp
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

import hasten
from hasten.cli import app
from hasten.errors import IsolationFailed, NeverTrains, ScriptFailed, UsageError
from hasten.lever import at_least
from hasten.records import (
    Budget,
    Cost,
    Cpu,
    Diagnosis,
    Effect,
    Entry,
    Interval,
    Machine,
    Phase,
    Plan,
    Profile,
    Profiling,
    Proof,
    Step,
    Tuning,
)
from hasten.testing import plant

MACHINE = Machine(cpu=Cpu(model="A CPU"), budget=Budget(core_count=2, limited_by="cores"))
PROFILE = Profile(
    step_s=0.01, step_low_s=0.009, step_high_s=0.012, sample_unit="samples", sample_count=8,
    phase_s={Phase.DATA: 0.006, Phase.FORWARD: 0.004}, step_count=50,
)  # fmt: skip
EXAMINED = Diagnosis(steps=(Step(phase_ns={Phase.DATA: 4_000_000}, sample_count=8),))
THREADS = Plan().with_lever("intra_op_threads", 2)


@dataclass(frozen=True, kw_only=True)
class Options:
    budget_s: float
    spent_s: float
    first_s: float
    numerics: Effect
    only: frozenset[str]
    skip: frozenset[str]
    applied: Plan
    patience_s: float
    training_s: float | None
    step_count: int | None
    unprotected: bool
    assumed: frozenset[str]


class Session(ModuleType):
    """A session that only writes down what it was asked."""

    Options = Options

    def __init__(self):
        super().__init__("hasten.session")
        self.calls = []
        self.machine = MACHINE
        self.plan = THREADS
        self.interrupted = False
        self.speedup = Interval(low_ratio=1.1, mid_ratio=1.2, high_ratio=1.3)
        self.error = None
        self.diagnosis = Diagnosis()

    def note(self, *call):
        self.calls.append(call)
        if self.error is not None:
            raise self.error

    def glance(self, workload):
        self.note("glance", workload.python)
        return self.machine

    def doctor(self, python):
        self.note("doctor", python)
        return self.machine

    def profile(self, workload, options, view):
        self.note("profile", workload, options)
        view.stage("Watching")
        return Profiling(
            machine=self.machine, workload=workload, profile=PROFILE,
            diagnosis=self.diagnosis,
            notes=("A note.",),
        )  # fmt: skip

    def tune(self, workload, options, view):
        self.note("tune", workload, options)
        view.stage("Racing", "one of many")
        return Tuning(
            machine=self.machine, workload=workload, baseline=PROFILE, plan=self.plan,
            proof=Proof(effect=Effect.ROUNDING), cost=Cost(wall_s=9.0, launch_count=3),
            speedup=self.speedup, assumed=tuple(sorted(options.assumed)),
            interrupted=self.interrupted, diagnosis=self.diagnosis,
        )  # fmt: skip

    def fitting(self, plan):
        return plan.without("intra_op_threads"), ["intra_op_threads=4"]

    def run(self, workload, plan, envelope, assumed, *, shares_batches):
        if shares_batches:
            self.note("shares batches")
        self.note("run", workload, plan, envelope, assumed)


@pytest.fixture
def session(monkeypatch):
    fake = Session()
    monkeypatch.setitem(sys.modules, "hasten.session", fake)
    monkeypatch.setattr(hasten, "session", fake, raising=False)
    return fake


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = {
        name: SimpleNamespace(
            name=name,
            kind=kind,
            validate=validate,
            snippet=lambda s: f"# set to {s}",
            edit="",
            run_only="",
            edited_calls=(),
            env=lambda env, s: env,
        )
        for name, kind, validate in (
            ("compile", str, lambda _: ""),
            ("intra_op_threads", int, at_least(1)),
        )
    }
    plant(monkeypatch, known)
    for name in ("train.py", "old.py"):
        (tmp_path / name).write_text("print('training')\n")
    return tmp_path


def hasten_with(*args):
    return CliRunner().invoke(app, list(args), prog_name="hasten")


def workload(session):
    return session.calls[-1][1]


def options(session):
    return session.calls[-1][-1]


def test_everything_after_the_script_belongs_to_the_script(session):
    done = hasten_with("tune", "--budget", "5m", "train.py", "--budget", "9", "-m", "--", "x")
    assert done.exit_code == 0, done.output
    assert workload(session).argv == ("train.py", "--budget", "9", "-m", "--", "x")
    assert workload(session).entry is Entry.SCRIPT
    assert workload(session).python == sys.executable
    assert workload(session).cwd == str(Path.cwd())
    assert options(session).budget_s == 300.0
    assert options(session).first_s == 80.0


@pytest.mark.parametrize(
    ("args", "entry", "argv"),
    [
        (["-m", "pkg.mod", "--epochs", "3"], Entry.MODULE, ("pkg.mod", "--epochs", "3")),
        (["-mpkg.mod", "-m", "x"], Entry.MODULE, ("pkg.mod", "-m", "x")),
        (["--quiet", "-m", "pkg.mod", "--quiet"], Entry.MODULE, ("pkg.mod", "--quiet")),
        (["--budget", "1m", "-m", "p", "--budget"], Entry.MODULE, ("p", "--budget")),
        (["--budget=1m", "-m", "p"], Entry.MODULE, ("p",)),
        (["--", "sh", "train.sh", "-x"], Entry.COMMAND, ("sh", "train.sh", "-x")),
        (["--progress", "plain", "--", "sh", "-m"], Entry.COMMAND, ("sh", "-m")),
        (["--", "train.py", "--x"], Entry.SCRIPT, ("train.py", "--x")),
        (["a.ipynb", "-m"], Entry.NOTEBOOK, ("a.ipynb", "-m")),
        (["train.py", "--help"], Entry.SCRIPT, ("train.py", "--help")),
    ],
)
def test_a_module_a_program_or_a_notebook_stands_where_a_script_does(session, args, entry, argv):
    Path("a.ipynb").write_text("{}")
    done = hasten_with("tune", *args)
    assert done.exit_code == 0, done.output
    assert workload(session).entry is entry
    assert workload(session).argv == argv


def test_options_have_true_defaults(session):
    hasten_with("tune", "train.py")
    asked = options(session)
    assert asked.spent_s > 0.0, "Python has started"
    assert asked == Options(
        budget_s=300.0, spent_s=asked.spent_s, first_s=80.0, numerics=Effect.DISTRIBUTION,
        only=frozenset(), skip=frozenset(), applied=Plan(), patience_s=60.0, training_s=None,
        step_count=None, unprotected=False, assumed=frozenset(),
    )  # fmt: skip


def test_every_option_arrives(session):
    done = hasten_with(
        "tune", "--numerics", "precision", "--train-time", "8h", "--plan", "p.toml", "--force",
        "--set", "intra_op_threads=4", "--set", "compile=max", "--only", "compile",
        "--skip", "intra_op_threads", "--startup-timeout", "2m", "--quiet",
        "--progress", "plain", "--no-sandbox", "train.py",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = options(session)
    assert found.numerics is Effect.PRECISION
    assert (found.training_s, found.patience_s) == (28800.0, 120.0)
    assert found.applied == Plan().with_lever("intra_op_threads", 4).with_lever("compile", "max")
    assert (found.only, found.skip) == ({"compile"}, {"intra_op_threads"})
    assert Path("p.toml").exists()
    assert found.unprotected
    hasten_with("profile", "--no-sandbox", "train.py")
    assert options(session).unprotected


MISSING = "Traceback (most recent call last):\n  File 'x'\nModuleNotFoundError: No module named "
BESIDE = "usage: train.py [--budget BUDGET]\ntrain.py: error: unrecognized arguments: --lr 3"
NOT_TAKEN = "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --budget 9"


@pytest.mark.parametrize(
    ("output", "words", "code", "message"),
    [
        (f"{MISSING}'torch'", (), 2, "The Python that runs the script has no torch."),
        (f"{MISSING}'torchdata'", (), 3, "Make it run under plain python first."),
        ("hasten: A notebook needs IPython.\n", (), 2, "A notebook needs IPython"),
        (NOT_TAKEN, ("--budget", "9"), 2, "--budget comes after the script"),
        (NOT_TAKEN, ("--budgets", "9"), 3, "Make it run under plain python first."),
        (BESIDE, ("--budget", "9", "--lr", "3"), 3, "Note that --budget comes after the script"),
        ("KeyError: 1", ("--numerics=exact",), 3, "Note that --numerics comes after the script"),
        ("no -o in here: too-short", ("-o", "x"), 2, "-o comes after the script"),
        ("KeyError: outcome -output", ("-o", "x"), 3, "Note that -o comes after the script"),
        ("KeyError: 1", ("--epochs", "2"), 3, "Make it run under plain python first."),
    ],
)
def test_a_failure_is_told_as_what_it_is(session, output, words, code, message):
    remedy = "Make it run under plain python first."
    session.error = ScriptFailed("The script failed (exit code 1).", remedy=remedy, output=output)
    done = hasten_with("tune", "train.py", *words)
    assert (done.exit_code, message in done.output) == (code, True), done.output
    assert done.output.count("comes after the script") <= 1


def test_a_fault_of_ours_is_one_sentence_and_its_traceback_is_kept(session, project, monkeypatch):
    session.error = ZeroDivisionError("division by zero")
    done = hasten_with("tune", "train.py")
    assert done.exit_code == 1
    assert "This is a bug in hasten: ZeroDivisionError: division by zero" in done.output
    assert "Traceback" not in done.output
    kept = project / "cache" / "hasten" / "traceback.txt"
    assert str(kept) in done.output
    assert "ZeroDivisionError" in kept.read_text()
    monkeypatch.setenv("HASTEN_DEBUG", "1")
    assert "Traceback" in hasten_with("tune", "train.py").output


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/full"), "no space left on device (/"),
        (OSError(errno.EMFILE, "Too many open files"), "too many open files."),
        (OSError(errno.ENFILE, "Too many open files in system"), "open files in system."),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "unavailable."),
    ],
)
def test_what_the_system_is_short_of_is_no_bug_of_ours(session, project, error, sentence):
    session.error = error
    done = hasten_with("tune", "train.py")
    problem, remedy = done.stderr.splitlines()[-2:]
    assert done.exit_code == 1
    assert problem.startswith("hasten: The system ran short: ")
    assert sentence in problem
    assert remedy.endswith(", and try again.")
    assert not (project / "cache" / "hasten" / "traceback.txt").exists()


def test_where_a_traceback_cannot_be_kept_it_is_printed(session, project, monkeypatch):
    (project / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "file"))
    session.error = ZeroDivisionError("division by zero")
    done = hasten_with("tune", "train.py")
    assert done.exit_code == 1
    assert "Report it with the traceback above." in done.output
    assert "Traceback" in done.output


def test_what_controls_a_terminal_is_spelt_out(session):
    Path("hasten.toml").write_text('schema = 1\n[plan]\n"\\u001b[31mx\\u009b\\u0007" = true\n')
    done = hasten_with("run", "train.py")
    assert done.exit_code == 2
    assert "Unknown levers: \\x1b[31mx\\x9b\\x07." in done.output
    assert done.output.isascii()


DEEP = {
    "attributes": "x = 1\nif 0: x" + ".a" * 30_000,
    "unary": "x = " + "-" * 30_000 + "1",
    "sum": "x = " + "1+" * 30_000 + "1",
}


@pytest.mark.parametrize("verb", ["tune", "profile", "run"])
@pytest.mark.parametrize("kind", DEEP)
def test_a_script_that_is_too_deep_for_the_compiler_is_left_to_python(session, verb, kind):
    Path("train.py").write_text(DEEP[kind])
    done = hasten_with(verb, *(("--set", "compile=max") if verb == "run" else ()), "train.py")
    assert done.exit_code == 0, done.output
    assert workload(session).argv == ("train.py",)


@pytest.mark.parametrize("verb", ["tune", "profile", "run"])
def test_an_unknown_assumption_is_refused_with_the_known_names(session, verb):
    done = hasten_with(verb, "--assume", "nothing-moves", "train.py")
    assert done.exit_code == 2
    assert "There is no assumption 'nothing-moves'." in done.output
    assert "Choose from: dataset-unchanged." in done.output
    assert session.calls == []


def test_a_run_takes_the_assumptions_of_its_plan_and_of_its_own_command(session):
    granted = ("--assume", "dataset-unchanged")
    hasten_with("profile", *granted, "train.py")
    assert options(session).assumed == {"dataset-unchanged"}
    hasten_with("run", "--set", "intra_op_threads=2", "train.py")
    assert session.calls[-1][-1] == frozenset()
    hasten_with("run", *granted, "--set", "intra_op_threads=2", "train.py")
    assert session.calls[-1][-1] == {"dataset-unchanged"}
    done = hasten_with("tune", *granted, "train.py")
    assert options(session).assumed == {"dataset-unchanged"}
    assert "assumed  dataset-unchanged" in done.output
    hasten_with("run", "train.py")
    assert session.calls[-1][-1] == {"dataset-unchanged"}


@pytest.mark.parametrize("order", [("k.toml", "--full"), ("--full", "k.toml")])
def test_the_commands_that_a_report_prints_can_be_typed(session, order):
    hasten_with("tune", "--plan", "k.toml", "train.py")
    done = hasten_with("report", *order)
    assert done.exit_code == 0, done.output


def test_a_device_is_the_setting_of_the_lever_that_has_this_option(session, monkeypatch):
    lever = SimpleNamespace(name="place", kind=str, validate=lambda _: "", option="device")
    plant(monkeypatch, {"place": lever})
    hasten_with("run", "--device", "cpu", "train.py")
    assert session.calls[-1][2] == Plan().with_lever("place", "cpu")
    for verb in ("profile", "tune"):
        hasten_with(verb, "--device", "cpu", "train.py")
        assert options(session).applied == Plan().with_lever("place", "cpu")
        hasten_with(verb, "--force", "train.py") if verb == "tune" else hasten_with(
            verb, "train.py"
        )
        assert options(session).applied == Plan()


def test_several_levers_may_stand_between_commas(session):
    chosen = ("--only", "compile, intra_op_threads", "--skip", "compile,", "--skip", "x")
    refused = hasten_with("tune", *chosen, "train.py")
    assert "Unknown levers: x." in refused.output
    assert hasten_with("tune", *chosen[:-2], "train.py").exit_code == 0
    found = options(session)
    assert (found.only, found.skip) == ({"compile", "intra_op_threads"}, {"compile"})


@pytest.mark.parametrize(
    ("kind", "text", "setting"),
    [
        (bool, "true", True),
        (bool, "True", True),
        (int, "4", 4),
        (int, "-1", -1),
        (float, "0.5", 0.5),
        (str, "a=b", "a=b"),
    ],
)
def test_a_setting_is_read_as_what_it_looks_like(session, monkeypatch, kind, text, setting):
    plant(monkeypatch, {"a": SimpleNamespace(name="a", kind=kind, validate=lambda _: "")})
    hasten_with("run", "--set", f"a={text}", "train.py")
    ((_, found),) = session.calls[-1][2].settings
    assert found == setting
    assert type(found) is type(setting)


@pytest.mark.parametrize(
    ("lever", "text"),
    [("intra_op_threads", "two"), ("intra_op_threads", "0"), ("compile", "0.5")],
)
@pytest.mark.parametrize("verb", ["run", "tune"])
def test_a_setting_of_another_kind_is_refused_before_anything_starts(session, verb, lever, text):
    done = hasten_with(verb, "--set", f"{lever}={text}", "train.py")
    assert done.exit_code == 2
    assert f"The lever {lever} does not take {text}." in done.stderr
    assert not session.calls


def test_a_lever_at_false_is_left_alone_and_taken_out_of_the_plan(session):
    hasten_with("tune", "train.py")
    assert hasten_with("run", "--set", "intra_op_threads=false", "train.py").exit_code == 0
    assert session.calls[-1][2] == Plan()
    hasten_with("tune", "--force", "--set", "compile=false", "train.py")
    assert options(session).applied == Plan()
    done = hasten_with("run", "--set", "complie=false", "train.py")
    assert "Unknown levers: complie." in done.stderr


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["tune", "gone.py"], "Cannot find the script gone.py."),
        (["tune", "."], ". is a folder."),
        (["tune", ""], "No script is named."),
        (["tune", "sh"], "Cannot find the script sh."),
        (["tune", "--", "no-such-program"], "Cannot find the program no-such-program."),
        (["tune", "--"], "There is no program after --."),
        (["tune", "-m"], "There is no module after -m."),
        (["tune", "--budget", "soon", "train.py"], "Cannot read the duration 'soon'."),
        (["tune", "--set", "compile", "train.py"], "Cannot read --set compile."),
        (["tune", "--set", "x=1", "train.py"], "Unknown levers: x."),
        (["tune", "--only", "x", "train.py"], "Unknown levers: x."),
        (["tune", "--only", ",", "train.py"], "--only names no lever."),
        (["tune", "--json", ".", "train.py"], "Cannot write .: it is a folder."),
        (["tune", "--plan", "train.py", "--force", "train.py"], "train.py is the plan, its report"),
        (["tune", "--plan", "old.py", "train.py"], "old.py is there already"),
        (["profile", "gone.py"], "Cannot find the script gone.py."),
        (["run", "train.py"], "There is no plan: hasten.toml is not in this folder."),
        (["run", "--plan", "gone.toml", "train.py"], "There is no plan at gone.toml."),
        (["report"], "No tuning is kept for hasten.toml."),
        (["tune", "--budget", "0", "train.py"], "--budget must be above 0: 0."),
        (["tune", "--train-time", "0h", "train.py"], "--train-time must be above 0: 0h."),
        (["tune", "--budget", "1h30", "train.py"], "Cannot read the duration '1h30'."),
        (["tune", "--budget", "1 000", "train.py"], "Cannot read the duration '1 000'."),
        (["tune", "--budget", "1001d", "train.py"], "--budget must be at most 1000d: 1001d."),
        (["tune", "--budget", "9" * 400, "train.py"], "--budget must be at most 1000d: 999"),
        (
            ["tune", "--startup-timeout", "0", "train.py"],
            "--startup-timeout must be above 0: 0.",
        ),
        (
            ["profile", "--startup-timeout", "0ms", "train.py"],
            "--startup-timeout must be above 0: 0ms.",
        ),
        (["report", "--edits", "--html", "p.html"], "it cannot go with --html."),
        (["report", "--edits", "--json", "a", "--html", "b"], "with --json, --html."),
        (["report", "--html", "hasten.toml"], "hasten.toml is the plan, its report, a script"),
        (["tune", "--html", "hasten.toml", "train.py"], "hasten.toml is the plan, its report"),
        (
            ["profile", "--json", "a", "--html", "a", "train.py"],
            "a is the plan, its report, a script",
        ),
        (["profile", "--json", "a", "--log-jsonl", "a", "train.py"], "a is the plan, its report"),
        (["tune", "--log-jsonl", "hasten.toml", "train.py"], "hasten.toml is the plan, its"),
        (["tune", "--log-jsonl", "hasten-report.txt", "train.py"], "is the plan, its report"),
        (["tune", "--json", "hasten-unconfirmed.toml", "train.py"], "is the plan, its report"),
        (["tune", "--html", "a-unconfirmed-report.txt", "-o", "a.toml", "train.py"], "its report"),
        (["profile", "--log-jsonl", "train.py", "train.py"], "its report, a script or"),
        (["profile", "--json", "train.py", "--", "bash", "-c", "x", "train.py"], "a script or"),
        (["levers", "x"], "There is no lever called x."),
        (["findings", "x"], "There is no finding called x."),
    ],
)
def test_wrong_usage_is_one_sentence_and_a_remedy(session, args, problem):
    done = hasten_with(*args)
    assert done.exit_code == 2, done.output
    first, second = done.stderr.splitlines()
    assert first.startswith("hasten: ")
    assert problem in first
    assert second.strip().endswith(".")
    assert not done.stdout
    assert not session.calls


@pytest.mark.parametrize("args", [["tune"], ["tune", "--bugdet", "5m", "train.py"], ["tunne"]])
def test_what_cannot_be_parsed_ends_with_2(session, args):
    assert hasten_with(*args).exit_code == 2


def test_a_program_in_the_place_of_a_script_gets_the_right_hint(session):
    assert "hasten tune -- sh ..." in hasten_with("tune", "sh", "train.sh").stderr


@pytest.mark.parametrize("source", ["x = 1\nfor in y:\n", "\0", "# coding: no-such-coding\n"])
def test_a_broken_script_is_found_before_any_launch(session, source):
    Path("train.py").write_text(source)
    done = hasten_with("tune", "train.py")
    assert done.exit_code == 3
    assert "Error" in done.stderr
    assert "Python cannot read the script train.py." in done.stderr
    assert not session.calls


def test_a_run_leaves_a_broken_script_to_python(session):
    Path("train.py").write_text("for in y:\n")
    assert hasten_with("run", "--set", "compile=max", "train.py").exit_code == 0
    assert workload(session).argv == ("train.py",)


def test_a_syntax_error_shows_its_place(session):
    Path("train.py").write_text("x = 1\nfor in y:\n")
    assert 'File "train.py", line 2' in hasten_with("profile", "train.py").stderr


def test_a_warning_in_the_script_is_its_own_affair(session):
    Path("train.py").write_text("x = 'a' is 'a'\n")
    assert hasten_with("tune", "train.py").exit_code == 0


def test_what_python_runs_is_run(session):
    Path("pack").mkdir()
    Path("pack/__main__.py").write_text("print('training')\n")
    zipapp.create_archive("pack", "pack.pyz")
    py_compile.compile("train.py", "train.pyc")
    for name in ("pack", "pack.pyz", "train.pyc"):
        for verb in ("tune", "profile", "run"):
            done = hasten_with(verb, *(["--force"] if verb != "profile" else []), name)
            assert done.exit_code == 0, done.stderr
            assert workload(session).argv == (name,)


@pytest.mark.parametrize(
    "words",
    [["run", "--set", "compile=x"], ["tune"], ["profile"], ["report"], ["report", "--edits"]],
)
def test_a_working_folder_that_was_removed_is_a_sentence(session, project, monkeypatch, words):
    gone = project / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = hasten_with(*words, *([] if words[0] == "report" else [str(project / "train.py")]))
    assert done.exit_code == 2
    assert "The working folder was removed." in done.stderr
    assert "Change into a folder that exists." in done.stderr
    monkeypatch.chdir(project)


def test_what_needs_no_folder_works_in_one_that_was_removed(session, project, monkeypatch):
    gone = project / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for words in (["levers", "--help"], ["tune", "--help"], ["findings"], ["doctor"]):
        done = hasten_with(*words)
        assert (done.exit_code, done.stderr) == (0, ""), words
    monkeypatch.chdir(project)


@pytest.fixture
def other_python(project, monkeypatch):
    program = project / "venv" / "bin" / "python3.12"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def test_a_program_s_python_is_the_one_in_front(session, other_python, monkeypatch):
    hasten_with("profile", "--", str(other_python), "train.py")
    assert workload(session).python == str(other_python)
    hasten_with("profile", "--", "venv/bin/python3.12", "train.py")
    assert workload(session).python == str(other_python)
    hasten_with("profile", "--", sys.executable, "train.py")
    assert workload(session).python == sys.executable
    hasten_with("tune", "--", str(other_python), "train.py")
    hasten_with("run", "--", str(other_python), "train.py")
    assert session.calls[-2] == ("glance", str(other_python))
    other_python.rename(other_python.with_name("python"))
    monkeypatch.setenv("PATH", str(other_python.parent), prepend=os.pathsep)
    hasten_with("profile", "--", "sh", "train.sh")
    assert workload(session).python == str(other_python.with_name("python"))


def test_a_name_that_is_no_utf8_is_tuned_told_and_run(session, monkeypatch):
    monkeypatch.setattr("hasten.cli.reports.print_page", lambda page, aside=False: None)
    session.diagnosis = EXAMINED
    name = "caf\udce9.py"
    Path(name).write_text("print('training')\n")
    out = ["--json", "r.json", "--log-jsonl", "e.jsonl"]
    done = hasten_with("tune", *out, name)
    assert done.exit_code == 0, done.output
    assert json.loads(Path("r.json").read_text())["workload"]["argv"] == ["caf\\udce9.py"]
    for line in Path("e.jsonl").read_text().splitlines():
        json.loads(line)
    assert hasten_with("profile", "--html", "p.html", name).exit_code == 0
    assert hasten_with("run", name).exit_code == 0
    assert session.calls[-1][1].argv == (name,)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (NeverTrains("It never trains.", remedy="Train.", output="Traceback!\n"), 3, "Traceback!"),
        (IsolationFailed("It writes.", remedy="Stop it."), 4, "hasten: It writes."),
        (
            UsageError("Too short.", remedy="Longer.\nSeen."),
            2,
            "\n         Longer.\n         Seen.",
        ),
        (KeyboardInterrupt(), 130, "hasten: Interrupted."),
    ],
)
def test_an_error_becomes_its_exit_code(session, error, code, words):
    session.error = error
    done = hasten_with("tune", "train.py")
    assert done.exit_code == code
    assert words in done.stderr
    assert not done.stdout
    assert not Path("hasten.toml").exists()


def test_tune_leaves_plan_report_record_and_document(session, project):
    done = hasten_with("tune", "--plan", "new/p.toml", "--json", "out.json", "train.py", "-x")
    assert done.exit_code == 0, done.output
    assert "1.20x faster." in done.stdout
    assert "# set to 2" in Path("new/p-report.txt").read_text()
    assert "Wrote new/p.toml, new/p-report.txt, out.json." in done.stderr
    assert "Racing: one of many" in done.stderr
    assert "intra_op_threads = 2" in Path("new/p.toml").read_text()
    saved = Path("new/p-report.txt").read_text()
    assert "1.20x faster." in saved
    assert max(map(len, saved.splitlines())) <= 80
    assert json.loads(Path("out.json").read_text())["plan"] == {"intra_op_threads": 2}

    again = hasten_with("report", "--json", "again.json", "new/p.toml")
    assert again.exit_code == 0, again.output
    assert again.stdout == done.stdout
    assert Path("again.json").read_text() == Path("out.json").read_text()


def test_two_plans_in_a_folder_have_a_report_each(session):
    hasten_with("tune", "-o", "a.toml", "train.py")
    first = Path("a-report.txt").read_text()
    session.plan = Plan()
    hasten_with("tune", "-o", "b.toml", "train.py")
    assert Path("b-report.txt").read_text() != Path("a-report.txt").read_text() == first
    assert not Path("hasten-report.txt").exists()


def test_a_report_without_a_plan_is_that_of_this_folder_as_the_help_says(session):
    own = hasten_with("tune", "train.py").stdout
    session.plan = Plan()
    newer = hasten_with("tune", "--plan", "new/hasten.toml", "train.py").stdout
    assert hasten_with("report").stdout == own != newer
    page = " ".join(hasten_with("report", "--help").stdout.split())
    assert "The plan file of a tuning; hasten.toml by default." in page


def test_the_report_is_also_an_html_page(session):
    assert hasten_with("tune", "--html", "new/t.html", "train.py").exit_code == 0
    page = Path("new/t.html").read_text()
    assert "<h1>1.20x faster.</h1>" in page
    assert "# set to 2" in page
    assert hasten_with("report", "--html", "again.html").exit_code == 0
    assert Path("again.html").read_text() == page
    assert hasten_with("profile", "--html", "p.html", "train.py").exit_code == 0
    assert "60% of the step is spent waiting for its data." in Path("p.html").read_text()


@pytest.mark.parametrize("command", ["tune", "profile"])
def test_a_page_that_cannot_be_written_is_told_before_anything_runs(session, command):
    done = hasten_with(command, "--html", ".", "train.py")
    assert done.exit_code == 2
    assert "Cannot write .: it is a folder." in done.stderr
    assert not session.calls


def test_a_link_that_leads_to_itself_is_written_over(session):
    Path("r.json").symlink_to("r.json")
    done = hasten_with("profile", "--json", "r.json", "train.py")
    assert done.exit_code == 0, done.output
    assert json.loads(Path("r.json").read_text())["schema"] == 1


def test_an_empty_plan_is_left_too(session):
    session.plan = Plan()
    done = hasten_with("tune", "train.py")
    assert done.exit_code == 0
    assert "Nothing here makes this script faster." in done.stdout
    assert "[plan]" in Path("hasten.toml").read_text()


def test_quiet_prints_the_result_alone(session):
    done = hasten_with("tune", "--quiet", "train.py")
    assert "1.20x" in done.stdout
    assert not done.stderr


def test_a_terminal_of_unknown_width_shows_all(session, monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    done = hasten_with("tune", "train.py")
    assert "1.20x faster." in done.stdout
    assert "Racing: one of many" in done.stderr


def test_an_interrupted_search_leaves_what_it_has(session):
    session.interrupted = True
    done = hasten_with("tune", "train.py")
    assert done.exit_code == 130
    assert "You interrupted the search" in done.stdout
    assert Path("hasten.toml").exists()


def test_an_interrupted_search_writes_beside_a_confirmed_plan(session):
    hasten_with("tune", "train.py")
    kept = [Path(name).read_text() for name in ("hasten.toml", "hasten-report.txt")]
    report = hasten_with("report").stdout
    session.interrupted, session.plan, session.speedup = True, Plan(), None
    done = hasten_with("tune", "--quiet", "train.py")
    assert done.exit_code == 130
    assert "hasten.toml stays as it is" in done.stderr
    assert kept == [Path(name).read_text() for name in ("hasten.toml", "hasten-report.txt")]
    assert hasten_with("report").stdout == report
    assert 'state = "unproved"' in Path("hasten-unconfirmed.toml").read_text()
    assert "You interrupted" in Path("hasten-unconfirmed-report.txt").read_text()
    assert "You interrupted" in hasten_with("report", "hasten-unconfirmed.toml").stdout
    assert not hasten_with("run", "train.py").stderr


@pytest.mark.parametrize(("plan", "message"), [(THREADS, "is not proved"), (Plan(), "is empty")])
def test_run_says_that_its_plan_is_not_proved(session, plan, message):
    session.interrupted, session.plan, session.speedup = True, plan, None
    hasten_with("tune", "train.py")
    done = hasten_with("run", "train.py")
    assert done.exit_code == 0
    assert session.calls[-1][2] == plan
    (line,) = done.stderr.splitlines()
    assert message in line
    assert not hasten_with("run", "--quiet", "train.py").stderr


def test_run_refuses_a_plan_that_has_failed_unless_forced(session):
    hasten_with("tune", "train.py")
    written = Path("hasten.toml").read_text().replace("gates = []", 'gates = ["failed: G1: no"]')
    Path("hasten.toml").write_text(written)
    refused = hasten_with("run", "train.py")
    assert refused.exit_code == 2
    assert "A numerics gate failed under this plan." in refused.stderr
    assert "--force" in refused.stderr
    assert hasten_with("run", "--force", "train.py").exit_code == 0
    assert session.calls[-1][2] == THREADS


def test_an_interruption_while_it_prints_costs_no_file(session, monkeypatch):
    def interrupt(page, *, aside):
        raise KeyboardInterrupt

    monkeypatch.setattr("hasten.cli.reports.print_page", interrupt)
    assert hasten_with("tune", "train.py").exit_code == 130
    assert "intra_op_threads = 2" in Path("hasten.toml").read_text()
    assert "1.20x" in Path("hasten-report.txt").read_text()
    assert hasten_with("profile", "--json", "p.json", "train.py").exit_code == 130
    assert json.loads(Path("p.json").read_text())["baseline"]["step_s"] == 0.01


def test_a_plan_that_cannot_be_written_costs_no_answer(session, monkeypatch):
    def refuse(*args, **kwargs):
        raise UsageError("Cannot write it.", remedy="Make room.")

    monkeypatch.setattr("hasten.report.plan_writing.write_plan", refuse)
    done = hasten_with("tune", "--json", "r.json", "train.py")
    assert done.exit_code == 2
    assert "1.20x faster." in done.stdout
    assert "Cannot write it." in done.stderr
    assert "1.20x" in Path("hasten-report.txt").read_text()
    assert Path("r.json").is_file()
    assert "1.20x faster." in hasten_with("report").stdout


def test_a_cache_that_cannot_be_written_costs_nothing(session, project):
    (project / "cache").write_text("in the way")
    done = hasten_with("tune", "train.py")
    assert done.exit_code == 0, done.output
    assert "`hasten report` will not know this tuning." in done.stderr


def test_profile_prints_and_writes(session):
    done = hasten_with("profile", "--steps", "9", "--json", "p.json", "train.py")
    assert done.exit_code == 0, done.output
    assert "60% of the step is spent waiting for its data." in done.stdout
    assert "A note." in done.stdout
    assert options(session).step_count == 9
    assert json.loads(Path("p.json").read_text())["baseline"]["step_s"] == 0.01


def test_one_step_is_too_few_to_profile(session):
    done = hasten_with("profile", "--steps", "1", "train.py")
    assert done.exit_code == 2
    assert "'--steps'" in done.stderr
    assert not session.calls


@pytest.mark.parametrize("command", ["profile", "tune"])
def test_events_go_to_a_file_and_end_with_the_result(session, command):
    done = hasten_with(command, "--json", "r.json", "--log-jsonl", "e.jsonl", "train.py")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in Path("e.jsonl").read_text().splitlines()]
    names = [line["event"] for line in lines]
    assert names[:2] == ["start", "stage"]
    assert names[-1] == "result"
    assert lines[0]["command"] == command
    assert lines[-1]["document"] == json.loads(Path("r.json").read_text())
    assert "r.json" in lines[-1]["files"]


def test_an_error_is_the_last_event(session):
    session.error = NeverTrains("It never trains.", remedy="Train.", output="")
    assert hasten_with("tune", "--log-jsonl", "e.jsonl", "train.py").exit_code == 3
    last = json.loads(Path("e.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["problem"], last["exit_code"]) == ("error", "It never trains.", 3)


def test_the_event_of_an_error_says_what_the_command_says(session):
    output = f"{MISSING}'torch'"
    session.error = ScriptFailed("The script failed (exit code 1).", remedy="", output=output)
    done = hasten_with("tune", "--log-jsonl", "e.jsonl", "train.py")
    last = json.loads(Path("e.jsonl").read_text().splitlines()[-1])
    assert last["problem"] == "The Python that runs the script has no torch."
    assert last["exit_code"] == done.exit_code == 2
    assert last["problem"] in done.output


def test_events_on_stdout_leave_it_to_them(session, capfd):
    with pytest.raises(SystemExit):
        app(["profile", "--quiet", "--log-jsonl", "-", "train.py"], prog_name="hasten")
    out, err = capfd.readouterr()
    assert [json.loads(line)["event"] for line in out.splitlines()][-1] == "result"
    assert "60% of the step is spent" in err


def test_doctor_prints_and_writes(session):
    done = hasten_with("doctor", "--json", "d.json")
    assert done.exit_code == 0, done.output
    assert "A CPU" in done.stdout
    assert json.loads(Path("d.json").read_text())["machine"]["cpu"]["model"] == "A CPU"


def test_levers_by_hand_need_no_plan_of_another_script(session):
    hasten_with("tune", "train.py")
    Path("eval.py").write_text("")
    done = hasten_with("run", "--set", "compile=max", "eval.py")
    assert done.exit_code == 0, done.output
    assert "hasten.toml is the plan of train.py: only what was set by hand" in done.output
    assert not hasten_with("run", "--quiet", "--set", "compile=max", "eval.py").output
    assert dict(session.calls[-1][2].settings) == {"compile": "max"}
    assert hasten_with("run", "--plan", "hasten.toml", "eval.py").exit_code == 2


def test_the_report_of_another_script_is_not_shown_for_a_plan(session):
    for name in "ab":
        Path(f"{name}.py").write_text("")
        assert hasten_with("tune", "--plan", f"{name}.toml", f"{name}.py").exit_code == 0
    assert hasten_with("report", "b.toml").exit_code == 0
    Path("b.toml").write_bytes(Path("a.toml").read_bytes())
    for option in ((), ("--edits",)):
        done = hasten_with("report", *option, "b.toml")
        assert (done.exit_code, "is the plan of a.py" in done.output) == (2, True), done.output


def test_run_applies_the_plan_and_the_levers(session):
    hasten_with("tune", "train.py")
    done = hasten_with("run", "--set", "compile=max", "train.py")
    assert done.exit_code == 0, done.output
    assert session.calls[-1][2] == THREADS.with_lever("compile", "max")
    assert not done.stderr


@pytest.mark.parametrize("more", [(), ("--force",)])
def test_run_needs_no_plan_file_for_a_lever(more, session):
    assert hasten_with("run", *more, "--set", "intra_op_threads=2", "train.py").exit_code == 0
    assert [call[0] for call in session.calls] == ["run"]
    assert session.calls[-1][2] == THREADS


def test_run_shares_batches_without_a_plan_and_without_what_does_not_fit(session):
    done = hasten_with("run", "--share-batches", "--set", "intra_op_threads=4", "train.py")
    assert done.exit_code == 0, done.output
    assert "left out intra_op_threads=4: every process computes a share" in done.stderr
    assert session.calls[0] == ("shares batches",)
    assert session.calls[1][2] == Plan()


def test_run_warns_of_other_arguments(session):
    hasten_with("tune", "train.py")
    done = hasten_with("run", "train.py", "--epochs", "9")
    assert done.exit_code == 0
    assert "tuned with the arguments (none)" in done.stderr
    assert not hasten_with("run", "--quiet", "train.py", "--epochs", "9").stderr


def test_run_refuses_another_machine_unless_forced(session):
    hasten_with("tune", "train.py")
    session.machine = replace(MACHINE, budget=Budget(core_count=8, limited_by="cores"))
    refused = hasten_with("run", "train.py")
    assert refused.exit_code == 2
    assert "for 2 cores, and this job may use 8" in refused.stderr
    assert "--force" in refused.stderr
    assert session.calls[-1][0] == "glance"
    forced = hasten_with("run", "--force", "train.py")
    assert forced.exit_code == 0
    assert "for 2 cores" in forced.stderr
    assert session.calls[-1][2] == THREADS


def test_run_with_an_empty_plan_asks_the_machine_nothing(session):
    session.plan = Plan()
    hasten_with("tune", "train.py")
    assert hasten_with("run", "train.py").exit_code == 0
    assert [call[0] for call in session.calls] == ["tune", "run"]


@pytest.mark.parametrize(
    "command", ["doctor", "profile", "tune", "run", "report", "levers", "findings"]
)
def test_help_is_made_of_sentences(command):
    page = hasten_with(command, "--help")
    assert page.exit_code == 0
    for line in page.stdout.split("Options:")[0].splitlines()[2:4]:
        assert not line.strip() or line.strip()[0].isupper()
    assert max(map(len, page.stdout.splitlines())) <= 80


def test_version():
    assert hasten_with("--version").stdout == f"hasten {hasten.__version__}\n"


def test_python_m_hasten_is_the_same_program(project):
    done = subprocess.run(
        [sys.executable, "-m", "hasten", "levers", "no_such_lever"],
        capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(Path(hasten.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 2
    assert "There is no lever called no_such_lever." in done.stderr


def test_cards_are_shown_by_a_python_without_docstrings(project):
    for words in (["levers"], ["levers", "ranks"]):
        command = [sys.executable, "-OO", "-m", "hasten", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False,
            env={"PYTHONPATH": str(Path(hasten.__file__).parents[1]), "COLUMNS": "200"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "compute each batch in several processes" in done.stdout


def test_python_m_hasten_says_that_its_folder_was_removed(project):
    command = f"mkdir gone; cd gone; rmdir ../gone; exec {sys.executable} -m hasten report"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(Path(hasten.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 2
    assert "The working folder was removed." in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_line_starts_light():
    code = (
        "import sys, hasten.cli; "
        "print(sorted({'torch', 'numpy', 'msgspec', 'tomlkit'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(Path(hasten.__file__).parents[1])},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", [".", "below"])
def test_a_project_gives_defaults_that_the_command_line_overrides(session, project, folder) -> None:
    table = (
        '[tool.hasten]\nbudget = "2m"\nnumerics = "rounding"\nonly = ["compile"]\nquiet = true\n'
    )
    (project / "pyproject.toml").write_text(table)
    (project / folder).mkdir(exist_ok=True)
    os.chdir(project / folder)
    (project / folder / "train.py").write_text("")
    assert hasten_with("tune", "--budget", "3m", "train.py").exit_code == 0
    found = options(session)
    assert (found.budget_s, found.numerics, found.only) == (180.0, Effect.ROUNDING, {"compile"})
    assert hasten_with("run", "--set", "compile=max", "train.py").exit_code == 0


def test_paths_of_a_project_begin_at_its_folder(session, project) -> None:
    table = '[tool.hasten]\nplan = "plans/t.toml"\npython = "python3"\njson = "r.json"\n'
    (project / "pyproject.toml").write_text(table)
    below = project / "below"
    below.mkdir()
    os.chdir(below)
    (below / "train.py").write_text("")
    assert hasten_with("tune", "train.py").exit_code == 0
    assert (project / "plans" / "t.toml").is_file()
    assert (project / "r.json").is_file()
    assert sorted(file.name for file in below.iterdir()) == ["train.py"]
    done = hasten_with("report")
    assert done.exit_code == 0, done.output


def test_a_default_that_may_be_given_several_times_may_be_one_word(session, project) -> None:
    (project / "pyproject.toml").write_text('[tool.hasten]\nskip = "compile"\n')
    assert hasten_with("tune", "train.py").exit_code == 0
    assert options(session).skip == {"compile"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[tool.hasten]\nbugdet = "2m"\n', "has an unknown option: bugdet."),
        ('[tool.hasten]\nnumerics = "odd"\n', "odd"),
        ("[tool.hasten]\nbudget = 2m\n", "is not valid TOML, so [tool.hasten] cannot be read: "),
        ("[tool.hasten]\nplan = 'caf\udce9'\n", "can't decode byte 0xe9"),
        ("[tool.hasten]\nplan = " + "[" * 20_000, "is not valid TOML, so [tool.hasten]"),
    ],
)
def test_a_default_that_is_none_is_told(session, project, text, problem) -> None:
    (project / "pyproject.toml").write_bytes(os.fsencode(text))
    done = hasten_with("tune", "train.py")
    assert done.exit_code == 2
    assert problem in done.output


@pytest.mark.parametrize(
    "text",
    ["no toml [", "caf\udce9", "x = " + "[" * 20_000, "tool = 3\n", "[tool]\nhasten = 3\n",
     '[project]\nname = "x"\n'],
)  # fmt: skip
def test_a_project_that_says_nothing_to_us_is_left_alone(session, project, text) -> None:
    (project / "pyproject.toml").write_bytes(os.fsencode(text))
    assert hasten_with("tune", "train.py").exit_code == 0
    assert options(session).budget_s == 300.0
