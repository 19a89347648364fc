"""Records that look like a real tuning."""

import random
import sys
from dataclasses import replace
from math import exp

import pytest

from hasten.records import (
    Budget,
    Caveat,
    Comparison,
    Cost,
    Cpu,
    Diagnosis,
    Effect,
    Entry,
    Finding,
    Gate,
    HotLine,
    Interval,
    LeverReport,
    Machine,
    Noise,
    Outcome,
    Pair,
    Phase,
    Place,
    Plan,
    Profile,
    Profiling,
    Proof,
    Step,
    Torch,
    Tuning,
    Verdict,
    Workload,
)


def interval(low, mid, high):
    return Interval(low_ratio=low, mid_ratio=mid, high_ratio=high)


@pytest.fixture
def machine():
    return Machine(
        cpu=Cpu(model="AMD EPYC 9V74 80-Core Processor", core_count=2, thread_count=4),
        budget=Budget(core_count=2, limited_by="cores"),
        torch=Torch(version="2.13.0+cpu", thread_count=4),
        system="Linux 6.8",
        python_version="3.11.7",
        caveats=(
            Caveat(
                name="threads_above_budget",
                problem="Torch starts 4 threads on 2 cores.",
                remedy="Set OMP_NUM_THREADS=2.",
            ),
        ),
    )


@pytest.fixture
def workload(tmp_path):
    argv = ("train.py", "--epochs", "3", "--name", "my run [a]")
    return Workload(entry=Entry.SCRIPT, argv=argv, cwd=str(tmp_path), python=sys.executable)


@pytest.fixture
def diagnosis(workload):
    slow = Place(path=f"{workload.cwd}/train.py", line=7, source="images = slow(images)")
    return Diagnosis(
        findings=(
            Finding(
                name="few-workers",
                share=interval(0.38, 0.43, 0.47),
                message="The loop waits 43% of the step for batches that one process makes.",
                remedy="Give the loader two workers.",
                lever="loader_workers",
                places=(slow,),
            ),
            Finding(name="shm-too-small", message="64.0 MiB are left.", remedy="Pass --shm-size."),
        ),
        hot_lines=(HotLine(place=slow, share_ratio=0.12, phase="data", calls="PIL.Image.resize"),),
    )


@pytest.fixture
def profiled(workload, diagnosis):
    def make(profile, machine, notes=()):
        return Profiling(
            machine=machine, workload=workload, profile=profile, diagnosis=diagnosis, notes=notes
        )

    return make


@pytest.fixture
def profile():
    return Profile(
        step_s=0.0341,
        step_low_s=0.0332,
        step_high_s=0.036,
        sample_unit="samples",
        sample_count=32,
        phase_s={
            Phase.DATA: 0.0148,
            Phase.FORWARD: 0.0071,
            Phase.LOSS: 0.0002,
            Phase.BACKWARD: 0.0102,
            Phase.OPTIMIZER: 0.0016,
            Phase.OTHER: 0.0005,
            Phase.EVALUATION: 0.004,
        },
        step_count=64,
        peak_rss_bytes=812 * 2**20,
        faults_count=16095.0,
        cores_ratio=1.21,
        own_cost=interval(0.999, 1.004, 1.007),
    )


@pytest.fixture
def tuned(profile):
    phase_s = {**profile.phase_s, Phase.DATA: 0.0052, Phase.OPTIMIZER: 0.0007}
    return replace(profile, step_s=0.0238, phase_s=phase_s)


@pytest.fixture
def rows():
    def row(lever, setting, outcome, why, effect, *, speedup=None):
        return LeverReport(
            lever=lever,
            setting=setting,
            outcome=Outcome(outcome),
            why=why,
            effect=effect,
            speedup=speedup,
        )

    return (
        row(
            "gather_batches", True, "kept", "Data fell from 14.8 ms to 5.2 ms a step.",
            Effect.EXACT, speedup=interval(1.31, 1.35, 1.4),
        ),
        row(
            "intra_op_threads", 2, "kept", "Two threads for two cores; four stood in line.",
            Effect.ROUNDING, speedup=interval(1.03, 1.06, 1.09),
        ),
        row(
            "channels_last", True, "dropped", "No faster than 2% after 96 pairs.",
            Effect.ROUNDING, speedup=interval(0.97, 0.99, 1.01),
        ),
        row("compile", "default", "failed", "No C compiler is installed.", Effect.ROUNDING),
        row(
            "fused_optimizer", None, "skipped",
            "The optimizer takes 4.7% of the step, so it can give 1.02x at best.", Effect.ROUNDING,
        ),
        row("autocast", None, "skipped", "It needs --numerics precision.", Effect.PRECISION),
    )  # fmt: skip


