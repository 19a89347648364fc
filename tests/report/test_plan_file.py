import datetime
import os
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from hasten import lever
from hasten.errors import PlanError, UsageError
from hasten.records import Budget, Effect, Entry, LossEnvelope, Plan, Reason, Torch
from hasten.report import plan_file, plan_places, plan_writing
from hasten.report import text as text_report

TODAY = datetime.date(2026, 1, 2)


KINDS = {"bool": bool, "int": int, "float": float, "threads": int, "workers": int}


def kind_of(name):
    """The last word of a lever's name says what it takes."""
    return KINDS.get(name.rpartition("_")[2], str if name.endswith("str") else bool)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    class Every(tuple):
        def __contains__(self, name):
            return not name.startswith("no_such_")

    monkeypatch.setattr(lever, "names", Every)
    monkeypatch.setattr(
        lever,
        "load",
        lambda name: SimpleNamespace(
            name=name, kind=kind_of(name), validate=lambda setting: "2" * (setting == 7)
        ),
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "hasten.toml"


@pytest.fixture
def saved(path, tuning):
    plan_writing.write_plan(path, tuning, snippets={}, today=TODAY)
    return plan_file.read_plan(path)


BROKEN = {
    "open": ("schema = 1\nplan = " + "[" * 900, "is not a TOML file"),
    "deep": ("schema = 1\nplan = " + "[" * 20 + "]" * 20, "is not a table"),
    "deeper": ("schema = 1\nplan = " + "[" * 20_000 + "]" * 20_000, "is not a TOML file"),
    "huge decimal": (f"schema = 1\n[plan]\na_int = {'9' * 5000}", "is not a TOML file"),
    "many levers": (
        "schema = 1\n[plan]\n" + "".join(f"no_such_{i} = 1\n" for i in range(3800)),
        "Unknown levers: no_such_0, no_such_1",
    ),
    "long lever": (f"schema = 1\n[plan]\nno_such_{'r' * 60_000} = 1", "Unknown levers"),
    "long setting": (f"schema = 1\n[plan]\nthreads = '{'s' * 60_000}'", "does not take sss"),
    "long grants": (f"schema = 1\nassume = ['{'g' * 60_000}']\n[plan]", "no assumption 'ggg"),
    "table twice": (f"['{'t' * 30_000}']\n" * 2, "is not a TOML file"),
    "many tables": ("".join(f"[{i:x}]\n" for i in range(8000)), "has schema None"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_plan_is_data_and_is_refused_in_one_sentence(path, kind, workload):
    content, message = BROKEN[kind]
    path.write_text(content)
    with pytest.raises(PlanError, match=message) as refused:
        plan_file.read_plan(path)
    assert len(str(refused.value)) < 500
    with pytest.raises(UsageError):
        plan_places.guard_plan(path, workload)


def test_what_a_plan_says_forges_no_line_of_ours(path, here):
    path.write_text('schema = 1\n[plan]\n"no_such_x\\nhasten: all is well" = 1\n')
    with pytest.raises(PlanError) as refused:
        plan_file.read_plan(path)
    assert "no_such_x\\nhasten: all is well." in str(refused.value)
    saved, machine, workload = here
    odd = replace(saved, command=("train.py", "\n" * 1000), machine={"cpu": "\n" * 1000})
    for found in plan_file.differences(odd, machine, workload):
        assert "\n" not in found.message
        assert len(found.message) < 900


def test_what_was_granted_comes_back_and_an_old_plan_grants_nothing(path, saved, tuning):
    assert saved.assumed == frozenset()
    granted = replace(tuning, assumed=("dataset-unchanged",))
    plan_writing.write_plan(path, granted, snippets={}, today=TODAY)
    assert plan_file.read_plan(path).assumed == {"dataset-unchanged"}
    assert tomllib.loads(path.read_text())["assume"] == ["dataset-unchanged"]


def test_a_plan_comes_back_as_it_was(saved, tuning):
    assert saved.plan == tuning.plan
    assert saved.command == tuning.workload.argv
    assert saved.entry is Entry.SCRIPT
    assert saved.machine == {
        "cpu": "AMD EPYC 9V74 80-Core Processor",
        "cores": 2,
        "torch": "2.13.0+cpu",
        "python": "3.11.7",
    }


names = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)
text = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
values = st.one_of(
    st.just(value=True), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), text
)
plans = st.dictionaries(names, values, max_size=6).map(
    lambda found: Plan(tuple(sorted((f"{n}_{type(s).__name__}", s) for n, s in found.items())))
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)
@given(plan=plans, argv=st.lists(text, min_size=1, max_size=4), code=text)
def test_every_plan_comes_back_as_it_was(path, tuning, plan, argv, code):
    workload = replace(tuning.workload, argv=tuple(argv))
    lines = dict.fromkeys(dict(plan.settings), code)
    plan_writing.write_plan(
        path, replace(tuning, plan=plan, workload=workload), snippets=lines, today=TODAY
    )
    saved = plan_file.read_plan(path)
    assert saved.plan == plan
    assert [type(v) for _, v in saved.plan.settings] == [type(v) for _, v in plan.settings]
    assert saved.command == tuple(argv)


def test_the_file_says_why(path, tuning, lines):
    plan_writing.write_plan(path, tuning, snippets=lines, today=TODAY)
    written = path.read_text()
    for words in (
        "2026-01-02", "hasten run train.py --epochs 3 --name 'my run [a]'",
        "gather_batches = true # 1.35x (1.31x to 1.40x); exact: the same bits",
        "#   by hand: torch.set_num_threads(2)", "95% interval", "passed: same batches",
    ):  # fmt: skip
        assert words in written, words
    evidence = tomllib.loads(written)["evidence"]
    assert evidence["speedup"] == {"low": 1.38, "mid": 1.43, "high": 1.49}
    assert evidence["effect"] == "rounding"
    assert len(evidence["gates"]) == 3


def test_an_empty_plan_is_written_honestly(path, nothing):
    plan_writing.write_plan(path, nothing, snippets={}, today=TODAY)
    assert "# Empty. Nothing here makes this script faster.\n" in path.read_text()
    assert plan_file.read_plan(path).plan == Plan()


def test_an_empty_plan_claims_nothing_about_levers_that_were_not_tried(path, nothing):
    untried = replace(nothing.levers[-1], reason=Reason.UNTRIED)
    left = (*nothing.levers, untried)
    plan_writing.write_plan(path, replace(nothing, levers=left), snippets={}, today=TODAY)
    assert "# Empty. Nothing was proved to make this script faster" in path.read_text()


def test_bytes_that_are_no_utf8_are_spelt_out(path, tuning):
    odd = replace(tuning, workload=replace(tuning.workload, argv=("train\udcff.py",)))
    plan_writing.write_plan(path, odd, snippets={}, today=TODAY)
    assert plan_file.read_plan(path).command == ("train\\udcff.py",)


def test_unknown_facts_are_left_out(path, tuning):
    bare = replace(tuning.machine, torch=None, python_version="")
    plan_writing.write_plan(path, replace(tuning, machine=bare), snippets={}, today=TODAY)
    assert plan_file.read_plan(path).machine.keys() == {"cpu", "cores"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("schema = [", "is not a TOML file"),
        (b"\xff\xfe", "is not a TOML file"),
        ("", "has schema None"),
        ("schema = 2\n[plan]", "has schema 2"),
        ("schema = 1", r"The \[plan\] of .* is missing"),
        ("schema = 1\nplan = 3", r"The \[plan\] of .* is not a table"),
        ("schema = 1\nmachine = 1\n[plan]", r"The \[machine\] of .* is not a table"),
        ("schema = 1\nassume = 1\n[plan]", "The assume in .* is not a list of texts: 1"),
        (
            "schema = 1\nmachine.instructions = 'avx2'\n[plan]",
            "The instructions in .* is not a list of texts: 'avx2'",
        ),
        ("schema = 1\nassume = ['x']\n[plan]", "There is no assumption 'x'"),
        ("schema = 1\n[plan]\na = [1]", "The setting of a in"),
        ("schema = 1\n[plan]\na = 2026-01-01", "The setting of a in"),
        (
            "schema = 1\n[plan]\nno_such_lever = 1",
            r"hasten\.toml: Unknown levers: no_such_lever\. Delete it from \[plan\] there",
        ),
        ("schema = 1\n[plan]\nthreads = true", "The lever threads does not take True"),
        ("schema = 1\n[plan]\nthreads = 'many'", "The lever threads does not take many"),
        ("schema = 1\n[plan]\nthreads = 7", "The lever threads does not take 7"),
        ("schema = 1\n[command]\nargv = 'x'\n[plan]", "The argv in"),
        ("schema = 1\n[command]\nargv = [1]\n[plan]", "The argv in"),
        ("schema = 1\n[command]\nentry = 'x'\n[plan]", "The entry in"),
        ("schema = 1\n[command]\nentry = []\n[plan]", "The entry in"),
        ("schema = 1\n[machine]\ncores = true\n[plan]", r"The cores in the \[machine\] of"),
        ("schema = 1\n[machine]\ncores = '2'\n[plan]", "is '2'"),
        ("schema = 1\n[machine]\nslurm_cpus = 0\n[plan]", r"The slurm_cpus in .* is 0"),
    ],
)
def test_a_broken_plan_is_one_sentence_and_a_remedy(path, content, problem):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PlanError, match=problem) as caught:
        plan_file.read_plan(path)
    assert caught.value.remedy.endswith(".")
    assert "\n" not in str(caught.value)


