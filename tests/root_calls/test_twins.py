"""Compiled twins: the same numbers, the same objects, and plain torch wherever it is not sure."""

import pytest

torch = pytest.importorskip("torch")

from hasten.root_calls.graph import explained  # noqa: E402

PROGRAM = r"""
import copy, functools, gc, io, json, time, weakref
import torch
from torch import nn
from hasten.instrument import Watch
from hasten.child import LeverOmissions
from hasten.root_calls.twins import Twins

facts = {}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.last, self.scale, self.count = nn.Linear(8, 3), 1, 0

    def forward(self, x):
        h = self.drop(self.norm(self.first(x)).relu()) * self.scale
        self.seen = h.detach()
        return self.last(h)


class Counter:
    def __init__(self):
        self.built = self.ran = 0

    def __call__(self, graph, inputs):
        self.built += 1

        def run(*inputs):
            self.ran += 1
            return graph.forward(*inputs)

        return run


class Loop:
    def __init__(self, compiler=None, make=Net, patience=2, at_once=False):
        torch.manual_seed(0)
        self.compiler, self.errors = compiler or Counter(), []
        self.watch = Watch(measuring=False)
        self.watch.live.at_once = at_once
        training = LeverOmissions(self.watch.live, lambda error: self.errors.append(str(error)))
        self.net = make()
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.batches = torch.Generator().manual_seed(1)
        self.undo = lambda: None
        if compiler is not False:
            self.undo = Twins(training, self.compiler, patience_count=patience).attach()
        self.watch.install()

    def step(self, size=4):
        self.optimizer.zero_grad()
        self.net(torch.randn(size, 6, generator=self.batches)).square().mean().backward()
        self.optimizer.step()

    def train(self, sizes, at=lambda index: None):
        for index, size in enumerate(sizes):
            at(index)
            self.step(size)
        return self

    def close(self):
        self.undo()
        self.watch.detach()
        return self

    def bits(self):
        states = [t.tolist() for t in self.net.state_dict().values()]
        return [states, torch.get_rng_state().sum().item(), torch.rand(2).tolist()]


def both(sizes, compiler=None, at=lambda loop, index: None, **settings):
    found = []
    for chosen in (False, compiler):
        loop = Loop(chosen, **settings)
        loop.train(sizes, lambda index: at(loop, index))
        found.append(loop.bits())
        loop.close()
    return loop, found[0] == found[1]


loop, same = both([4] * 8)
facts["plain"] = [same, loop.compiler.built, loop.compiler.ran, len(loop.errors)]
facts["seconds"] = loop.watch.live.compile_s > 0

from hasten.root_calls import twins
looks, look = [], twins.other_generators
twins.other_generators = lambda module: looks.append(1) or look(module)
both([4] * 30)
facts["looks"] = len(looks)
twins.other_generators = look
loop, same = both([4, 4, 4, 4, 2] * 4)
facts["odd"] = [same, loop.compiler.built, loop.compiler.ran]
loop, same = both([*range(3, 20)], patience=4)
facts["changing"] = [same, loop.compiler.built, loop.compiler.ran > 8]
class Sized(Net):
    def forward(self, x):
        return super().forward(x.view(x.shape[0], 2, 3).reshape(x.shape[0], -1)) / x.shape[0]


loop, same = both([*range(3, 20)], patience=4, make=Sized)
facts["sizes"] = [same, loop.compiler.built, loop.errors]
loop, same = both([4, 5] * 6)
facts["two"] = [same, loop.compiler.built, loop.compiler.ran]
loop, same = both([4] * 3, at_once=True)
facts["at once"] = [same, loop.compiler.ran]


def refuses(graph, inputs):
    torch.rand(3)
    raise ValueError("no such instruction")


loop, same = both([4] * 12, refuses)
facts["refuses"] = [same, loop.errors]


class Listing(Net):
    def parameters(self):
        return [*self.last.parameters()]


loop, same = both([4] * 12, make=Listing)
facts["listing"] = [same, loop.compiler.built, loop.errors]


class Halfway(Counter):
    def __call__(self, graph, inputs):
        def run(*inputs):
            graph.forward(*inputs)
            raise MemoryError("halfway")

        return run


loop, same = both([4] * 12, Halfway())
facts["halfway"] = [same, loop.errors]


class Breaking(Net):
    def forward(self, x):
        h = super().forward(x)
        return h * 2 if h.sum().item() > 0 else h


loop, same = both([4] * 12, make=Breaking)
facts["breaking"] = [same, loop.compiler.built, len(loop.errors)]


class Counting(Net):
    def forward(self, x):
        self.count += 1
        return super().forward(x) / self.count


loop, same = both([4] * 40, make=Counting)
facts["counting"] = [same, loop.compiler.built <= 5, loop.errors]


def rescale(loop, index):
    if index == 5:
        loop.net.scale = 2


loop, same = both([4] * 14, at=rescale)
facts["rescaled"] = [same, loop.compiler.built]
loop, same = both([4] * 12, make=lambda: nn.Sequential(Net(), nn.Tanh()))
facts["sequential"] = [same, loop.compiler.built, loop.compiler.ran]
loop, same = both([4] * 12, make=lambda: nn.Sequential(nn.LazyLinear(6), Net()), at_once=True)
facts["lazy"] = [same, loop.compiler.ran > 5]
loop, same = both([4] * 12, make=lambda: nn.utils.spectral_norm(nn.Linear(6, 3)))
facts["hooks"] = [same, loop.compiler.built, loop.errors]



def noisy():
    net = nn.Linear(6, 3)
    net.weight.register_hook(lambda gradient: gradient * 2)
    return net


loop, same = both([4] * 12, make=noisy)
facts["weight hooks"] = [same, loop.compiler.built, loop.errors]
loop, same = both([4] * 12, make=lambda: torch.compile(nn.Linear(6, 3), backend="eager"))
facts["own"] = [same, loop.compiler.built, loop.errors]


loop = Loop()
keys = list(loop.net.state_dict())
attributes = {name: sorted(vars(part)) for name, part in loop.net.named_modules()}
tensors = {name: sorted(vars(t)) for name, t in loop.net.named_parameters()}
loop.train([4] * 6)
attributes[""] = sorted([*attributes[""], "seen"])
facts["state"] = [
    list(loop.net.state_dict()) == keys,
    attributes == {name: sorted(vars(part)) for name, part in loop.net.named_modules()},
    tensors == {name: sorted(vars(t)) for name, t in loop.net.named_parameters()},
    type(loop.net) is Net and repr(loop.net) == repr(Net()),
]
net, ran = loop.net, loop.compiler.ran
saved = io.BytesIO()
torch.save(net, saved)
loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=False)
x = torch.randn(4, 6)
facts["copies"] = [
    torch.equal(other.eval()(x), net.eval()(x)) for other in (loaded, copy.deepcopy(net))]
with torch.no_grad():
    net.train()(x)
facts["evaluated"] = loop.compiler.ran == ran
net.train()
grads = torch.autograd.grad(net(x.clone().requires_grad_()).sum(), list(net.parameters()),
                            create_graph=True)
facts["gradient of an input"] = loop.compiler.ran == ran
torch.set_num_threads(torch.get_num_threads() + 1)
built = loop.compiler.built
loop.train([4] * 8)
torch.set_num_threads(torch.get_num_threads() - 1)
loop.train([4] * 2)
facts["threads"] = loop.compiler.built - built
fired, ran = [], loop.compiler.ran
handle = net.first.register_forward_hook(lambda *_: fired.append(1))
loop.train([4] * 2)
facts["late hook"] = [len(fired), loop.compiler.ran - ran]
loop.close()

loop = Loop().train([4] * 6)
ran = loop.compiler.ran
loop.close().train([4] * 2)
facts["undone"] = loop.compiler.ran == ran
gone = weakref.ref(loop.net)
del loop
gc.collect()
loop = Loop().train([4] * 6)
gone = [gone, weakref.ref(loop.net)]
loop.net = loop.optimizer = None
gc.collect()
facts["gone"] = [ref() is None for ref in gone]
loop.close()


def game(compiler, freezes=False):
    loop = Loop(compiler)
    maker, judge = nn.Linear(6, 6), Net()
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (maker, judge)]
    for _ in range(12):
        noise = torch.randn(4, 6, generator=loop.batches)
        optimizers[1].zero_grad()
        (judge(maker(noise).detach()) - judge(noise)).mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        judge.requires_grad_(not freezes)
        judge(maker(noise)).mean().backward()
        optimizers[0].step()
        judge.requires_grad_(True)
    loop.net = nn.ModuleList([maker, judge])
    bits = loop.bits()
    loop.close()
    return loop, bits


loop, bits = game(Counter())
facts["game"] = [bits == game(False)[1], loop.compiler.built, loop.errors]
loop, bits = game(Counter(), freezes=True)
facts["frozen game"] = [
    bits == game(False, True)[1], loop.compiler.built, loop.compiler.ran, loop.errors]


class Twice(Loop):
    def step(self, size=4):
        loss = self.net(torch.randn(size, 6, generator=self.batches)).square().mean()
        gradients = torch.autograd.grad(loss, list(self.net.parameters()), create_graph=True)
        self.optimizer.zero_grad()
        (loss + sum(g.square().sum() for g in gradients)).backward()
        self.optimizer.step()


loop = Twice().train([4] * 12)
facts["twice"] = [loop.compiler.built, loop.errors]
loop.close()
from torch.utils.flop_counter import FlopCounterMode
loop = Loop().train([4] * 6)
ran = loop.compiler.ran
with FlopCounterMode(display=False):
    loop.step()
facts["watched"] = loop.compiler.ran == ran
loop.close()


def draws(graph, inputs):
    from torch._dynamo import lookup_backend

    return lookup_backend("aot_eager")(graph, inputs)


loop, same = both([4] * 6, draws)
facts["autograd"] = same

class Block(nn.Module):
    def __init__(self, width, height):
        super().__init__()
        self.linear = nn.Linear(width, height)

    def forward(self, x):
        return self.linear(x).tanh()


def two_blocks():
    return nn.Sequential(Block(6, 8), Block(8, 3))


def thaw(loop, index):
    frozen = list(loop.net[0].parameters())
    if index == 0:
        loop.optimizer = torch.optim.SGD(loop.net[1].parameters(), 0.1)
    if index in (0, 9):
        for weight in frozen:
            weight.requires_grad_(index > 0)
    if index == 9:
        loop.optimizer.add_param_group({"params": frozen})
    if index == 18:
        with torch.no_grad():
            weight = loop.net[0].linear.weight
            weight.data = weight.t().contiguous().t()


def autograd(graph, inputs):
    from torch._dynamo import lookup_backend

    return lookup_backend("aot_eager")(graph, inputs)


loop, same = both([4] * 27, autograd, thaw, make=two_blocks)
facts["thawed"] = [same, loop.net[0].linear.weight.grad is not None, loop.errors]
loop, same = both([4] * 27, at=thaw, make=two_blocks)
facts["thawed graphs"] = [same, loop.compiler.built, loop.compiler.ran]


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.one, self.other = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        h = self.body(x).tanh()
        return {"features": h, "heads": (self.one(h), self.other(h))}


class Heads(Loop):
    use = staticmethod(lambda out, index: out["heads"][0])

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1, weight_decay=0.1)
        self.index = 0

    def step(self, size=4):
        self.optimizer.zero_grad()
        out = self.net(torch.randn(size, 6, generator=self.batches))
        self.use(out, self.index).square().mean().backward()
        self.optimizer.step()
        self.index += 1


class Sum(Heads):
    use = staticmethod(lambda out, index: sum(out["heads"]))


class Later(Heads):
    use = staticmethod(lambda out, index: sum(out["heads"]) if index < 8 else out["heads"][0])


class InTurns(Sum):
    def step(self, size=4):
        self.optimizer.zero_grad()
        out = self.net(torch.randn(size, 6, generator=self.batches))
        out["heads"][0].square().mean().backward(retain_graph=True)
        out["heads"][1].square().mean().backward()
        self.optimizer.step()


Plain = Loop
for Loop in (Heads, Sum, Later, InTurns):
    loop, same = both([4] * 16, autograd if Loop is not Sum else Counter(), make=Split)
    facts[Loop.__name__] = [same, len(loop.errors), getattr(loop.compiler, "ran", 0)]
Loop = Plain


class NumPys(Net):
    def forward(self, x):
        import numpy

        return super().forward(x) * torch.from_numpy(numpy.random.rand(3).astype("float32"))


class Usual(Net):  # it names a clock where no call goes, as classes of libraries do
    def forward(self, x):
        return super().forward(x) if self.training else self.timed(x)

    def timed(self, x):
        return time.perf_counter(), super().forward(x)


@functools.lru_cache
def power():
    return 2


class Remembers(Net):
    def forward(self, x):
        return super().forward(x) * self.power

    @property
    def power(self):
        return power()


loop, same = both([4] * 12, make=Usual)
facts["unused clock"] = [same, loop.compiler.built, loop.errors]
loop, same = both([4] * 12, make=Remembers)
facts["cache"] = [same, loop.compiler.built, loop.errors]
loop, _ = both([4] * 12, make=NumPys)
facts["numpy"] = [loop.compiler.built, len(loop.errors)]
"""


