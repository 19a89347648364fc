"""Root calls that are shared among processes: the same training, or one process."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

import hasten
from hasten.root_calls.ranks import roots
from hasten.root_calls.ranks.batch import Join, bending, find_join, selecting, split
from hasten.root_calls.ranks.batch_sums import scaled_by_sums
from hasten.root_calls.ranks.examine import are_joined
from hasten.root_calls.ranks.messages import RootCall, Surroundings

PROGRAM = Path(__file__).with_name("spread.py")
STAYS = {
    "samples_that_depend_on_one_another": "a batch cannot be shared among processes: ",
    "time_before_batch": "a batch cannot be shared among processes: ",
    "a_mean_of_some": "a batch cannot be shared among processes: an output of shape ()",
    "padded_in_the_end": "a batch cannot be shared among processes: it may divide by what",
    "recurrent_with_dropout": "LSTM drops out between its layers in one operation",
    "bent_in_evaluation": "a batch cannot be shared among processes: an output bends a sum",
    "bent_under_inference_mode": "a batch cannot be shared among processes: an output bends a sum",
    "counting_calls": "a call of the model changes seen",
    "another_generator": "the model draws random numbers from Python or NumPy",
    "own_generator": "the model has a random generator of its own",
    "remembering": "a call of the model changes an element",
    "choosing": "a batch cannot be shared among processes: it returns an object of class Categori",
    "deciding": "the model returns no tensor",
    "constrained": "a call of the model writes to its weights, their gradients or its inputs",
    "centring": "a call of the model writes to its weights, their gradients or its inputs",
    "looking": "the model learns weights that are not among its parameters",
    "taught": "the model uses another that is not part of it",
    "embedding_with_a_norm": "the model writes to its weights (max_norm)",
    "exacting": "a batch cannot be shared among processes: AssertionError",
    "hooked": "Linear has hooks",
    "keeping_a_mean": "a batch cannot be shared among processes: its buffers differ",
    "sometimes_normalized": "a batch cannot be shared among processes: a helper of the model",
    "keeping_the_last": "a batch cannot be shared among processes: its buffers differ",
    "tallied": "a call of the model changes an array",
    "summed": "a call of the model changes a tensor that is no weight",
    "measuring": "a call of the model changes count",
    "logged": "the model's code may print or write files: forward names info",
    "speaking": "the model's code may print or write files: forward names print",
}
SHARED = (
    "normalized", "channels_last", "attention", "loss_in_the_model", "summed_loss", "recurrent",
    "contrastive", "rivals", "unused_and_frozen", "twice_through_one_graph", "accumulated",
    "in_a_closure", "other_sizes", "changed_between_calls", "a_part_in_evaluation",
    "under_autocast", "drawn_in_every_way", "rows_of_several_samples",
    "growing_batches", "hooked_in_between", "annealed", "experts", "averages_in_between",
    "frozen_in_between", "a_mean_of_some_in_the_end", "centred", "described",
    "attention_with_dropout", "evaluated_under_inference_mode", "parameters_in_a_list",
    "packed_sequences", "complex_weights", "a_mode_of_its_own", "a_variable_around",
    "settled_by_its_first_call",
)  # fmt: skip

pytestmark = pytest.mark.child


@cache
def played(ranks):
    """Play all scenes with so many ranks; return what came of them, and what was printed."""
    source = str(Path(hasten.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(ranks)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": source}, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.strip().splitlines()
    return json.loads(last), printed


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_processes_train_as_one_does(name, ranks) -> None:
    seen = played(ranks)[0][name]
    assert seen["excused"] == ("Linear has hooks" if name == "hooked_in_between" else "")
    assert seen["most"] >= ranks - 1, "no helper was there"
    near = 2e-2 if name == "under_autocast" else 1e-9
    assert seen["distance"] <= near
    assert seen["told"] <= near
    assert seen["generator"]
    assert not seen["left"]


@pytest.mark.parametrize("name", STAYS)
def test_what_cannot_be_shared_stays_in_one_process_to_the_bit(name) -> None:
    seen = played(2)[0][name]
    assert seen["excused"].startswith(STAYS[name])
    assert (seen["distance"], seen["told"], seen["generator"], seen["left"]) == (0.0, 0.0, True, 0)


def test_what_a_model_does_only_with_gradients_is_not_done_while_it_evaluates() -> None:
    seen = played(2)[0]["warming"]
    assert seen["excused"] == "a call of the model changes seen", "in training"
    assert seen["told"] <= 1e-9, "the number of calls, too"


@pytest.mark.parametrize(
    ("name", "why"), [("other_domains", "the ranks are at different layers"),
                      ("more_domains", "a helper of the model has one more batch normalization")],
)  # fmt: skip
def test_shares_that_normalize_at_other_layers_are_left_to_one_process(name, why) -> None:
    seen = played(2)[0][name]
    assert seen["excused"] == why
    assert (seen["most"], seen["left"], seen["generator"]) == (1, 0, True)
    assert max(seen["distance"], seen["told"]) <= 1e-9


def test_every_scene_is_judged() -> None:
    others = {"warming", "faults", "other_domains", "more_domains"}
    assert {*STAYS, *SHARED, *others} == set(played(2)[0])


def test_what_a_model_prints_is_what_one_process_prints() -> None:
    """Printed are the sizes of whole batches, in the training of one process and of several."""
    printed = played(2)[1]
    assert printed[:7] == printed[7:]
    assert all(line.startswith("called with ") for line in printed)


def test_a_helper_that_dies_is_missed_by_no_call() -> None:
    seen = played(2)[0]["faults"]
    assert seen["killed before a call"] == 0.0
    assert seen["killed in a call"] <= 1e-12
    assert "helper of the model is gone" in seen["told"]
    assert "helper of the model is gone" in seen["killed before backward"]
    assert seen["left"] == 0


def test_helpers_hold_no_pipe_of_the_script_open() -> None:
    assert played(2)[0]["faults"]["reader"] == 0


LETS_GO = """
import os
from hasten.root_calls.ranks import helper
kept, other = os.pipe()
os.sysconf = lambda name: 10**9
os.closerange = lambda low, high: high - low > 10**6 and os._exit(3)
helper._let_go(kept)
os.fstat(kept)
try:
    is_closed = os.readlink(f"/proc/self/fd/{other}") == os.devnull  # opened since
