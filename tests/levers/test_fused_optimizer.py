"""fused_optimizer: torch's own classes, dense weights, and nothing of it in a checkpoint."""

import pytest

from hasten.lever import ScriptContext
from hasten.levers.fused_optimizer import LEVER
from hasten.records import ModelTraits, OptimizerTraits, Traits
from hasten.testing import LAPTOP


def context(device=None, **optimizer):
    traits = Traits(optimizer=OptimizerTraits(**optimizer), model=ModelTraits(device=device))
    return ScriptContext(machine=LAPTOP, traits=traits)


def test_says_which_optimizer_has_no_fused_form() -> None:
    assert LEVER.why_not(context(name="RMSprop")) == "torch has no fused RMSprop"
    assert LEVER.why_not(context(name="Adam", is_fused=True)) == "Adam is fused already"
    assert LEVER.why_not(context()) == "the script updates its weights by hand"
    sparse = context(name="SGD", has_sparse_gradients=True)
    assert LEVER.why_not(sparse) == "torch has no fused SGD for sparse gradients"
    assert LEVER.settings(sparse) == ()


@pytest.mark.parametrize(
    ("dtype", "device", "there"),
    [("bfloat16", "cpu", False), ("float16", "cpu", False), ("bfloat16", "cuda", True),
     ("float64", "cpu", True), ("mixed", "cpu", True)],
)  # fmt: skip
def test_fewer_bits_on_a_cpu_are_left_to_the_loop(dtype, device, there) -> None:
    traits = Traits(
        optimizer=OptimizerTraits(name="SGD"), model=ModelTraits(device=device, dtype=dtype)
    )
    here = ScriptContext(machine=LAPTOP, traits=traits)
    assert bool(LEVER.settings(here)) is there


def test_proposes_itself_for_classes_that_have_one() -> None:
    assert LEVER.settings(context(name="AdamW", is_fused=False)) == (True,)
    assert LEVER.settings(context(name="AdamW", is_fused=True)) == ()
    assert LEVER.settings(context(name="RMSprop", is_fused=False)) == ()


def test_knows_which_fused_form_is_for_the_cpu_alone() -> None:
    on_gpu = context("cuda", name="Adagrad")
    assert LEVER.settings(on_gpu) == ()
    assert LEVER.why_not(on_gpu) == "torch has no fused Adagrad for cuda"
    assert LEVER.settings(context("cpu", name="Adagrad"))