def test_a_lever_that_somebody_put_to_false_is_not_applied(path):
    path.write_text("schema = 1\n[plan]\na_bool = false\nb_int = false\nc_int = 2")
    assert plan_file.read_plan(path).plan == Plan().with_lever("c_int", 2)


def test_a_byte_order_mark_is_no_part_of_a_plan(path):
    path.write_bytes(b"\xef\xbb\xbfschema = 1\r\n[plan]\r\nc_int = 2\r\n")
    assert plan_file.read_plan(path).plan == Plan().with_lever("c_int", 2)


def test_a_missing_plan_says_how_to_make_one(path):
    with pytest.raises(PlanError, match="There is no plan at") as caught:
        plan_file.read_plan(path)
    assert "hasten tune" in caught.value.remedy


def test_a_folder_is_no_plan(tmp_path):
    with pytest.raises(PlanError, match="Cannot read the plan"):
        plan_file.read_plan(tmp_path)


def test_a_plan_without_comments_or_evidence_can_be_written_by_hand(path):
    path.write_text("schema = 1\n[plan]\nintra_op_threads = 2\n")
    saved = plan_file.read_plan(path)
    assert saved.plan == Plan().with_lever("intra_op_threads", 2)
    assert saved.command == ()


def test_the_same_place_differs_in_nothing(saved, machine, workload):
    assert plan_file.differences(saved, machine, workload) == ()