except OSError:
    is_closed = True
os._exit(0 if is_closed else 4)
"""


def test_a_helper_closes_what_is_open_and_not_all_that_might_be() -> None:
    """A limit of a billion descriptors takes minutes where the kernel has no close_range."""
    source = str(Path(hasten.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", LETS_GO], check=False, env={**os.environ, "PYTHONPATH": source}
    )
    assert done.returncode == 0


def test_outputs_of_which_one_goes_through_another_are_seen() -> None:
    x = torch.ones(2, requires_grad=True)
    inner = x * 2
    assert are_joined({"features": inner, "logits": inner.exp()})
    assert are_joined(torch.max(torch.stack([inner, inner]), 0).values.chunk(2))
    assert not are_joined((x * 2, x.exp(), torch.ones(2)))
    assert not are_joined(inner)


def test_an_error_of_the_model_is_the_scripts_own() -> None:
    assert played(2)[0]["faults"]["wrong shape"].startswith("mat1 and mat2 shapes cannot be")


def test_helpers_call_a_model_through_the_same_levers() -> None:
    """In a trial another lever is there in one step, and is not in the next."""
    assert played(2)[0]["faults"]["under levers that change"] <= 1e-12


def test_after_an_interruption_calls_go_on() -> None:
    assert played(2)[0]["faults"]["interrupted"] <= 1e-12


def test_a_zero_tells_no_mean_from_a_sum() -> None:
    nothing = torch.zeros(())
    with pytest.raises(ValueError, match="does not tell a mean from a sum"):
        find_join(nothing, [nothing, nothing], split(4, 2), 1e-6)


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (lambda e, labels: e.square().mean(), ""),
        (functional.cross_entropy, ""),
        (lambda e, labels: functional.cross_entropy(e, labels, ignore_index=2), "NllLossBackward0"),
        (lambda e, labels: functional.cross_entropy(e, labels, torch.ones(3)), "NllLossBackward0"),
        (lambda e, labels: e[e > -9.0].mean(), "IndexBackward0"),
        (lambda e, labels: e.flatten().topk(6).values.mean(), "TopkBackward0"),
    ],
)
def test_a_mean_of_what_values_select_is_no_mean_of_shares(loss, name) -> None:
    torch.manual_seed(0)
    rows, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 1, 0])
    whole = loss(rows, labels)
    assert selecting(whole) == name
    spans = split(4, 2)
    each = [loss(*pair) for pair in zip(rows.split(2), labels.split(2), strict=True)]
    if name == "TopkBackward0":  # of the shares it is another mean
        return
    if name:
        with pytest.raises(ValueError, match=name):
            find_join(whole, each, spans, 1e-6)
    else:
        assert find_join(whole, each, spans, 1e-6) is Join.MEAN


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (lambda e, labels: e.square().mean(0).clamp(min=1e-9).sum(), "Clamp"),
        (lambda e, labels: e.square().mean(-2).clamp(max=99.0).sum(), "Clamp"),
        (lambda e, labels: e.square().sum().clamp(max=99.0), "Clamp"),
        (lambda e, labels: functional.relu(99.0 - (e[:, 0].mean() - e[:, 1].mean())), "Relu"),
        (lambda e, labels: (functional.cross_entropy(e, labels) - 1e-9).abs() + 1e-9, "Abs"),
        (lambda e, labels: functional.relu(e).mean(), ""),
        (lambda e, labels: e.square().mean(1).clamp(max=99.0).mean(), ""),
        (lambda e, labels: e.square().mean() + e.new_ones(3, requires_grad=True).sum().abs(), ""),
    ],
)
def test_a_mean_that_is_bent_afterwards_is_no_mean_of_shares(loss, name) -> None:
    """In this batch each of them is straight."""
    torch.manual_seed(0)
    rows = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 1, 0])
    whole, spans = loss(rows, labels), split(4, 2)
    assert bending(whole, 4).startswith(name)
    assert selecting(whole) == ""
    each = [loss(*pair) for pair in zip(rows.split(2), labels.split(2), strict=True)]
    if name:
        with pytest.raises(ValueError, match=rf"bends a sum .*\({name}"):
            find_join(whole, each, spans, 1e-9)
    else:
        assert bending(whole, 4) == ""
        assert find_join(whole, each, spans, 1e-9) is Join.MEAN


@pytest.mark.parametrize(
    ("loss", "name", "name_of_scalars"),
    [
        (lambda e, mask: (e * mask).sum() / mask.sum(), "div", "div"),
        (lambda e, mask: (e * mask).sum() / mask.sum().clamp(min=1), "div", "div"),
        (lambda e, mask: (e * mask).mean() * (1 / mask.mean()), "mul", "mul"),
        (lambda e, mask: ((e * mask).sum(0) / mask.sum(0)).mean(), "div", "div"),
        (lambda e, mask: (e * (mask / mask.sum())).sum(), "div", "div"),
        (lambda e, mask: e * mask / (mask > 0).float().mean(), "div", "div"),
        (lambda e, mask: (e * mask).sum() / mask.sum().item(), "", "_local_scalar_dense"),
        (lambda e, mask: (e * mask).sum() / len(mask[mask > 0]), "", "index"),
        (lambda e, mask: (e * mask).sum() / len(e), "", ""),
        (lambda e, mask: e.sum() / torch.ones_like(e).sum(), "", ""),
        (lambda e, mask: (e * mask).sum(1).mean() + mask.sum(), "", ""),
        (lambda e, mask: e[[0, 1]].sum() if mask.any() else e.sum(), "", ""),
        (lambda e, mask: functional.cross_entropy(e, mask[:, 0].long(), label_smoothing=0.1),
         "", ""),
    ],
)  # fmt: skip
def test_a_scale_by_a_sum_over_the_batch_is_seen(loss, name, name_of_scalars) -> None:
    """In this batch the mask leaves nothing out."""
    e, mask = torch.rand(4, 3, requires_grad=True), torch.ones(4, 3)
    surroundings = Surroundings(True, None, 1)
    call = RootCall(None, lambda args, _: loss(*args), (e, mask), {}, [e, mask], 4, surroundings)
    assert scaled_by_sums(call, has_scalars=False)[0] == name
    assert scaled_by_sums(call, has_scalars=True)[0] == name_of_scalars


@pytest.mark.parametrize(("left_bytes", "is_small"), [(2**34, False), (2**20, True), (None, True)])
def test_helpers_take_no_more_than_the_container_leaves(left_bytes, is_small, monkeypatch) -> None:
    monkeypatch.setattr(roots, "available_bytes", lambda root: left_bytes)
    ranks = SimpleNamespace(_rank_count=2, _known=list)
    why = roots.Ranks._without_room(ranks, torch.nn.Linear(1000, 1000))
    assert ("the memory is too small" in why) == is_small