@pytest.fixture(scope="module")
def twins(gathered):
    return gathered(PROGRAM)


pytestmark = pytest.mark.child


@pytest.mark.slow
def test_a_kind_of_call_that_comes_often_is_compiled_once_after_some_calls(twins) -> None:
    assert twins["plain"] == [True, 1, 6, 0]
    assert twins["seconds"]
    assert twins["looks"] == 1  # hooks of ours are no reason to look again


def test_the_smaller_last_batch_of_a_pass_runs_as_plain_torch(twins) -> None:
    assert twins["odd"] == [True, 1, 14]


def test_shapes_that_change_all_the_time_share_one_graph(twins) -> None:
    same, built_count, often = twins["changing"]
    assert same
    assert built_count == 1
    assert often


def test_sizes_that_a_model_asks_for_are_nothing_that_it_keeps(twins) -> None:
    assert twins["sizes"] == [True, 1, []]


def test_a_few_shapes_have_a_graph_each(twins) -> None:
    assert twins["two"] == [True, 2, 10]


def test_compiles_the_first_step_where_that_is_recorded(twins) -> None:
    assert twins["at once"] == [True, 3]


@pytest.mark.parametrize("kind", ["refuses", "halfway"])
def test_a_compiler_that_fails_leaves_numbers_buffers_and_draws_alone(kind, twins) -> None:
    same, errors = twins[kind]
    assert same
    assert len(errors) == 1