@pytest.fixture
def here(saved, machine, workload):
    return saved, machine, workload


def torch(machine, version):
    return replace(machine, torch=Torch(version=version))


@pytest.mark.parametrize(
    ("change", "words", "refuses"),
    [
        (lambda m: replace(m, cpu=replace(m.cpu, model="Xeon")), "'Xeon'", False),
        (
            lambda m: replace(m, budget=Budget(core_count=8, limited_by="cores")),
            "for 2 cores, and this job may use 8",
            True,
        ),
        (lambda m: torch(m, "2.14.0+cpu"), "with torch 2.13.0+cpu, and this is 2.14.0", True),
        (lambda m: torch(m, "2.13.1+cpu"), "2.13.1+cpu", False),
        (lambda m: replace(m, python_version="3.11.9"), "Python 3.11.7", False),
    ],
)
def test_what_differs_is_said_and_what_matters_refuses(here, change, words, refuses):
    saved, machine, workload = here
    (found,) = plan_file.differences(saved, change(machine), workload)
    assert words in found.message
    assert found.refuses is refuses


BF16 = {"instructions": ["avx2", "avx512_bf16"]}
OLD = ("avx2",)


def lacking(here, then, now):
    """Return what is said of the instructions of a CPU under a plan of one lever."""
    saved, machine, workload = here
    saved = replace(saved, machine=then, plan=Plan().with_lever("narrow", True))
    machine = replace(machine, cpu=replace(machine.cpu, instruction_sets=now))
    seen = plan_file.differences(saved, machine, workload)
    return [one for one in seen if "lacks" in one.message]


