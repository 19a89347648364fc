"""The whole proof on real runs: which plans pass, which do not, by which gates."""

import signal
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from hasten import levers
from hasten.errors import ScriptFailed, Unprovable
from hasten.records import Effect, Entry, Plan, Workload
from hasten.session import recordings
from hasten.session.options import Options
from hasten.session.recordings import open_prover
from hasten.trials.compiled_code import CompiledCode
from hasten.trials.process import Isolation, best_isolation

# Sets no seed: weights, dropout, order and noise come from generators that are pinned.
SCRIPT = """
import hasten.levers
hasten.levers.__path__.append({folder!r})
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


class Noisy(torch.utils.data.Dataset):
    x = torch.from_numpy(np.random.default_rng().normal(size=(96, 3, 8, 8)).astype("float32"))
    y = torch.randint(0, 4, (96,))

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(3, 8, 8), self.y[index]


loader = torch.utils.data.DataLoader(Noisy(), batch_size=8, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1),
    nn.Linear(8 * 64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
for epoch in range(20):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
# A gradient is asked for by keywords, as penalties do it.
PENALTY = """
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(200):
    x = torch.randn(8, 4, requires_grad=True)
    value = model(x)
    (gradient,) = torch.autograd.grad(
        outputs=value, inputs=x, grad_outputs=torch.ones_like(value), create_graph=True)
    optimizer.zero_grad()
    torch.autograd.backward(tensors=value.mean() + (gradient.norm(dim=1) - 1).square().mean())
    optimizer.step()
"""
# Samples in an order, and with noise, of a generator that nobody can pin.
VARYING = (
    SCRIPT.replace("torch.randn(3, 8, 8)", "torch.randn(3, 8, 8, generator=own)")
    .replace("shuffle=True", "shuffle=True, generator=own")
    .replace("class Noisy", "own = torch.Generator()\nown.seed()\n\n\nclass Noisy")
)
# The same without a loader, as where an environment is played.
PLAYED = """
import hasten.levers
hasten.levers.__path__.append({folder!r})
import torch
from torch import nn