def test_a_model_with_parameters_of_its_own_is_compiled(twins) -> None:
    assert twins["listing"] == [True, 1, []]


def test_a_model_that_is_not_one_graph_stays_as_it_is_and_says_why(twins) -> None:
    assert twins["breaking"] == [True, 0, 1]


def test_a_model_that_changes_with_each_call_is_not_compiled_for_ever(twins) -> None:
    same, few, errors = twins["counting"]
    assert same
    assert few
    assert errors == ["the model changes between its calls in what its code depends on"]


def test_a_model_that_changed_once_is_compiled_anew(twins) -> None:
    assert twins["rescaled"] == [True, 2]


def test_containers_and_lazy_modules_are_compiled_as_one(twins) -> None:
    assert twins["sequential"] == [True, 1, 10]
    assert twins["lazy"] == [True, True]


def test_hooks_and_what_the_script_compiled_are_left_alone(twins) -> None:
    assert twins["hooks"] == [True, 0, ["Linear has hooks"]]
    assert twins["weight hooks"] == [True, 0, ["its weights have hooks"]]
    same, built_count, errors = twins["own"]
    assert same
    assert built_count == 0
    assert len(errors) == 1
    assert twins["late hook"] == [2, 0]


def test_keys_attributes_classes_and_copies_are_those_of_the_script(twins) -> None:
    assert twins["state"] == [True] * 4
    assert twins["copies"] == [True, True]


