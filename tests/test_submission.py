"""`hasten submit`: the job script, and what would stop the job at its start."""

import os
import sys

import pytest
from typer.testing import CliRunner

from hasten.cli import app

PLAN = """\
schema = 1
[machine]
cores = 4
[command]
entry = "script"
argv = ["train.py", "--epochs", "3"]
[plan]
malloc_retention = true
[evidence]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a script and its plan."""
    (tmp_path / "train.py").write_text("print('trains')\n")
    (tmp_path / "hasten.toml").write_text(PLAN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(*words: str):
    return CliRunner().invoke(app, ["submit", *words])


def test_a_job_of_one_process(folder) -> None:
    done = submit("--dry-run", "--sbatch", "--time=12:00:00", "train.py", "--name", "a b")
    assert done.exit_code == 0
    assert done.stdout == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=train\n"
        "#SBATCH --nodes=1\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --cpus-per-task=4\n"
        "#SBATCH --time=12:00:00\n"
        "\n"
        "# srun does not take --cpus-per-task over from sbatch.\n"
        "exec srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task=4 \\\n"
        f"  {sys.executable} -m hasten run --plan {folder}/hasten.toml train.py --name 'a b'\n"
    )


def test_several_processes_are_told_their_ranks(folder) -> None:
    script = submit("--dry-run", "--nodes", "2", "--tasks-per-node", "3", "./train.py").stdout
    assert "--job-name=train\n" in script
    assert "--nodes=2\n#SBATCH --ntasks-per-node=3\n" in script
    assert "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS" in script
    assert "LOCAL_WORLD_SIZE=3" in script
    assert "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))" in script


def test_sbatch_gets_the_script_and_gives_its_exit_code(folder, monkeypatch) -> None:
    program = folder / "sbatch"
    program.write_text(f"#!/bin/sh\ncat > {folder}/given\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert submit("train.py").exit_code == 3
    assert (folder / "given").read_text() == submit("--dry-run", "train.py").stdout


def test_another_interpreter_and_force_are_passed_on(folder) -> None:
    words = ("--python", "/usr/bin/env", "--force", "--cpus-per-task", "2", "train.py")
    script = submit("--dry-run", *words).stdout
    assert "--force --python /usr/bin/env train.py" in script
    assert "#SBATCH --cpus-per-task=2" in script


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cpus-per-task", "2", "train.py"], "The plan was tuned for 4 cores"),
        (["other.py"], "hasten.toml is the plan of train.py"),
        (["--plan", "none.toml", "train.py"], "There is no plan: none.toml cannot be found"),
        (["--tasks-per-node", "2", "--", "torchrun", "train.py"], "in each of 2 tasks"),
        (["--nodes", "2", "--", "torchrun", "--standalone", "train.py"], "With --standalone the"),
        (["--nodes", "2", "--", "torchrun", "--nnodes=1", "train.py"], "With --nnodes=1 the"),
        (["--tasks-per-node", "2", "-m", "torch.distributed.run", "train.py"], "in each of 2"),
    ],
)
def test_what_would_fail_in_the_queue_is_refused(folder, monkeypatch, words, sentence) -> None:
    (folder / "other.py").write_text("")
    (folder / "torchrun").write_text("#!/bin/sh\n")
    (folder / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    done = submit("--dry-run", *words)
    assert done.exit_code == 2
    assert sentence in done.stderr


@pytest.mark.parametrize("program", ["bash run.sh --data /torchvision", "pytorch/python train.py"])
def test_other_programs_with_torch_in_their_words_start_no_processes(folder, program) -> None:
    for name in ("bash", "pytorch/python"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    words = ["--force", "--tasks-per-node", "4", "--", f"{folder}/{program}"]
    assert submit("--dry-run", *" ".join(words).split()).exit_code == 0


def test_slurm_is_asked_for_what_it_calls_a_cpu(folder) -> None:
    (folder / "hasten.toml").write_text(PLAN.replace("cores = 4", "cores = 4\nslurm_cpus = 8"))
    assert "--cpus-per-task=8" in submit("--dry-run", "train.py").stdout
    assert "--cpus-per-task=16" in submit("--dry-run", "--cpus-per-task", "16", "train.py").stdout


def test_a_plan_that_failed_a_gate_is_not_submitted(folder) -> None:
    failed = PLAN + 'state = "failed"\ngates = ["failed: numerics: other losses"]\n'
    (folder / "hasten.toml").write_text(failed)
    assert submit("--dry-run", "train.py").exit_code == 2
    assert submit("--dry-run", "--force", "train.py").exit_code == 0


def test_a_plan_that_names_no_cores_needs_them(folder) -> None:
    (folder / "hasten.toml").write_text(PLAN.replace("cores = 4\n", ""))
    assert "does not say for how many cores" in submit("--dry-run", "train.py").stderr
    assert "--cpus-per-task=3" in submit("--dry-run", "--cpus-per-task", "3", "train.py").stdout


def test_bytes_that_are_no_utf8_are_printed_as_sbatch_gets_them(folder) -> None:
    done = submit("--dry-run", "train.py", "--name", "caf\udce9")
    assert b"train.py --name 'caf\xe9'\n" in done.stdout_bytes


@pytest.mark.parametrize("is_forbidden", [False, True])
def test_without_slurm_the_remedy_is_named(folder, monkeypatch, is_forbidden) -> None:
    if is_forbidden:
        (folder / "sbatch").write_text("")
    monkeypatch.setenv("PATH", str(folder))
    done = submit("--python", sys.executable, "train.py")
    assert done.exit_code == 2
    assert "There is no sbatch here." in done.stderr


def test_batches_are_shared_by_every_process_of_the_job(folder) -> None:
    script = submit("--dry-run", "--nodes", "2", "--share-batches", "train.py").stdout
    assert f"run --plan {folder}/hasten.toml --share-batches train.py" in script
    assert "export RANK=$SLURM_PROCID" in script


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train.py",), "One process shares its batches with nobody."),
        (("--nodes", "2", "--", "env", "train.py"), "--share-batches runs a script or a module"),
    ],
)
def test_what_cannot_share_batches_is_not_submitted(folder, words, sentence) -> None:
    done = submit("--share-batches", "--force", *words)
    assert done.exit_code == 2
    assert sentence in done.stderr
