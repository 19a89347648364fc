"""Which levers are offered to a search, and the sentence for each that is not."""

from upshift.lever import Scene
from upshift.records import Effect
from upshift.session import Options
from upshift.session.knobs import find_knobs
from upshift.testing import SERVER, sample_profile

FAST = {"model.dtype": "float32", "model.device": "cpu", "bf16.matmul_ratio": 2.0}


def found(traits, **permits):
    scene = Scene(machine=SERVER, baseline=sample_profile(), traits=traits)
    knobs, rows = find_knobs(scene, Options(**permits), least_ratio=0.02, settled={})
    return {knob.lever for knob in knobs}, {row.lever: row.why for row in rows}


def test_fewer_bits_are_tried_only_where_they_are_allowed() -> None:
    offered, why = found(FAST)
    assert "autocast" not in offered
    assert why["autocast"] == "its effect is precision, which only --allow precision permits"
    assert "autocast" in found(FAST, allow=Effect.PRECISION)[0]


def test_what_cannot_help_says_so_before_it_asks_for_permission() -> None:
    _, why = found({**FAST, "bf16.matmul_ratio": 0.5})
    assert why["autocast"] == "bf16 is 2x slower than fp32 here"


def test_a_redraw_is_refused_by_the_word_that_forbids_it() -> None:
    _, why = found({"model.attention": "eager"}, keep=Effect.EXACT)
    assert why["sdpa"] == "its effect is redraw, and --keep exact does not permit it"