@pytest.mark.parametrize(
    ("then", "effect", "refuses"),
    [
        (BF16, Effect.PRECISION, True),
        (BF16, Effect.EXACT, False),
        (BF16 | {"gpu": "A100"}, Effect.PRECISION, False),
    ],
)
def test_a_cpu_that_lacks_instructions_refuses_products_in_fewer_bits(
    here, monkeypatch, then, effect, refuses
):
    monkeypatch.setattr(lever, "load", lambda name: SimpleNamespace(name=name, effect=effect))
    (found,) = lacking(here, then, OLD)
    assert found.refuses is refuses
    assert "a CPU with avx512_bf16, which this one lacks" in found.message
    assert ("narrow may be many times slower" in found.message) is refuses


@pytest.mark.parametrize(("then", "now"), [(BF16, (*OLD, "avx512_bf16")), (BF16, ()), ({}, OLD)])
def test_a_cpu_that_lacks_nothing_or_is_unknown_is_no_difference(here, then, now):
    assert lacking(here, then, now) == []


def test_the_instructions_of_the_cpu_are_kept_with_the_plan(path, tuning):
    cpu = replace(tuning.machine.cpu, instruction_sets=("avx2", "avx512f"))
    tuning = replace(tuning, machine=replace(tuning.machine, cpu=cpu))
    plan_writing.write_plan(path, tuning, snippets={}, today=TODAY)
    assert plan_file.read_plan(path).machine["instructions"] == ["avx2", "avx512f"]


@pytest.mark.parametrize(
    ("then", "now", "differs"),
    [
        ("2.13.0+cu130", "2.13.0", False),
        ("2.13.0", "2.13.0+cu130", False),
        ("2.13.0+cu130", "2.13.0+cpu", True),
        ("2.13.0", "2.13.1", True),
        ("2.13.0+cpu", "2.13.1", True),
    ],
)
def test_a_torch_that_does_not_name_its_build_is_any_build(here, then, now, differs):
    saved, machine, workload = here
    saved = replace(saved, machine={"torch": then})
    assert bool(plan_file.differences(saved, torch(machine, now), workload)) == differs


@pytest.mark.parametrize(
    ("then", "now", "refuses"),
    [
        ("python train.py", "python other.py", True),
        ("python train.py --lr 1", "python train.py --lr 2", False),
        ("python old/train.py", "python new/train.py", False),
        ("bash train.sh", "bash other.sh", True),
        ("bash train.sh", "bash", True),
        ("srun -n 1 python train.py", "srun -n 2 python train.py", False),
        ("srun python train.py", "srun bash train.sh", True),
        ("papermill a.ipynb out", "papermill b.ipynb out", True),
        ("poetry run python -m pkg.train", "poetry run python -m pkg.other", True),
        ("python -m pkg.train --lr 1", "python -m pkg.train --lr 2", False),
        ("python train.py -m resnet", "python train.py -m vit", False),
        ("bash -c 'python train.py --lr 1'", "bash -c 'python train.py --lr 2'", False),
        ("bash -c 'python train.py --lr 1'", "bash -c 'python other.py --lr 1'", True),
        ("make train LR=1", "make train LR=2", False),
        ("make train", "make other", True),
        ("srun -n 1 bash a.sh", "srun -n 1 bash b.sh", True),
        ("papermill -p x 1 a.ipynb", "papermill -p x 1 b.ipynb", True),
    ],
)
def test_a_plan_for_a_program_is_refused_where_it_runs_another_script(here, then, now, refuses):
    saved, machine, workload = here
    saved = replace(saved, entry=Entry.COMMAND, command=tuple(shlex.split(then)))
    program = replace(workload, entry=Entry.COMMAND, argv=tuple(shlex.split(now)))
    assert plan_file.differences(saved, machine, replace(program, argv=saved.command)) == ()
    (found,) = plan_file.differences(saved, machine, program)
    assert found.refuses is refuses


def test_a_refusal_names_both_scripts(here):
    saved, machine, workload = here
    saved = replace(saved, entry=Entry.COMMAND, command=("python", "a/train.py", "-x"))
    program = replace(workload, entry=Entry.COMMAND, argv=("python", "other.py"))
    (found,) = plan_file.differences(saved, machine, program)
    expected = "The plan was tuned for -- python train.py, and this is -- python other.py."
    assert found.message == expected


