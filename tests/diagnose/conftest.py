"""What the tests of findings share."""

from dataclasses import replace

import pytest

from hasten import machine


@pytest.fixture
def machine_of():
    """Return the facts of a machine with so many cores."""

    def make(core_count):
        facts = machine.read()
        return replace(facts, budget=replace(facts.budget, core_count=core_count))

    return make
