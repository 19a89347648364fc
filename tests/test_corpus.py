"""Scripts that look closely at their own training see nothing of a lever: see corpus/runner.py."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import groupby
from pathlib import Path

import pytest

pytestmark = pytest.mark.child


def loaded():
    spec = spec_from_file_location("corpus_runner", Path(__file__).parent / "corpus/runner.py")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


corpus = loaded()
TUNED = ("layout/prune_flatten", "anomalies/skips_nan_steps", "delivered/hard_examples")
_EACH = 24  # script of a group is among the quick tests, if it starts no Python of its own


@pytest.fixture(scope="module")
def running():
    with corpus.runner() as one:
        yield one


def existing(script):
    if script.missing:
        pytest.skip(f"{script.missing} cannot be imported here")
    return script


def scripts():
    """Return the scripts of the corpus, those that are not among the quick tests as slow ones."""
    for _, group in groupby(corpus.scripts(), key=lambda script: script.group):
        members = list(group)
        quick = [script for script in members if script.name not in corpus.FRESH][::_EACH]
        for script in members:
            marks = () if script in quick else pytest.mark.slow
            yield pytest.param(script, id=script.name, marks=marks)


@pytest.mark.parametrize("script", list(scripts()))
def test_the_same_training_comes_of_a_script_under_each_lever(running, script) -> None:
    found = corpus.outcomes(running, existing(script))
    assert {one.levers: one.difference for one in found if one.difference} == {}
    acting = dict.fromkeys(corpus.ACTING.get(script.name, ()), (True, ()))
    assert {o.levers: (o.acted, o.said) for o in found if o.levers in acting} == acting


@pytest.mark.slow
@pytest.mark.parametrize("script", corpus.scripts(TUNED), ids=lambda script: script.name)
def test_and_under_the_plan_that_tune_accepts(running, script) -> None:
    assert running.tuned(existing(script)).difference == ""


def test_the_table_has_each_script_and_none_that_differs() -> None:
    table = (corpus.HERE / "README.md").read_text()
    assert [one.name for one in corpus.scripts() if f"]({one.name}.py) |" not in table] == []
    assert "**differs**" not in table


def test_the_corpus_is_large_and_each_script_says_what_it_does() -> None:
    found = corpus.scripts()
    assert len(found) >= 60
    assert all(script.text.endswith(".") and script.levers() for script in found)
    assert {script.group for script in found} == set(corpus.GROUPS)
