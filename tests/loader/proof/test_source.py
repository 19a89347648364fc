"""Which definition of a file is the code that runs."""

import ast

import pytest

from hasten.loader.proof.source import function_of, is_user_file


def kept(function):
    return function


class Wrap:
    def __init__(self, function):
        self.function = function


# fmt: off
FIRST, INNER, LAST = lambda x: x, Wrap(lambda x: x * 2), lambda x: x + 1
OUTER = lambda x: (lambda y: (lambda z: z - 3))  # noqa: E731
ADDED = lambda a: (lambda b: a + b)  # noqa: E731
CHOSEN = [lambda x: -x, lambda x: -x]
NESTED = kept(lambda x, f=lambda y: y + 5: f(x))
# fmt: on


def same(x):
    return x


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (FIRST, "lambda x: x"),
        (INNER.function, "lambda x: x * 2"),
        (LAST, "lambda x: x + 1"),
        (OUTER, "lambda x: lambda y: lambda z: z - 3"),
        (OUTER(1), "lambda y: lambda z: z - 3"),
        (OUTER(1)(1), "lambda z: z - 3"),
        (ADDED, "lambda a: lambda b: a + b"),
        (ADDED(1), "lambda b: a + b"),
        (CHOSEN[1], "lambda x: -x"),
        (NESTED, "lambda x, f=lambda y: y + 5: f(x)"),
        (NESTED.__defaults__[0], "lambda y: y + 5"),
        (same, "def same(x):\n    return x"),
    ],
)
def test_of_several_functions_on_a_line_each_is_itself(function, text) -> None:
    assert ast.unparse(function_of(function.__code__)) == text


def test_a_module_that_older_torch_writes_into_a_temporary_folder_is_not_the_scripts() -> None:
    assert is_user_file("/tmp/tmp1/train.py")
    assert not is_user_file("/tmp/tmp1/_remote_module_non_scriptable.py")