PROGRAM = r"""
import copy, io, pickle

PLAN = {"fused_optimizer": True}
OPTIM = torch.optim


def own(optimizer):
    return flags(optimizer.param_groups)


def trained(make, count=3):
    run = Run(make)
    run.applied.switch(PLAN)
    run.train(count=count)
    return run


for name in ("SGD", "Adam", "AdamW", "Adagrad"):
    run = trained(lambda p: getattr(OPTIM, name)(p, lr=0.01))
    facts[name] = under(run.optimizer)
    run.close()
    facts[f"{name} back"] = own(run.optimizer)


class Adam(OPTIM.Adam):
    def step(self, closure=None):
        return super().step(closure)


facts["left"] = {
    "a class of the script's own": under(trained(lambda p: Adam(p)).close().optimizer),
}
for name in ("RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Rprop"):
    facts["left"][name] = under(trained(lambda p: getattr(OPTIM, name)(p)).close().optimizer)
run = trained(lambda p: OPTIM.SGD(p, 0.1, fused=True))
facts["own fused"] = under(run.close().optimizer)

# ---- what the kernel does not take, from the start and later

watch = Watch(measuring=True)
applied = AppliedLevers(watch.live)
watch.install()
applied.switch(PLAN)


def late(layer, x, make, count=5):
    weight = layer.weight
    plain = nn.Parameter(torch.ones(4))
    optimizer = make([plain, weight])
    seen = []
    for step in range(count):
        optimizer.zero_grad()
        loss = (plain * plain).sum()
        if step >= 2:
            loss = loss + layer(x).abs().sum()
        loss.backward()
        optimizer.step()
        seen.append(under(optimizer)[0][0])
    return seen


index = torch.tensor([1, 2])
facts["sparse later"] = late(
    nn.Embedding(10, 4, sparse=True), index, lambda p: OPTIM.SGD(p, 0.1))
facts["momentum later"] = late(
    nn.Linear(4, 4), torch.ones(4), lambda p: OPTIM.SGD(p, 0.1, momentum=0.9, dampening=0.5))
table = nn.Embedding(10, 4, sparse=True)
optimizer = OPTIM.SGD(table.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    table(index).sum().backward()
    optimizer.step()
facts["left"]["sparse gradients"] = under(optimizer)
turning = nn.Parameter(torch.ones(3, dtype=torch.complex64))
optimizer = OPTIM.Adam([turning])
for _ in range(3):
    optimizer.zero_grad()
    turning.abs().sum().backward()
    optimizer.step()
facts["left"]["complex numbers"] = under(optimizer)
few = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
optimizer = OPTIM.SGD([few], 0.1)
for _ in range(3):
    optimizer.zero_grad()
    few.abs().sum().backward()
    optimizer.step()
facts["left"]["few bits"] = under(optimizer)

wide = torch.randn(6, 4)
columns = [nn.Parameter(column) for column in wide.split(2, dim=1)]
optimizer = OPTIM.SGD(columns[:1], 0.1)
for _ in range(4):
    bucket = torch.zeros(6, 4)
    columns[0].grad = bucket[:, :2].fill_(1.0)
    optimizer.step()
facts["left"]["columns of something larger"] = under(optimizer)

weight = nn.Parameter(torch.ones(3))
optimizer, facts["versions"] = OPTIM.SGD([weight], 0.1), []
for _ in range(4):
    weight.grad = torch.ones(3)
    before = weight._version
    optimizer.step()
    facts["versions"].append(weight._version > before)

image = nn.Parameter(torch.randn(2, 3, 4, 4))
optimizer = OPTIM.Adam([image])
for step in range(4):
    optimizer.zero_grad()
    image.square().sum().backward()
    if step == 1:  # as after loading a checkpoint of another layout
        moment = optimizer.state[image]["exp_avg"]
        moment.data = moment.data.contiguous(memory_format=torch.channels_last)
    optimizer.step()
facts["left"]["moments of another layout"] = under(optimizer)


def closed(make):
    torch.manual_seed(1)
    layer = nn.Linear(4, 2)
    optimizer = make(layer.parameters())
    def closure():
        optimizer.zero_grad()
        loss = layer(torch.ones(3, 4)).square().sum()
        loss.backward()
        return loss
    losses = [float(optimizer.step(closure)) for _ in range(4)]
    return optimizer, losses


optimizer, losses = closed(lambda p: OPTIM.SGD(p, 0.01, momentum=0.9))
facts["closure"] = under(optimizer)
applied.switch({})
other = closed(lambda p: OPTIM.SGD(p, 0.01, momentum=0.9))[1]
facts["closure near"] = torch.allclose(torch.tensor(losses), torch.tensor(other), rtol=1e-4)
watch.detach()

# ---- options, and checkpoints in several orders

def stepped(plan, options):
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(size)) for size in ((40, 3), (7,), ())]
    optimizer = OPTIM.AdamW(weights, **{"lr": 0.01, **options})
    watch = Watch(measuring=False)
    applied = AppliedLevers(watch.live)
    watch.install()
    applied.switch(plan)
    for _ in range(6):
        for p in weights:
            p.grad = torch.randn_like(p)
        optimizer.step()
    stepped = under(optimizer)
    applied.switch({})
    watch.detach()
    return weights, stepped, own(optimizer)


facts["options"] = []
for options in ({"amsgrad": True}, {"maximize": True}, {"foreach": True}, {"weight_decay": 0.1},
                {"lr": torch.tensor(0.01)}):
    (plain, _, before), (weights, now, back) = stepped({}, options), stepped(PLAN, options)
    near = all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(plain, weights))
    facts["options"].append([str(options), now == [[True, False]], near, back == before])

run = trained(lambda p: OPTIM.Adam(p, foreach=True))
saved = run.optimizer.state_dict()
facts["saved"] = flags(saved["param_groups"])
file = io.BytesIO()
torch.save(run.optimizer, file)
file.seek(0)
copies = {
    "pickled": pickle.loads(pickle.dumps(run.optimizer)),
    "saved whole": torch.load(file, weights_only=False),
    "copied": copy.deepcopy(run.optimizer),
}
facts["copies"] = {name: own(copied) for name, copied in copies.items()}
facts["after copies"] = under(run.train(count=1).optimizer)
other = OPTIM.Adam(run.net.parameters(), foreach=False)
run.optimizer.load_state_dict(other.state_dict())
run.train(count=2)
facts["loaded"] = under(run.optimizer)
run.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
run.train(count=2)
facts["added"] = under(run.optimizer)
run.close()
facts["loaded, back"] = own(run.optimizer)

fresh = Run(lambda p: OPTIM.Adam(p))
fresh.applied.switch(PLAN)
fresh.optimizer.load_state_dict(saved)
fresh.train(count=3)
facts["loaded before the first step"] = under(fresh.optimizer)
fresh.close()
facts["loaded before the first step, back"] = own(fresh.optimizer)

facts["asked not to"] = under(trained(lambda p: OPTIM.Adam(p, fused=False)).close().optimizer)
theirs = Run(lambda p: OPTIM.Adam(p, fused=True)).train(count=2).close()
fresh = trained(lambda p: OPTIM.Adam(p))
fresh.optimizer.load_state_dict(theirs.optimizer.state_dict())
fresh.train(count=2)
facts["their fused"] = under(fresh.optimizer)
fresh.close()
facts["their fused, back"] = own(fresh.optimizer)

# ---- a script that counts its steps in float64

torch.set_default_dtype(torch.float64)


def step_types(states):
    return sorted({str(s["step"].dtype) for s in states.values()})


run = trained(lambda p: OPTIM.Adam(p))
facts["double"] = {
    "under": step_types(run.optimizer.state),
    "saved": step_types(run.optimizer.state_dict()["state"]),
    "copied": step_types(copy.deepcopy(run.optimizer).state),
}
run.close()
facts["double"]["back"] = step_types(run.optimizer.state)
run.train(count=2)
facts["double"]["counted"] = sorted({float(s["step"]) for s in run.optimizer.state.values()})
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
def test_leaves_alone_what_the_kernel_does_not_take(fused) -> None:
    assert len(fused["left"]) == 13
    for kind, flags in fused["left"].items():
        assert not flags[0][0], kind
    assert fused["own fused"][0][0] is True


@pytest.mark.child
def test_an_update_counts_as_a_write_to_the_weights(fused) -> None:
    assert fused["versions"] == [True] * 4


@pytest.mark.child
def test_gives_up_where_sparse_gradients_come_later(fused) -> None:
    assert fused["sparse later"] == [None, True, None, None, None]


@pytest.mark.child
def test_a_first_update_is_the_scripts_own_so_that_later_momenta_can_come(fused) -> None:
    assert fused["momentum later"] == [None, True, None, True, True]


@pytest.mark.child
def test_steps_with_a_closure_are_fused_from_the_second_one_on(fused) -> None:
    assert fused["closure"] == [[True, False]]
    assert fused["closure near"]


@pytest.mark.child
def test_every_option_of_the_script_stays_in_force(fused) -> None:
    for options, is_fused, near, back in fused["options"]:
        assert is_fused, options
        assert near, options
        assert back, options


@pytest.mark.child
def test_checkpoints_pickles_and_copies_say_what_the_script_said(fused) -> None:
    assert fused["saved"] == [[None, True]]
    assert fused["copies"] == {
        name: [[None, True]] for name in ("pickled", "saved whole", "copied")
    }
    assert fused["after copies"] == [[True, False]]


@pytest.mark.child
def test_a_script_that_asks_for_no_fused_form_keeps_what_it_asks_for(fused) -> None:
    assert [asked for asked, _ in fused["asked not to"]] == [False]


@pytest.mark.child
def test_survives_a_loaded_checkpoint_and_gives_its_flags_back(fused) -> None:
    assert fused["loaded"] == [[True, False]]
    assert fused["added"] == [[True, False], [True, False]]
    assert fused["loaded, back"] == [[None, False], [None, True]]  # the last one by default
    assert fused["loaded before the first step"] == [[True, False]]
    assert fused["loaded before the first step, back"] == [[None, True]]


@pytest.mark.child
def test_a_checkpoint_of_a_fused_optimizer_stays_fused(fused) -> None:
    assert fused["their fused"] == [[True, None]]
    assert fused["their fused, back"] == [[True, None]]


@pytest.mark.child
def test_a_double_precision_script_counts_its_steps_as_before(fused) -> None:
    assert fused["double"] == {
        "under": ["torch.float32"], "saved": ["torch.float64"], "copied": ["torch.float64"],
        "back": ["torch.float64"], "counted": [5.0],
    }  # fmt: skip
