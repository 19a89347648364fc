"""Which definition of a file is the code that runs."""

import ast

import pytest

from hasten.loader.proof.source import function_of, is_user_file


def same(x):
    return x


# fmt: off
ALONE = lambda x: -x  # noqa: E731
FIRST, LAST = lambda x: x, lambda x: x + 1
OUTER = lambda x: (lambda y: x + y)  # noqa: E731
ALIKE = [lambda x: -x, lambda x: -x]
# fmt: on


def test_a_function_is_found_by_its_line() -> None:
    assert ast.unparse(function_of(same.__code__)) == "def same(x):\n    return x"
    assert ast.unparse(function_of(ALONE.__code__)) == "lambda x: -x"


@pytest.mark.parametrize("function", [FIRST, LAST, OUTER, OUTER(1), *ALIKE])
def test_of_several_lambdas_on_a_line_none_is_taken_for_another(function) -> None:
    assert function_of(function.__code__) is None


def test_a_module_that_older_torch_writes_into_a_temporary_folder_is_not_the_scripts() -> None:
    assert is_user_file("/tmp/tmp1/train.py")
    assert not is_user_file("/tmp/tmp1/_remote_module_non_scriptable.py")
