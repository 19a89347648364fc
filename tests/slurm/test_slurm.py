"""What docs/slurm.md says, on a real Slurm: two nodes of two cores, all on this machine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HASTEN = f"{sys.executable} -m hasten"
PLAN = """\
schema = 1
[machine]
cores = 1
[command]
entry = "script"
argv = ["train.py", "2"]
[plan]
omp_wait_policy = "active"
[evidence]
"""
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("slurmd", "slurmctld", "munged", "srun"))),
    reason="needs Slurm: apt-get install slurm-wlm",
)


# Gloo's threads may let go of a tensor while Python ends, and abort (pytorch/pytorch#179291).
aborts_at_exit = pytest.mark.flaky(
    reruns=2, only_rerun="terminate called without an active exception"
)


@pytest.fixture
def cluster(tmp_path):
    """Run a shell command in a folder with a script and its plan, beside a Slurm of its own."""
    shutil.copy(HERE / "train.py", tmp_path)
    (tmp_path / "hasten.toml").write_text(PLAN)
    # Only here: gloo looks the host's name up, and there is no network but this.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}

    def run(command: str, timeout_s: float = 120.0):
        return subprocess.run(
            ["bash", HERE / "cluster.sh", tmp_path / "slurm", "bash", "-c", command],
            cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, timeout=timeout_s,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def rows(output: str) -> list[list[str]]:
    """Return what the ranks have printed, by rank."""
    return sorted(line.split() for line in output.splitlines() if re.match(r"\d+ \d+ node", line))


def ended(submission: str) -> str:
    """Return a command that submits a job, prints what it prints, and has its exit code."""
    return f"""
        job=$({submission} | grep -o "[0-9]*$")
        while squeue --noheader --job $job | grep -q .; do sleep 0.2; done
        cat slurm-$job.out
        exit $(scontrol show job $job | grep -oP "(?<= ExitCode=)[0-9]+")"""


def test_the_budget_is_what_slurm_gave_the_task(cluster) -> None:
    done = cluster(f"srun --ntasks=2 --nodes=1 --cpus-per-task=1 --label {HASTEN} doctor")
    said = [line for line in done.stdout.splitlines() if "This job gets" in line]
    assert len(said) == 2
    assert all("gets 1 core" in line for line in said), done.stdout
    assert "Slurm 1 CPU" in done.stdout


@pytest.mark.slow
@aborts_at_exit
def test_two_nodes_end_with_the_same_weights(cluster) -> None:
    done = cluster(ended(f"{HASTEN} submit --nodes 2 --tasks-per-node 2 train.py 2"))
    ranks = rows(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row[:3] for row in ranks] == [
        ["0", "4", "node1"], ["1", "4", "node1"], ["2", "4", "node2"], ["3", "4", "node2"],
    ]  # fmt: skip
    assert {row[3] for row in ranks} == {"active"}, "each rank runs under the plan"
    assert len({row[4] for row in ranks}) == 1, "the ranks have the same weights"


@aborts_at_exit
@pytest.mark.slow
def test_torchrun_on_each_node_makes_one_training(cluster) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    words = f"-- {torchrun} --nproc-per-node 1 train.py 2"
    done = cluster(ended(f"{HASTEN} submit --nodes 2 --force {words}"))
    ranks = rows(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row[:4] for row in ranks] == [
        ["0", "2", "node1", "active"],
        ["1", "2", "node2", "active"],
    ]
    assert ranks[0][4] == ranks[1][4]


@pytest.mark.slow
def test_one_process_is_told_no_rank(cluster) -> None:
    done = cluster(ended(f"{HASTEN} submit train.py 2"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row[:4] for row in rows(done.stdout)] == [["0", "1", "node1", "active"]]


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_job(cluster) -> None:
    done = cluster(ended(f"{HASTEN} submit --nodes 2 train.py 100000 fails"))
    assert done.returncode in (7, 143), "srun gives the highest code: 143 of a rank that it ended"
    assert "node2: task 1: Exited with exit code 7" in done.stdout
    assert not rows(done.stdout)


def test_what_slurm_refuses_is_told_with_its_exit_code(cluster) -> None:
    done = cluster(f"{HASTEN} submit --sbatch --partition=nowhere train.py 2")
    assert done.returncode == 1
    assert "invalid partition specified: nowhere" in done.stderr


@pytest.mark.slow
def test_the_end_of_a_job_keeps_the_best_so_far(cluster, tmp_path) -> None:
    (tmp_path / "hasten.toml").unlink()
    tune = f"exec srun --cpus-per-task=2 {HASTEN} tune --budget 5m --progress plain train.py 9999"
    job = f"#!/bin/bash\n#SBATCH --cpus-per-task=2 --signal=TERM@60 --time=2\n{tune}\n"
    done = cluster(ended(f"printf '{job}' | sbatch"), 200.0)
    assert done.returncode == 130, done.stdout + done.stderr
    assert re.search(r"Wrote hasten(-unconfirmed)?\.toml", done.stdout), done.stdout


def test_a_script_that_knows_nothing_of_ranks_is_trained_by_two_nodes(cluster, tmp_path) -> None:
    job = ended(f"{HASTEN} submit --nodes 2 --share-batches train.py 2")
    done = cluster(f"OMP_NUM_THREADS=1 {sys.executable} train.py 2\n{job}")
    assert done.returncode == 0, done.stdout + done.stderr
    printed = [line.split() for line in done.stdout.splitlines() if re.match(r"\d+ \d+ ", line)]
    alone, shared = printed  # and nothing by the other process
    assert shared[:4] == ["0", "1", "None", "active"], "one process, as far as the script knows"
    assert float(shared[4]) == pytest.approx(float(alone[4]), rel=1e-5)
    assert float(shared[4]) != float(alone[4]), "gradients were added up in another order"


@pytest.mark.slow
def test_a_job_whose_script_cannot_be_shared_ends_with_a_sentence(cluster, tmp_path) -> None:
    script = (tmp_path / "train.py").read_text().replace("nn.ReLU()", "nn.Softmax(0)")
    (tmp_path / "train.py").write_text(script)
    done = cluster(ended(f"{HASTEN} submit --nodes 2 --share-batches train.py 2"))
    assert done.returncode == 1
    assert "hasten: cannot share batches among the ranks: a batch cannot be shared" in done.stdout
