"""sdpa: eager attention of Transformers' models is exchanged, and put back to the letter."""

import pytest

from hasten.lever import ScriptContext
from hasten.levers.sdpa import LEVER
from hasten.records import ModelTraits, Traits
from hasten.testing import LAPTOP


def context(name):
    return ScriptContext(machine=LAPTOP, traits=Traits(model=ModelTraits(attention=name)))


def test_is_offered_for_eager_attention_alone() -> None:
    assert LEVER.settings(context("eager")) == (True,)
    assert LEVER.settings(context("weights")) == ()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (None, "other attention cannot be replaced from outside"),
        ("sdpa", "uses scaled_dot_product_attention already"),
        ("weights", "asks for the attention weights"),
        ("flash_attention_2", "the script has chosen flash_attention_2"),
        ("MultiheadAttention", "by itself"),
    ],
)
def test_says_why_not(name, why) -> None:
    assert why in LEVER.why_not(context(name))


PROGRAM = r"""
PLAN = {"sdpa": True}


class Config:  # as those of transformers: a property over an attribute of its own
    def __init__(self, attention, **inner):
        self._attn_implementation_internal = attention
        self.output_attentions = False
        vars(self).update(inner)

    @property
    def _attn_implementation(self):
        return self._attn_implementation_internal


class Model(nn.Module):
    _supports_sdpa = True

    def __init__(self, config, inner=None):
        super().__init__()
        self.config, self.layer, self.inner = config, nn.Linear(4, 4), inner
        self.used = []

    def set_attn_implementation(self, name):
        for config in (self.config, getattr(self.config, "vision", None)):
            if config is not None:
                config._attn_implementation_internal = name
                config._attn_was_changed = True

    def forward(self, x, output_attentions=False):
        self.used.append(self.config._attn_implementation)
        return self.layer(x if self.inner is None else self.inner(x))


class Old(Model):
    _supports_sdpa = False


class Refuses(Model):
    def set_attn_implementation(self, name):
        super().set_attn_implementation(name)
        raise ValueError("not this one")


class Own(nn.Module):  # of the script, around one of transformers
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


watch = Watch(measuring=False)
applied = AppliedLevers(watch.live)
watch.install()
x = torch.rand(2, 4)
vision = Config("flash_attention_2")
model = Model(Config("eager", vision=vision))
own, old = Own(model), Old(Config("eager"))
asks = Model(Config("eager"))
asks.config.output_attentions = True
before = [dict(vars(config)) for config in (model.config, vision)]
own(x), old(x), asks(x)
applied.switch(PLAN)
own(x), old(x), asks(x)
model(x, output_attentions=True)
model(x)
facts["used"], facts["old"], facts["asks"] = model.used, old.used, asks.used
applied.switch({})
own(x)
facts["back"] = [dict(vars(config)) for config in (model.config, vision)] == before
facts["used, back"] = model.used[-1]
refuses = Refuses(Config("eager"))
try:
    applied.switch(PLAN)
    refuses(x)
except ValueError as error:
    facts["refused"] = [str(error), refuses.config._attn_implementation]
watch.detach()
"""


@pytest.fixture(scope="module")
def exchanged(training):
    return training(PROGRAM)


@pytest.mark.child
def test_a_model_inside_the_scripts_own_is_exchanged_but_not_where_weights_are_asked(
    exchanged,
) -> None:
    assert exchanged["used"][:4] == ["eager", "sdpa", "eager", "sdpa"]


@pytest.mark.child
def test_models_that_cannot_or_must_not_stay_eager(exchanged) -> None:
    assert exchanged["old"] == exchanged["asks"] == ["eager", "eager"]


@pytest.mark.child
def test_every_configuration_says_what_it_said_before(exchanged) -> None:
    assert exchanged["back"]
    assert exchanged["used, back"] == "eager"


@pytest.mark.child
def test_a_model_that_refuses_is_left_as_it_was(exchanged) -> None:
    assert exchanged["refused"] == ["not this one", "eager"]
