"""torch_compile: where it is offered, and that torch's real compiler keeps its promises."""

import os
import shutil
from dataclasses import replace

import pytest

from hasten.lever import ScriptContext
from hasten.levers.torch_compile import LEVER
from hasten.records import CompilerTraits, ModelTraits, Traits
from hasten.testing import LAPTOP

MODEL = ModelTraits(parameter_count=1000, device="cpu")


def context(*, model=MODEL, cxx="g++", **compiler):
    traits = Traits(model=model, compiler=CompilerTraits(cxx=cxx, **compiler))
    return ScriptContext(machine=LAPTOP, traits=traits)


def test_is_offered_where_there_is_a_model_and_a_compiler() -> None:
    assert LEVER.settings(context()) == ("default",)
    assert not LEVER.promising(context())


@pytest.mark.parametrize(
    ("traits", "why"),
    [
        ({"cxx": ""}, "no C++ compiler is found (g++ or clang++)"),
        ({"is_used": True}, "the script uses torch.compile itself"),
        ({"model": ModelTraits(parameter_count=0)}, "the loop calls no module with parameters"),
        ({"refused": "TORCH_COMPILE_DISABLE switches torch.compile off"}, None),
        ({"model": replace(MODEL, device="cuda")}, "Triton is not installed"),
    ],
)
def test_says_what_stands_against_it(traits, why) -> None:
    assert LEVER.settings(context(**traits)) == ()
    assert LEVER.why_not(context(**traits)) == (why or traits["refused"])


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_that_overwrite_the_outputs_of_earlier_steps_are_refused(mode) -> None:
    assert "CUDA graphs overwrite" in LEVER.validate(mode)
    assert LEVER.validate("default") == LEVER.validate("max-autotune-no-cudagraphs") == ""


def test_is_likely_to_help_on_a_gpu_with_triton() -> None:
    assert LEVER.promising(context(model=replace(MODEL, device="cuda"), has_triton=True))


PROGRAM = r"""
import os
PLAN = {"torch_compile": "default"}


class Dropping(Net):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.3, self.training))


def donates():
    from torch._functorch import config
    return getattr(config, "donated_buffer", None)


def children():
    return open(f"/proc/self/task/{os.getpid()}/children").read().split()


Net = Dropping
own = Run().train(count=20).close()
own_draws = hashed(torch.get_rng_state())
before = donates()
run = Run()
run.applied.switch(PLAN)
run.train(count=20)
facts["compile_s"] = run.watch.live.compile_s
pairs = zip(run.net.state_dict().values(), own.net.state_dict().values())
facts["far"] = max((a.double() - b.double()).abs().max().item() for a, b in pairs)
facts["draws"] = hashed(torch.get_rng_state()) == own_draws
x = torch.randn(4, 3, 8, 8)
output = run.net(x)
facts["compiled"] = type(output.grad_fn).__name__
output.sum().backward(retain_graph=True)
output.sum().backward()
facts["strides"] = [p.grad.stride() == p.stride() for p in run.net.parameters()]
facts["children"] = children()
run.close()
facts["plain"] = type(run.net(x).grad_fn).__name__
facts["donates"] = donates() == before
"""


@pytest.mark.slow
@pytest.mark.child
@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler"
)
def test_torchs_compiler_draws_sums_and_repeats_as_plain_torch_and_leaves_no_process(
    training,
) -> None:
    facts = training(PROGRAM)
    assert facts["compile_s"] > 0
    assert facts["draws"]
    assert facts["far"] < 1e-3
    assert facts["compiled"] == "CompiledFunctionBackward"
    assert facts["plain"] != "CompiledFunctionBackward"
    assert all(facts["strides"])
    assert facts["children"] == []
    assert facts["donates"]
