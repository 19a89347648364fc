"""Second derivatives: found in the script's code before they are asked for."""

import gc
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from hasten.root_calls.own_code import second_derivatives


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", ""),
        ("def step(loss):\n    loss.backward(retain_graph=True)", ""),
        ("def late(o, x):\n    return torch.autograd.grad(o, x)", ""),
        (
            "def late(o, x):\n    return torch.autograd.grad(o, x, None, True, True)",
            "has autograd.grad(..., True) in late",
        ),
        (
            "def late(o, x, *more):\n    return torch.autograd.grad(o, x, *more, True)",
            "has autograd.grad(..., True) in late",
        ),
        (
            "def late(o, x):\n    return torch.autograd.grad(o, x, None, retain_graph=True, "
            "allow_unused=True)",
            "",
        ),
        (
            "def penalty(grad, x):\n    return grad(x, create_graph=True)",
            "has create_graph in penalty",
        ),
        (
            "class Loss:\n    def late(self, f, x):\n        return [f.hessian(x) for _ in x]",
            "has hessian in late",
        ),
        (
            "def outer(grad):\n    def inner(x):\n        grad(x, None, create_graph=True)\n"
            "    return inner",
            "has create_graph in outer",
        ),
    ],
)
def test_says_where_the_script_asks_for_them(source, message, tmp_path) -> None:
    path = tmp_path / f"{tmp_path.name}.py"
    path.write_text(source)
    spec = spec_from_file_location("script", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    gc.collect()  # functions of the case before
    found = second_derivatives()
    assert found == (f"{path.name} {message}" if message else "")


def test_reads_no_library(tmp_path) -> None:
    import torch.autograd.functional

    assert "hessian" in vars(torch.autograd.functional)
    assert "functional.py" not in second_derivatives()