@pytest.mark.parametrize(
    ("entry", "argv", "refuses"),
    [
        (Entry.SCRIPT, ("train.py", "--epochs", "4"), False),
        (Entry.SCRIPT, ("train.py",), False),
        (Entry.SCRIPT, ("other.py", "--epochs", "3", "--name", "my run [a]"), True),
        (Entry.MODULE, ("train.py", "--epochs", "3", "--name", "my run [a]"), True),
    ],
)
def test_other_arguments_warn_and_another_script_refuses(here, entry, argv, refuses):
    saved, machine, workload = here
    now = replace(workload, entry=entry, argv=argv)
    (found,) = plan_file.differences(saved, machine, now)
    assert found.refuses is refuses


def test_the_same_script_from_another_folder_is_the_same(saved, machine, workload):
    moved = replace(workload, argv=("./src/train.py", *workload.argv[1:]))
    assert plan_file.differences(saved, machine, moved) == ()


def test_unknown_is_not_held_against_a_plan(saved, machine, workload):
    bare = replace(machine, torch=None, python_version="")
    assert plan_file.differences(saved, bare, workload) == ()
    by_hand = plan_file.SavedPlan(plan=saved.plan, machine={})
    assert plan_file.differences(by_hand, machine, workload) == ()


def test_an_empty_plan_is_never_refused(saved, machine, workload):
    empty = replace(saved, plan=Plan())
    found = plan_file.differences(empty, torch(machine, "3.0"), workload)
    assert [item.refuses for item in found] == [False]


@pytest.mark.parametrize("content", ["[project]\nname = 'x'\n", "not toml", b"\xff"])
def test_a_foreign_file_is_never_written_over(path, content, workload):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match="is not a plan of hasten"):
        plan_places.guard_plan(path, workload)


def test_a_pipe_is_never_written_over(path, workload):
    os.mkfifo(path)
    with pytest.raises(UsageError, match="is not a plan of hasten"):
        plan_places.guard_plan(path, workload)


def test_our_own_plan_may_be_written_over(path, saved, workload):
    plan_places.guard_plan(path, workload)
    plan_places.guard_plan(Path("/nonexistent/hasten.toml"), workload)
    plan_places.guard_plan(path, replace(workload, argv=("train.py", "--other", "argument")))
    assert saved.plan


@pytest.mark.parametrize("name", ["k-report.txt", "k-unconfirmed-report.txt"])
def test_a_text_that_is_no_report_is_never_written_over(tmp_path, tuning, workload, name):
    plan_path, text = tmp_path / "k.toml", tmp_path / name
    plan_places.guard(plan_path, workload)
    text.write_text("The report of my training.\n")
    with pytest.raises(UsageError, match=rf"{name} is there already and is not a report"):
        plan_places.guard(plan_path, workload)
    page = text_report.render_tuning(tuning, plan_path=plan_path, snippets={})
    with text.open("w") as file:
        Console(file=file, width=80).print(page)
    plan_places.guard(plan_path, workload)


def test_an_unconfirmed_plan_of_another_script_is_not_written_over(tmp_path, tuning, workload):
    other = replace(workload, argv=("other.py",))
    aside = tmp_path / "k-unconfirmed.toml"
    plan_writing.write_plan(aside, tuning, snippets={}, today=TODAY)
    plan_places.guard(tmp_path / "k.toml", workload)
    with pytest.raises(UsageError, match=r"k-unconfirmed\.toml is the plan of another script"):
        plan_places.guard(tmp_path / "k.toml", other)


def test_the_plan_of_another_script_is_not_written_over(path, tuning, workload):
    plan_writing.write_plan(path, tuning, snippets={}, today=TODAY)
    other = replace(workload, argv=("other.py",))
    with pytest.raises(UsageError, match=r"is the plan of another script: train\.py") as caught:
        plan_places.guard_plan(path, other)
    assert "--force" in caught.value.remedy
    empty = replace(tuning, plan=Plan())
    plan_writing.write_plan(path, empty, snippets={}, today=TODAY)
    plan_places.guard_plan(path, other)  # nothing is lost


