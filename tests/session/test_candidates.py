"""Which levers are offered to a search, and the sentence for each that is not."""

from dataclasses import replace

from hasten.lever import ScriptContext
from hasten.records import (
    Diagnosis,
    Effect,
    Finding,
    Interval,
    ModelTraits,
    OptimizerTraits,
    PrecisionTraits,
    ProductSpeed,
    Runtime,
    Traits,
)
from hasten.search import SearchStarted
from hasten.session import Options
from hasten.session.candidates import find_candidates
from hasten.session.watching import context_of
from hasten.testing import LAPTOP, SERVER, fed, sample_profile

ON_CPU = ModelTraits(dtype="float32", device="cpu")


def multiplying(ratio):
    precision = PrecisionTraits(bf16=ProductSpeed(matmul_ratio=ratio))
    return Traits(model=ON_CPU, precision=precision)


FAST = multiplying(2.0)


def found(traits, **permits):
    context = ScriptContext(machine=SERVER, baseline=sample_profile(), traits=traits)
    candidates, rows = find_candidates(
        context, Options(**permits), begun=SearchStarted(), diagnosis=Diagnosis()
    )
    return {candidate.lever for candidate in candidates}, {row.lever: row.why for row in rows}


def test_fewer_bits_are_tried_only_where_they_are_allowed() -> None:
    offered, why = found(FAST)
    assert "autocast" not in offered
    assert why["autocast"] == "its effect is precision, which needs --numerics precision"
    assert "autocast" in found(FAST, numerics=Effect.PRECISION)[0]


def test_what_cannot_help_says_so_before_it_asks_for_permission() -> None:
    _, why = found(multiplying(0.5))
    assert why["autocast"] == "bf16 is 2x slower than fp32 here"


def test_a_redraw_is_refused_by_the_word_that_forbids_it() -> None:
    _, why = found(fed(draws=True), numerics=Effect.EXACT)
    said = "its effect is distribution, which needs --numerics distribution"
    assert why["redrawing_workers"] == said


def finding(name, ratio):
    share = Interval(low_ratio=ratio, mid_ratio=ratio, high_ratio=ratio)
    return Finding(name=name, message="It waits.", remedy="Mend it.", share=share)


def shares(findings, begun=None):
    optimizer = OptimizerTraits(name="Adam")
    traits = replace(fed(dataset="MNIST"), optimizer=optimizer)
    context = ScriptContext(machine=SERVER, baseline=sample_profile(), traits=traits)
    candidates, _ = find_candidates(
        context, Options(), begun=begun or SearchStarted(),
        diagnosis=Diagnosis(findings=findings),
    )  # fmt: skip
    return {
        candidate.lever: candidate.named_ratio for candidate in candidates if candidate.named_ratio
    }


def test_a_candidate_knows_the_largest_share_of_the_findings_that_it_cures() -> None:
    findings = (finding("per-sample-transforms", 0.6), finding("per-sample-fetch", 0.1))
    assert shares(findings)["batched_fetch"] == 0.6


def test_a_search_that_goes_on_keeps_the_shares_that_it_began_with() -> None:
    begun = SearchStarted(settings={"fused_optimizer": (True,)}, named={"fused_optimizer": 0.2})
    assert shares((finding("per-parameter-loops", 0.5),), begun) == {"fused_optimizer": 0.2}


def offered_beside(*findings, begun=None, **permits):
    context = ScriptContext(
        machine=SERVER, baseline=sample_profile(), traits=Traits(thread_count=8)
    )
    candidates, rows = find_candidates(
        context, Options(**permits), begun=begun or SearchStarted(),
        diagnosis=Diagnosis(findings=findings),
    )  # fmt: skip
    return {candidate.lever for candidate in candidates}, {row.lever: row.why for row in rows}


def candidate_beside(*findings, runtime="libgomp"):
    runtimes = (Runtime(kind="openmp", name=runtime, path="/x"),)
    context = ScriptContext(
        machine=replace(LAPTOP, torch=replace(LAPTOP.torch, runtimes=runtimes)),
        baseline=sample_profile(), traits=Traits(thread_count=4),
    )  # fmt: skip
    candidates, _ = find_candidates(
        context, Options(), begun=SearchStarted(),
        diagnosis=Diagnosis(findings=findings),
    )  # fmt: skip
    return next((c for c in candidates if c.lever == "omp_wait_policy"), None)


OTHERS = finding("contended-machine", 0.3)


def test_beside_other_processes_nothing_is_tried_that_wins_by_giving_up_cpus() -> None:
    assert "intra_op_threads" in offered_beside()[0]
    offered, why = offered_beside(OTHERS)
    assert "malloc_retention" in offered
    assert not {"intra_op_threads", "ranks", "thread_binding"} & offered
    assert why["intra_op_threads"].startswith("other processes keep CPUs busy")


def test_beside_other_processes_the_settings_that_last_are_left() -> None:
    assert candidate_beside().settings == ("active", "short")
    assert candidate_beside(OTHERS).settings == ("short",)
    assert candidate_beside(OTHERS, runtime="libomp") is None


def test_a_lever_against_contention_is_raced_among_the_promising() -> None:
    assert not candidate_beside().bundled
    assert candidate_beside(OTHERS).bundled
    assert candidate_beside(OTHERS).named_ratio == 0.0  # a wait is no gain


def test_what_a_finding_or_the_user_names_is_tried_beside_others_too() -> None:
    assert "intra_op_threads" in offered_beside(OTHERS, finding("small-ops-threads", 0.3))[0]
    assert "intra_op_threads" in offered_beside(OTHERS, only=frozenset({"intra_op_threads"}))[0]
    begun = SearchStarted(settings={"intra_op_threads": (1,)})
    assert "intra_op_threads" in offered_beside(OTHERS, begun=begun)[0]


def test_a_lever_is_asked_about_one_rank_s_share_of_the_machine() -> None:
    seen, alone = replace(sample_profile(), cores_ratio=3.0), Traits()
    for count in (1, 2):
        traits = replace(alone, rank_count=count, local_rank_count=count)
        context = context_of(SERVER, seen, traits, assumed=frozenset())
        assert context.machine.budget.core_count == SERVER.budget.core_count // count
        assert context.machine.memory.available_bytes == SERVER.memory.available_bytes // count
        assert context.baseline.cores_ratio == 3.0 / count
