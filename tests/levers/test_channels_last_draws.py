"""channels_last: what is drawn into or like a tensor of this layout is what it would be without."""

import pytest

NOISY = """
import torch
from torch import nn

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        h = self.conv(x)
        noise = torch.empty_like(h).normal_(0.0, 0.1)
        return h + torch.rand_like(h) + torch.bernoulli(noise.abs().clamp(0, 1))
"""

PROGRAM = r"""
import sys, tempfile
from torch.nn.utils import prune

NHWC = torch.channels_last
functional = nn.functional
watch = Watch(measuring=False)
pulled = Pulled(watch.live)
watch.install()


def last(t):
    return t.is_contiguous(memory_format=NHWC) and not t.is_contiguous()


def generated(x):
    return x.normal_(generator=torch.Generator().manual_seed(3))


def learned(x):
    x.requires_grad_()
    out = functional.alpha_dropout(2 * x, 0.4, training=True)
    out.square().sum().backward()
    return torch.stack([out.detach(), x.grad])


def randomly_pruned(x):
    layer = nn.Conv2d(3, 2, 8)
    layer.weight = nn.Parameter(x)
    prune.random_unstructured(layer, "weight", 0.5)
    return layer.weight_mask


DRAWS = {
    "normal_": lambda x: x.normal_(1.0, 0.5),
    "uniform_": lambda x: x.uniform_(-1, 1),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda x: torch.empty_like(x).bernoulli_(x),
    "exponential_": lambda x: x.exponential_(2.0),
    "cauchy_": lambda x: x.cauchy_(),
    "geometric_": lambda x: x.geometric_(0.5),
    "log_normal_": lambda x: x.log_normal_(),
    "random_": lambda x: x.random_(0, 9),
    "generator": generated,
    "through a state_dict": lambda x: x.data.normal_(),
    "kaiming": nn.init.kaiming_normal_,
    "trunc": nn.init.trunc_normal_,
    "orthogonal": nn.init.orthogonal_,
    "randn_like": lambda x: torch.randn_like(x),
    "rand_like": lambda x: torch.rand_like(x, dtype=torch.float64),
    "randint_like": lambda x: torch.randint_like(x, 0, 9),
    "into this layout": lambda x: torch.randn_like(x, memory_format=torch.contiguous_format),
    "bernoulli": lambda x: torch.bernoulli(x),
    "bernoulli of p": lambda x: torch.bernoulli(x, 0.5),
    "x.bernoulli": lambda x: x.bernoulli(),
    "normal": lambda x: torch.normal(x, 0.1),
    "normal of both": lambda x: torch.normal(mean=x, std=x),
    "poisson": lambda x: torch.poisson(9 * x),
    "dropout": lambda x: functional.dropout(x, 0.4),
    "dropout by name": lambda x: functional.dropout(input=x, p=0.4, training=True),
    "dropout in place": lambda x: (functional.dropout(x, 0.4, True, True), x)[1],
    "alpha": lambda x: functional.alpha_dropout(x, 0.4, True),
    "alpha in place": lambda x: (functional.alpha_dropout(x, 0.4, True, inplace=True), x)[1],
    "alpha, learned": learned,
    "feature alpha": lambda x: functional.feature_alpha_dropout(x, 0.4, True),
    "dropout2d": lambda x: functional.dropout2d(x, 0.4),
    "rrelu": lambda x: functional.rrelu(x - 0.5, training=True),
    "gumbel": lambda x: functional.gumbel_softmax(x, dim=1),
    "pruned": randomly_pruned,
    "evaluated": lambda x: functional.dropout(functional.alpha_dropout(x, 0.4), 0.4, False),
}


def drawn(draw, layout):
    torch.manual_seed(5)
    x = torch.rand(2, 3, 8, 8).contiguous(memory_format=layout)
    before = last(x)
    torch.manual_seed(7)
    made = draw(x).detach()
    return made.clone(memory_format=torch.contiguous_format), torch.get_rng_state(), before


pulled.switch({"channels_last": True})
facts["equal"], facts["drawn from"] = {}, {}
for name, draw in DRAWS.items():
    (own, state, _), (other, other_state, before) = (
        drawn(draw, layout) for layout in (torch.contiguous_format, NHWC))
    facts["equal"][name] = bool(torch.equal(own, other)) and bool(torch.equal(state, other_state))
    facts["drawn from"][name] = before

x = torch.rand(2, 3, 8, 8).contiguous(memory_format=NHWC)
facts["layout"] = [last(t) for t in (
    torch.randn_like(x), x.clone().normal_(), functional.dropout(x),
    functional.alpha_dropout(x, 0.5, True))]
facts["learns"] = torch.randn_like(x, requires_grad=True).is_leaf
try:
    nn.Parameter(x).normal_()
    facts["refused"] = ""
except RuntimeError as error:
    facts["refused"] = str(error)


folder = tempfile.mkdtemp()
sys.path.insert(0, folder)
with open(f"{folder}/noisy_model.py", "w") as file:  # torch.jit.script reads the source
    file.write({noisy!r})
from noisy_model import Noisy

graph = torch.compile(Noisy(), backend="eager", fullgraph=True)
facts["one graph"] = list(graph(x).shape)
facts["scripted"] = list(torch.jit.script(Noisy())(x).shape)
facts["mapped"] = list(torch.func.vmap(torch.randn_like, randomness="different")(x).shape)
pulled.switch({})
facts["scripted, back"] = list(torch.jit.script(Noisy())(x).shape)
facts["back"] = [torch.randn_like.__name__, "normal_" in vars(torch.Tensor),
                 hasattr(torch.randn_like, "__wrapped__")]
watch._detach()
"""


@pytest.fixture(scope="module")
def draws(training):
    return training(PROGRAM.replace("{noisy!r}", repr(NOISY)))


@pytest.mark.child
def test_numbers_and_generator_are_those_of_the_scripts_own_layout(draws) -> None:
    assert all(draws["drawn from"].values())
    for name, equal in draws["equal"].items():
        assert equal, name


@pytest.mark.child
def test_what_is_drawn_has_the_layout_of_what_it_was_drawn_like(draws) -> None:
    assert draws["layout"] == [True] * 4


@pytest.mark.child
def test_leaves_stay_leaves_and_errors_stay_errors(draws) -> None:
    assert draws["learns"]
    assert "leaf Variable that requires grad" in draws["refused"]


@pytest.mark.child
def test_models_that_draw_are_compiled_scripted_and_mapped_as_before(draws) -> None:
    assert draws["one graph"] == draws["scripted"] == draws["scripted, back"] == [2, 4, 6, 6]
    assert draws["mapped"] == [2, 3, 8, 8]


@pytest.mark.child
def test_torchs_functions_are_put_back(draws) -> None:
    assert draws["back"] == ["randn_like", False, False]