def test_a_namesake_in_another_folder_is_another_script(path, tuning, workload, machine, tmp_path):
    here, there = (
        replace(workload, argv=(f"{name}/train.py",), cwd=str(tmp_path)) for name in "ab"
    )
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(f"name = {name!r}\n")
    own = replace(tuning, workload=here)
    plan_writing.write_plan(path, own, snippets={}, today=TODAY)
    saved = plan_file.read_plan(path)
    plan_places.guard_plan(path, here)
    with pytest.raises(UsageError, match=r"is the plan of another script: a/train\.py"):
        plan_places.guard_plan(path, there)
    (found,) = [one for one in plan_file.differences(saved, machine, there) if one.refuses]
    assert found.message == "The plan was tuned for a/train.py, and this is b/train.py."
    (tmp_path / "a" / "train.py").unlink()  # it was moved, and edited since
    assert not any(one.refuses for one in plan_file.differences(saved, machine, there))
    plan_places.guard_plan(path, there)


ENVELOPE = LossEnvelope(
    losses=(2.0, 1.5),
    spreads=(0.1, 0.2),
    losses_range=(1.25, 2.5),
    moves=(0.01, 0.02),
    step_s=0.05,
)


@pytest.mark.parametrize(
    "envelope", [ENVELOPE, replace(ENVELOPE, by_hand=True, step_s=None), LossEnvelope()]
)
def test_an_envelope_comes_back_as_it_was(path, tuning, envelope) -> None:
    plan_writing.write_plan(path, replace(tuning, envelope=envelope), snippets={}, today=TODAY)
    assert plan_file.read_plan(path).envelope == envelope


def test_a_plan_without_an_envelope_is_not_watched(path, tuning, nothing) -> None:
    plan_writing.write_plan(path, tuning, snippets={}, today=TODAY)
    assert plan_file.read_plan(path).envelope is None
    empty = replace(nothing, envelope=ENVELOPE)
    plan_writing.write_plan(path, empty, snippets={}, today=TODAY)
    assert plan_file.read_plan(path).envelope is None


@pytest.mark.parametrize(
    "line",
    ['losses = "low"', "losses = [1.0]", "range = [1]", "moves = 3", "step_s = true",
     f"step_s = {10**400}"],
)  # fmt: skip
def test_a_broken_envelope_says_how_to_do_without(path, line) -> None:
    path.write_text(f"schema = 1\n[plan]\n[guard]\n{line}\n")
    with pytest.raises(PlanError) as caught:
        plan_file.read_plan(path)
    assert "Delete that table" in caught.value.remedy


def test_losses_are_not_compared_under_other_arguments_nor_times_on_other_processors(
    path, tuning, machine, workload
) -> None:
    plan_writing.write_plan(path, replace(tuning, envelope=ENVELOPE), snippets={}, today=TODAY)
    saved = plan_file.read_plan(path)
    assert plan_file.fitting_envelope(saved, machine, workload) == ENVELOPE
    other = replace(workload, argv=(workload.argv[0], "--batch", "64"))
    assert plan_file.fitting_envelope(saved, machine, other) == ENVELOPE.only_what_is_sure()
    another = replace(machine, cpu=replace(machine.cpu, model="another"))
    fewer = replace(machine, budget=replace(machine.budget, core_count=1))
    for elsewhere in (another, fewer):
        found = plan_file.fitting_envelope(saved, elsewhere, workload)
        assert found == replace(ENVELOPE, step_s=None)


@pytest.mark.parametrize(("entry", "line"), [
    (Entry.SCRIPT, "train.py"), (Entry.MODULE, "train"), (Entry.COMMAND, "python train.py"),
])  # fmt: skip
def test_an_edited_script_is_told_and_its_losses_are_not_compared(
    path, tuning, machine, entry, line
) -> None:
    script = path.with_name("train.py")
    script.write_text("lr = 0.1\n")
    here = replace(tuning.workload, cwd=str(path.parent), entry=entry, argv=tuple(line.split()))
    known = replace(tuning, envelope=ENVELOPE, workload=here)
    plan_writing.write_plan(path, known, snippets={}, today=TODAY)
    saved = plan_file.read_plan(path)
    assert plan_file.differences(saved, machine, here) == ()
    assert plan_file.fitting_envelope(saved, machine, here) == ENVELOPE
    script.write_text("lr = 0.2\n")
    (found,) = plan_file.differences(saved, machine, here)
    assert found.message.endswith(f"{line} has changed since it was tuned.")
    assert not found.refuses
    assert plan_file.fitting_envelope(saved, machine, here) == ENVELOPE.only_what_is_sure()
    script.unlink()
    assert plan_file.differences(saved, machine, here) == ()


