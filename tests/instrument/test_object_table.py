"""Live objects are told apart by who they are, and are not kept alive."""

import gc

from hasten.instrument.object_table import Table


class Same:
    """Equal to any other, and without a hash."""

    __hash__ = None

    def __eq__(self, other):
        return True


def test_equal_objects_without_a_hash_have_values_of_their_own() -> None:
    one, two, table = Same(), Same(), Table()
    table[one], table[two] = 1, 2
    table[one] = 3
    assert (table.get(one), table.get(two), len(table)) == (3, 2, 2)
    assert [item is one for item in table] == [True, False]
    assert table.values() == [3, 2]
    assert Same() not in table
    assert table.get(Same(), 5) == 5


def test_what_the_script_drops_is_gone() -> None:
    table, kept = Table(), Same()
    table[kept] = table[Same()] = None
    gc.collect()
    assert [item is kept for item in table] == [True]
    table.clear()
    assert kept not in table