torch.set_num_threads(1)
own = torch.Generator()
own.seed()
model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(200):
    x = torch.randn(16, 12, generator=own)
    loss = (model(x) - x[:, :4].square()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
# A line search asks for as many losses as the values want.
SEARCHING = """
import hasten.levers
hasten.levers.__path__.append({folder!r})
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=5,
                              line_search_fn="strong_wolfe")
x = torch.linspace(-1, 1, 64)[:, None]
for step in range(100):
    def closure():
        optimizer.zero_grad()
        loss = (model(x) - torch.sin(9 * x)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
"""
# The gradient of each sample by itself: the loss has no value inside.
BY_SAMPLE = """
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

def loss_of(parameters, x, y):
    return (functional_call(model, parameters, (x[None],)) - y).square().mean()

for step in range(200):
    x = torch.randn(8, 4)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    gradients = vmap(grad(loss_of), (None, 0, 0))(parameters, x, x.sum(1))
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].mean(0)
    optimizer.step()
"""
# Levers of a kind that must be rejected, and of kinds that no installed lever has.
LEVER = '''"""{name}: planted."""

from hasten.lever import Lever
from hasten.records import Effect, Phase, Scope

def lr(optimizer):
    for group in optimizer.param_groups:
        group["lr"] *= 1.005

def steps(optimizer):
    before = []

    def keep(*_):
        before[:] = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]

    def stretch(*_):
        import torch

        for p, b in zip(optimizer.param_groups[0]["params"], before):
            with torch.no_grad():
                p.add_(p - b, alpha=0.005)

    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(stretch)

def narrow(module, call, args, kwargs):
    import torch

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = call(args, kwargs)
    return found.float()

def rounds(module, call, args, kwargs):
    return call(args, kwargs) * (1 + 2.0**-22)

def draws(module, call, args, kwargs):
    import torch

    if next(module.parameters(), None) is not None:
        torch.rand(3)
    return call(args, kwargs)

def apply(training, setting):
    undo = [training.on_call(act) for act in {calls}]
    undo += [training.on_optimizer(act) for act in {optimizers}]
    return lambda: [back() for back in undo]

LEVER = Lever(
    name="{name}", phases=frozenset({{Phase.FORWARD}}), effect=Effect.{effect},
    scope=Scope.LAUNCH, settings=lambda scene: (True,), gain_ratio=2.0,
    why_not=lambda scene: "never", snippet=lambda setting: "pass", apply=apply,
)
'''
PLANTED = {
    "planted_rate": ("ROUNDING", "[]", "[lr]"),
    "planted_steps": ("ROUNDING", "[]", "[steps]"),
    "planted_lie": ("EXACT", "[]", "[lr]"),
    "planted_rounding": ("ROUNDING", "[rounds]", "[]"),
    "planted_draws": ("DISTRIBUTION", "[draws]", "[]"),
    "planted_draws_and_steps": ("DISTRIBUTION", "[draws]", "[steps]"),
    "planted_narrow": ("PRECISION", "[narrow]", "[]"),
    "planted_narrow_and_steps": ("PRECISION", "[narrow]", "[steps]"),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Plant the levers beside the installed ones, here and in the children."""
    folder = tmp_path_factory.mktemp("proof") / "planted"
    folder.mkdir()
    for name, (effect, calls, optimizers) in PLANTED.items():
        text = LEVER.format(name=name, effect=effect, calls=calls, optimizers=optimizers)
        (folder / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levers, "__path__", [*levers.__path__, str(folder)])
        yield folder
    for name in PLANTED:
        sys.modules.pop(f"hasten.levers.{name}", None)


@pytest.fixture(scope="module")
def warm(planted, child_python):
    """A Python that has started before, with the planted levers."""
    site = planted.parent / "site"
    site.mkdir()
    start = f"import hasten.levers\nhasten.levers.__path__.append({str(planted)!r})\n"
    (site / "sitecustomize.py").write_text(start)
    python = site / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH=$PYTHONPATH:{site} exec {child_python} "$@"\n')
    python.chmod(0o700)
    return str(python)


FOR_A_GPU = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(100):
    loss = model(torch.randn(64, 32).cuda()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def opened_prover(folder, python=None):
    """Open a prover; runs of a `python` that has started before have no isolation."""
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py",), cwd=str(folder.parent),
        python=python or sys.executable,
    )  # fmt: skip
    isolation = Isolation.NONE if python else best_isolation()
    return open_prover(
        workload, isolation=isolation, step_s=0.01, start_s=5.0, patience_s=120.0,
        parameter_count=3000, code=CompiledCode(),
    )  # fmt: skip


@pytest.mark.slow
def test_a_script_for_a_device_that_is_not_here_is_compared_with_itself_on_the_cpu(tmp_path):
    (tmp_path / "train.py").write_text(FOR_A_GPU)
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path), python=sys.executable
    )
    on_cpu = Plan().with_lever("device_placement", "cpu")
    options = Options(applied=on_cpu.with_lever("intra_op_threads", 1))
    assert options.reference == on_cpu
    fused = Plan().with_lever("fused_optimizer", True)
    judged = options.judged(fused)
    assert judged == fused.with_lever("intra_op_threads", 1)
    with open_prover(
        workload, isolation=best_isolation(), step_s=0.01, start_s=5.0, patience_s=120.0,
        parameter_count=3000, code=CompiledCode(), reference=options.reference,
    ) as prover:  # fmt: skip
        proof = prover.prove(judged)
    assert (proof.holds, proof.effect) == (True, Effect.ROUNDING)
    assert prover.envelope is not None


@pytest.fixture(scope="module")
def prove(planted, warm):
    """Prove a plan; the script as it is is recorded once for all of them.

    Other seeds are pinned when torch arrives, and some levers act where Python starts.
    """
    (planted.parent / "train.py").write_text(SCRIPT.format(folder=str(planted)))
    with opened_prover(planted, warm) as warmed, opened_prover(planted) as launched:

        def prove(**settings):
            plan = Plan(tuple(sorted(settings.items())))
            inside = all(name.startswith("planted") and "draws" not in name for name in settings)
            prover = warmed if inside else launched
            before = prover.launch_count
            return prover.prove(plan), prover.launch_count - before

        yield prove


def said(proof):
    return {gate.name: gate.passed for gate in proof.gates}, [gate.message for gate in proof.gates]


@pytest.mark.slow
@pytest.mark.child
def test_workers_that_draw_otherwise_learn_the_same_from_the_batches_of_the_script(
    planted, tmp_path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(folder=str(planted)))
    with opened_prover(tmp_path / "none") as prover:  # its first plan asks to keep the batches
        proof = prover.prove(Plan().with_lever("redrawing_workers", 2))
        launch_count = prover.launch_count
    verdict, message = said(proof)
    assert verdict == {
        "G0 repeatable": True, "G1 structure": True, "G1 law of the draws": True,
        "G3 rounding": True,
    }, message  # fmt: skip
    assert proof.effect is Effect.DISTRIBUTION
    assert launch_count <= 6


@pytest.mark.child
def test_a_model_that_draws_otherwise_is_judged_by_other_seeds(prove) -> None:
    proof, _ = prove(planted_draws=True)
    verdict, message = said(proof)
    assert (verdict["G3 draws"], verdict["G3 update"]) == (True, True), message
    assert proof.effect is Effect.DISTRIBUTION


@pytest.mark.child
def test_fewer_bits_are_proved_by_a_floor_of_such_bits(prove) -> None:
    proof, launch_count = prove(planted_narrow=True)
    verdict, message = said(proof)
    assert (verdict["G4 precision"], verdict["G3 update"]) == (True, True), message
    assert proof.effect is Effect.PRECISION
    assert launch_count <= 6


@pytest.mark.child
@pytest.mark.parametrize(
    ("name", "gate"),
    [
        ("planted_rate", "G1 structure"),
        ("planted_steps", "G3 rounding"),
        ("planted_draws_and_steps", "G3 update"),
        ("planted_narrow_and_steps", "G3 update"),
    ],
)
def test_plans_that_differ_in_a_planted_rate_alone_are_told_apart(name, gate, prove) -> None:
    proof, _ = prove(**{name: True})
    verdict, message = said(proof)
    assert not proof.holds
    assert verdict[gate] is False, message


@pytest.mark.child
def test_harmless_levers_are_proved(prove) -> None:
    rounding, _ = prove(channels_last=True, fused_optimizer=True)
    assert rounding.holds, said(rounding)
    exact, _ = prove(malloc_retention=True)
    assert exact.holds, said(exact)
    assert exact.effect is Effect.EXACT


@pytest.mark.child
def test_a_plan_that_claims_the_same_bits_needs_one_run_beside_the_script(warm, planted) -> None:
    (planted.parent / "train.py").write_text(SCRIPT.format(folder=str(planted)))
    with opened_prover(planted, warm) as prover:
        exact = prover.prove(Plan().with_lever("malloc_retention", True))
        assert (exact.holds, exact.effect, prover.launch_count) == (True, Effect.EXACT, 2)
        assert [gate.passed for gate in exact.gates] == [True, True, True]
        lie = prover.prove(Plan().with_lever("planted_lie", True))
        assert not lie.holds
        assert {gate.name: gate.passed for gate in lie.gates}["G0 repeatable"] is True
        assert prover.prove(Plan().with_lever("channels_last", True)).holds


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(VARYING, id="samples"),
        pytest.param(PLAYED, id="played", marks=pytest.mark.slow),
    ],
)
def prove_varying(request, planted, tmp_path_factory, warm):
    """Prove plans for a script of which no two launches agree."""
    folder = tmp_path_factory.mktemp("varying")
    (folder / "train.py").write_text(request.param.format(folder=str(planted)))
    with opened_prover(folder / "none", warm) as warmed, opened_prover(folder / "none") as prover:
        # Other seeds are pinned when torch arrives.
        yield lambda plan: (prover if "draws" in str(plan) else warmed).prove(plan)


@pytest.mark.child
@pytest.mark.parametrize("name", ["planted_rate", "planted_steps", "planted_narrow_and_steps"])
def test_a_wrong_update_is_seen_where_no_two_launches_agree(name, prove_varying) -> None:
    proof = prove_varying(Plan().with_lever(name, True))
    assert not proof.holds, said(proof)


@pytest.mark.child
@pytest.mark.parametrize(
    "name",
    [
        "malloc_retention", "fused_optimizer", "planted_rounding", "planted_narrow",
        pytest.param("planted_draws", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_harmless_lever_is_not_blamed_where_no_two_launches_agree(name, prove_varying) -> None:
    proof = prove_varying(Plan().with_lever(name, True))
    verdict, message = said(proof)
    assert proof.holds, message
    assert verdict["G0 repeatable"] is None
    assert verdict["G3 update"] is True, message


@pytest.fixture(scope="module")
def prove_searching(planted, tmp_path_factory, warm):
    """Prove plans for a script that asks for more losses where one bit differs."""
    folder = tmp_path_factory.mktemp("searching")
    (folder / "train.py").write_text(SEARCHING.format(folder=str(planted)))
    with opened_prover(folder / "none", warm) as prover:
        yield prover.prove


@pytest.mark.child
def test_a_count_that_one_bit_changes_is_not_the_plans_work(prove_searching) -> None:
    proof = prove_searching(Plan().with_lever("planted_rounding", True))
    assert proof.holds, said(proof)
    assert "G3 rounding" in said(proof)[0]


@pytest.mark.child
@pytest.mark.parametrize("name", ["planted_rate", "planted_steps"])
def test_counts_that_one_bit_changes_hide_no_wrong_update(name, prove_searching) -> None:
    proof = prove_searching(Plan().with_lever(name, True))
    assert not proof.holds, said(proof)


@pytest.mark.child
@pytest.mark.parametrize("name", ["malloc_retention", "fused_optimizer"])
def test_gradients_of_single_samples_are_recorded(name, warm, tmp_path) -> None:
    (tmp_path / "train.py").write_text(BY_SAMPLE)
    with opened_prover(tmp_path / "none", warm) as prover:
        proof = prover.prove(Plan().with_lever(name, True))
    verdict, message = said(proof)
    assert proof.holds, message
    assert verdict["G0 repeatable"] is True, message


@pytest.mark.child
def test_gradients_that_are_asked_for_by_keywords_are_recorded(warm, tmp_path) -> None:
    (tmp_path / "train.py").write_text(PENALTY)
    with opened_prover(tmp_path / "none", warm) as prover:
        proof = prover.prove(Plan().with_lever("malloc_retention", True))
    assert proof.holds, said(proof)
    assert len(proof.baseline_losses) > 8


def test_where_the_script_itself_cannot_be_recorded_no_lever_is_blamed(
    planted, monkeypatch
) -> None:
    @contextmanager
    def recorded(workload, plan, take, *, isolation, patience_s, code, **given):
        raised = "Traceback (most recent call last):\nKeyError: 'b'"
        raise ScriptFailed("It ended.", remedy="Look.", output=raised)
        yield

    monkeypatch.setattr(recordings, "recorded", recorded)
    with opened_prover(planted) as prover, pytest.raises(Unprovable, match="KeyError: 'b'"):
        prover.prove(Plan().with_lever("malloc_retention", True))


@pytest.mark.child
def test_an_interrupt_ends_the_runs_that_are_under_way(planted, tmp_path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(300)\n")
    main = threading.main_thread().ident
    timer = threading.Timer(2.0, signal.pthread_kill, [main, signal.SIGINT])
    began_s = time.monotonic()
    with opened_prover(tmp_path / "none") as prover:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            prover.prove(Plan().with_lever("malloc_retention", True))
    assert time.monotonic() - began_s < 30.0
