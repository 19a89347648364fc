"""fused_optimizer: torch's own classes, dense weights, and nothing of it in a checkpoint."""

import pytest

from upshift.lever import Scene
from upshift.levers.fused_optimizer import LEVER
from upshift.testing import LAPTOP


def scene(**traits):
    return Scene(machine=LAPTOP, traits={f"optimizer.{k}": v for k, v in traits.items()})


def test_says_which_optimizer_has_no_fused_form() -> None:
    assert LEVER.why_not(scene(name="RMSprop")) == "torch has no fused RMSprop"
    assert LEVER.why_not(scene(name="Adam", fused=True)) == "Adam is fused already"
    assert LEVER.why_not(scene()) == "the script updates its weights by hand"


def test_proposes_itself_for_classes_that_have_one() -> None:
    assert LEVER.settings(scene(name="AdamW", fused=False)) == (True,)
    assert LEVER.settings(scene(name="AdamW", fused=True)) == ()
    assert LEVER.settings(scene(name="RMSprop", fused=False)) == ()


PROGRAM = r"""
PLAN = {"fused_optimizer": True}


def flags(optimizer):
    return [[group.get("fused"), group.get("foreach")] for group in optimizer.param_groups]


def trained(make):
    run = Run(make)
    run.pulled.switch(PLAN)
    run.train(count=3)
    return run


for name in ("SGD", "Adam", "AdamW", "Adagrad"):
    run = trained(lambda p: getattr(torch.optim, name)(p, lr=0.01))
    facts[name] = flags(run.optimizer)
    run.close()
    facts[f"{name} back"] = flags(run.optimizer)


class Adam(torch.optim.Adam):
    def step(self, closure=None):
        return super().step(closure)


facts["namesake"] = flags(trained(lambda p: Adam(p)).close().optimizer)
run = trained(lambda p: torch.optim.RMSprop(p))
facts["unknown"] = flags(run.close().optimizer)
run = trained(lambda p: torch.optim.SGD(p, 0.1, fused=True))
facts["own fused"] = flags(run.close().optimizer)

watch = Watch(measuring=True)
pulled = Pulled(watch.live)
watch.install()
pulled.switch(PLAN)
table = nn.Embedding(10, 4, sparse=True)
optimizer = torch.optim.SGD(table.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
facts["sparse"] = flags(optimizer)
pulled.switch({})
watch._detach()

run = trained(lambda p: torch.optim.Adam(p, foreach=True))
saved = run.optimizer.state_dict()
facts["saved"] = [[g["fused"], g["foreach"]] for g in saved["param_groups"]]
other = torch.optim.Adam(run.net.parameters(), foreach=False)
run.optimizer.load_state_dict(other.state_dict())
facts["loaded"] = flags(run.optimizer)
run.train(count=2)
run.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
run.close()
facts["loaded, back"] = flags(run.optimizer)

torch.set_default_dtype(torch.float64)
run = trained(lambda p: torch.optim.Adam(p))
run.close()
facts["double"] = sorted({str(s["step"].dtype) for s in run.optimizer.state.values()})
run.train(count=2)
"""


@pytest.fixture(scope="module")
def fused(training):
    return training(PROGRAM)


@pytest.mark.child
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_fuses_and_gives_the_flags_back(name, fused) -> None:
    assert fused[name] == [[True, False]]
    assert fused[f"{name} back"] == [[None, None]]


@pytest.mark.child
@pytest.mark.parametrize("kind", ["namesake", "sparse"])
def test_leaves_alone_what_the_kernel_does_not_take(kind, fused) -> None:
    assert fused[kind] == [[None, None]]


@pytest.mark.child
def test_leaves_other_classes_and_fused_ones_alone(fused) -> None:
    assert fused["unknown"] == [[None, None]]
    assert fused["own fused"][0][0] is True


@pytest.mark.child
def test_a_checkpoint_says_what_the_script_said(fused) -> None:
    assert fused["saved"] == [[None, True]]


@pytest.mark.child
def test_survives_a_loaded_checkpoint_and_gives_its_flags_back(fused) -> None:
    assert fused["loaded"] == [[True, False]]
    assert fused["loaded, back"] == [[None, False], [None, True]]  # the last one by default


@pytest.mark.child
def test_a_double_precision_script_goes_on_before_and_after(fused) -> None:
    assert fused["double"]
