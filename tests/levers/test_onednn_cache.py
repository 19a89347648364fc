"""onednn_cache: room for what many shapes compile, and nothing where the stock size does."""

from hasten.lever import ScriptContext
from hasten.levers.onednn_cache import LEVER
from hasten.testing import LAPTOP


def context(shape_count, layer_count):
    traits = {"inputs.shape_count": shape_count, "model.onednn_layer_count": layer_count}
    return ScriptContext(machine=LAPTOP, traits=traits)


def test_makes_room_for_twice_what_was_seen_and_no_more_than_onednn_takes() -> None:
    assert LEVER.settings(context(20, 10)) == (4096,)
    assert LEVER.settings(context(40, 50)) == (32768,)
    assert LEVER.settings(context(256, 500)) == (65536,)


def test_says_why_the_stock_size_is_enough() -> None:
    assert LEVER.settings(context(1, 500)) == ()
    assert LEVER.why_not(context(1, 500)) == "all inputs had one shape"
    assert LEVER.settings(context(3, 20)) == ()
    assert LEVER.why_not(context(3, 20)) == (
        "inputs of 3 shapes through 20 layers of oneDNN are at most 360 operations, and the cache "
        "holds 1024"
    )
    assert LEVER.settings(ScriptContext(machine=LAPTOP)) == ()
    assert LEVER.why_not(ScriptContext(machine=LAPTOP)) == "the loop calls no module of torch"


def test_sizes_of_the_users_own_stay() -> None:
    edited = LEVER.env({"LRU_CACHE_CAPACITY": "64"}, 4096)
    assert edited == {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4096", "LRU_CACHE_CAPACITY": "64"}