@pytest.fixture
def tuning(machine, workload, profile, tuned, rows):
    return Tuning(
        machine=machine,
        workload=workload,
        baseline=profile,
        tuned=tuned,
        plan=Plan().with_lever("gather_batches", True).with_lever("intra_op_threads", 2),
        proof=Proof(
            effect=Effect.ROUNDING,
            gates=(
                Gate(name="same batches", passed=True, message="32 batches have equal hashes."),
                Gate(
                    name="same maths",
                    passed=True,
                    message="Gradients are 1.3 times the floor apart.",
                ),
                Gate(name="weights", passed=None, message="The baseline itself does not repeat."),
            ),
        ),
        cost=Cost(wall_s=263.0, launch_count=14),
        speedup=interval(1.38, 1.43, 1.49),
        means_ratio=1.41,
        noise=Noise(
            sd_ratio=0.11, pair_s=0.07, resolution_ratio=0.03, bias=interval(0.98, 1.004, 1.02)
        ),
        levers=rows,
        notes=("The script sets no seed; trials pinned one.",),
    )


@pytest.fixture
def nothing(tuning):
    rows = tuple(r for r in tuning.levers if r.outcome is not Outcome.KEPT)
    return replace(
        tuning, plan=Plan(), tuned=None, speedup=None, means_ratio=None, levers=rows,
        proof=Proof(effect=Effect.EXACT),
    )  # fmt: skip


@pytest.fixture
def lines():
    return {
        "gather_batches": "batch = [t[index] for t in dataset.tensors]",
        "intra_op_threads": "torch.set_num_threads(2)",
    }


def race(baseline, candidate, verdict, ratios, *, count=40, sd_ratio=0.08, seed=0):
    """Return a comparison with pairs around the middle one of three ratios."""
    rng = random.Random(seed)
    pairs = tuple(
        Pair(
            baseline_s=0.001 * ratios[1] * exp(rng.gauss(0.0, sd_ratio)),
            candidate_s=0.001,
            baseline_first=rng.random() < 0.5,
        )
        for _ in range(count)
    )
    return Comparison(
        baseline=baseline, candidate=candidate, verdict=verdict, speedup=interval(*ratios),
        means_ratio=ratios[1], pairs=pairs, wall_s=6.5,
    )  # fmt: skip


@pytest.fixture
def watched():
    """Steps of a loop that waits for its data, one in eleven for a collection of garbage, too."""
    rng = random.Random(4)
    return tuple(
        Step(
            phase_ns={
                Phase.DATA: int(14.8e6 * exp(rng.gauss(0, 0.25))),
                Phase.FORWARD: int(7.1e6 * exp(rng.gauss(0, 0.04))),
                Phase.LOSS: 200_000,
                Phase.BACKWARD: int(10.2e6 * exp(rng.gauss(0, 0.05))),
                Phase.OPTIMIZER: 1_600_000,
                Phase.OTHER: int(24e6 if index % 11 == 10 else 5e5),
            },
            sample_count=32,
        )
        for index in range(96)
    )


@pytest.fixture
def raced(tuning, diagnosis, watched):
    """A tuning with everything that a page can show."""
    gather = Plan().with_lever("gather_batches", True)
    both = gather.with_lever("intra_op_threads", 2)
    extra = both.with_lever("malloc_retention", True)
    losses = tuple(2.3 * 0.97**index for index in range(32))
    broken = Comparison(
        baseline=both, candidate=both.with_lever("compile", "default"), verdict=Verdict.FAIL,
        failure="No C compiler is installed.",
    )  # fmt: skip
    return replace(
        tuning,
        diagnosis=replace(diagnosis, steps=watched),
        races=(
            race(Plan(), gather, Verdict.WIN, (1.31, 1.35, 1.4), seed=1),
            race(gather, both, Verdict.WIN, (1.03, 1.06, 1.09), seed=2),
            race(
                both,
                both.with_lever("channels_last", True),
                Verdict.DROP,
                (0.97, 0.99, 1.01),
                seed=3,
            ),
            broken,
            race(both, extra, Verdict.UNDECIDED, (0.99, 1.02, 1.06), seed=4),
            race(both, extra, Verdict.DROP, (0.98, 0.995, 1.01), seed=5),
        ),
        confirmed=race(Plan(), both, Verdict.WIN, (1.38, 1.43, 1.49), count=120, seed=6),
        proof=replace(
            tuning.proof,
            baseline_losses=losses,
            candidate_losses=tuple(loss * (1 + 1e-7 * i) for i, loss in enumerate(losses)),
            taught_count=24,
        ),
    )