@pytest.mark.parametrize("words", [("config/small.py",), ("--config=config/small.py",)])
def test_edited_settings_are_told_as_an_edited_script_is(path, tuning, machine, words) -> None:
    script, config = path.with_name("train.py"), path.with_name("config") / "small.py"
    config.parent.mkdir()
    for file in (script, config):
        file.write_text("lr = 0.1\n")
    here = replace(tuning.workload, cwd=str(path.parent), argv=("train.py", *words))
    known = replace(tuning, envelope=ENVELOPE, workload=here)
    plan_writing.write_plan(path, known, snippets={}, today=TODAY)
    saved = plan_file.read_plan(path)
    assert plan_file.fitting_envelope(saved, machine, here) == ENVELOPE
    config.write_text("lr = 0.2\n")
    (found,) = plan_file.differences(saved, machine, here)
    assert found.message == "config/small.py has changed since it was tuned."
    other = replace(here, argv=("train.py", "--config=config/other.py"))
    config.with_name("other.py").write_text("lr = 0.3\n")
    (found,) = plan_file.differences(saved, machine, other)
    assert "was tuned with the arguments" in found.message
    assert plan_file.fitting_envelope(saved, machine, here) == ENVELOPE.only_what_is_sure()


def test_another_gpu_is_told_where_the_model_is_on_one(path, tuning, machine, workload) -> None:
    one, other = (replace(machine, gpu=name) for name in ("NVIDIA A100", "Tesla T4"))
    for device, count in (("cuda", 1), ("cpu", 0)):
        traits = replace(tuning.traits, model=replace(tuning.traits.model, device=device))
        known = replace(tuning, machine=one, traits=traits, envelope=ENVELOPE)
        plan_writing.write_plan(path, known, snippets={}, today=TODAY)
        saved = plan_file.read_plan(path)
        found = plan_file.differences(saved, other, workload)
        assert ["'NVIDIA A100', and this is 'Tesla T4'" in one.message for one in found] == (
            [True] * count
        )
        fits = plan_file.fitting_envelope(saved, other, workload)
        assert (fits.step_s is None) is bool(count)


def test_a_python_of_hasten_s_own_is_not_that_of_the_script(path, tuning, machine, workload):
    known = replace(tuning, workload=replace(workload, python="/opt/other/bin/python"))
    plan_writing.write_plan(path, known, snippets={}, today=TODAY)
    assert "python" not in plan_file.read_plan(path).machine


def test_a_plan_that_cannot_be_written_to_its_end_leaves_the_old_one(path, tuning, monkeypatch):
    plan_writing.write_plan(path, tuning, snippets={}, today=TODAY)
    before = path.read_bytes()
    stocks = {name: getattr(Path, name) for name in ("write_bytes", "write_text")}

    def breaks_off(name):
        def write(self, payload, *args, **kwargs):
            stocks[name](self, payload[: len(payload) // 2], *args, **kwargs)
            raise OSError(28, "No space left on device")

        return write

    for name in stocks:
        monkeypatch.setattr(Path, name, breaks_off(name))
    with pytest.raises((UsageError, OSError)):
        plan_writing.write_plan(path, replace(tuning, plan=Plan()), snippets={}, today=TODAY)
    assert path.read_bytes() == before


def test_where_the_command_is_not_known_losses_are_not_compared(saved, machine, workload):
    bare = replace(workload, argv=workload.argv[:1])
    unknown = replace(saved, command=(), envelope=ENVELOPE)
    assert plan_file.fitting_envelope(unknown, machine, bare) == ENVELOPE.only_what_is_sure()


def test_a_plan_without_an_entry_is_of_the_entry_that_is_run(saved, machine, workload):
    assert plan_file.differences(replace(saved, entry=None), machine, workload) == ()


def test_a_comment_has_no_control_characters(path, tuning):
    lines = {name: "x = 1  # \x1b[31m\x07\r" for name, _ in tuning.plan.settings}
    plan_writing.write_plan(path, tuning, snippets=lines, today=TODAY)
    assert plan_file.read_plan(path).plan == tuning.plan
    assert not set("\x1b\x07\r") & set(path.read_text())