def test_evaluation_and_counters_of_operations_see_plain_torch(twins) -> None:
    assert twins["evaluated"]
    assert twins["watched"]


def test_gradients_of_gradients_run_as_plain_torch(twins) -> None:
    assert twins["gradient of an input"]
    built_count, errors = twins["twice"]
    assert built_count == 0
    assert "gradients of gradients" in errors[0]


def test_each_number_of_threads_has_a_graph_of_its_own(twins) -> None:
    assert twins["threads"] == 1


def test_undone_it_is_plain_torch_again_and_keeps_no_module_alive(twins) -> None:
    assert twins["undone"]
    assert twins["gone"] == [True, True]


def test_two_models_that_train_one_another_are_both_compiled(twins) -> None:
    same, built_count, errors = twins["game"]
    assert same
    assert built_count == 3  # the judge also sees what asks for a gradient
    assert errors == []


def test_a_judge_that_is_frozen_for_a_while_is_compiled_where_it_trains(twins) -> None:
    same, built_count, ran_count, errors = twins["frozen game"]
    assert same
    assert built_count == 2
    assert ran_count == 44  # all but two calls of each, and those of the frozen judge
    assert errors == []


def test_layers_that_train_later_or_lie_otherwise_later_have_gradients_as_ever(twins) -> None:
    assert twins["thawed"] == [True, True, []]
    same, built_count, ran_count = twins["thawed graphs"]
    assert same
    assert built_count == 3
    assert ran_count > 15


def test_weights_behind_outputs_that_nobody_trains_have_no_gradient(twins) -> None:
    assert twins["Heads"][:2] == [True, 1]
    assert twins["Later"][1] == 1


def test_outputs_without_weights_of_their_own_need_no_gradient(twins) -> None:
    same, error_count, ran_count = twins["Sum"]
    assert same
    assert error_count == 0
    assert ran_count == 14


def test_losses_of_two_outputs_may_have_a_backward_pass_each(twins) -> None:
    assert twins["InTurns"][:2] == [True, 0]


@pytest.mark.skipif(
    not hasattr(torch._guards.TracingContext, "get_traced_code"), reason="this torch keeps no list"
)
def test_a_clock_that_no_call_asks_does_not_keep_a_model_from_being_compiled(twins) -> None:
    assert twins["unused clock"] == [True, 1, []]


def test_a_cache_that_a_call_asks_does(twins) -> None:
    same, built_count, errors = twins["cache"]
    assert (same, built_count) == (True, 0)
    assert errors[0].endswith("power names power")


def test_what_torchs_compiler_explains_below_its_first_line_is_told() -> None:
    told = ValueError(
        "Call of a skipped function\n  Explanation: It cannot trace time. It\n  Hint: x"
    )
    assert str(explained(told)) == "Call of a skipped function: It cannot trace time"
    other = ValueError("no such instruction\nin line 3")
    assert explained(other) is other


def test_a_model_that_draws_from_numpy_stays_as_it_is(twins) -> None:
    assert twins["numpy"] == [0, 1]


def test_draws_are_the_same_through_torchs_own_autograd_compiler(twins) -> None:
    assert twins["autograd"]
