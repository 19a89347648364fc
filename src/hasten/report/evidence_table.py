"""The [evidence] table of a plan file: what was shown about the plan, and how firmly."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hasten.report.document import utf8
from hasten.report.wording import PASSED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tomlkit.items import Table

    from hasten.records import Plan, Tuning


class State(StrEnum):
    """How far a plan can be relied on, weakest first.

    EMPTY means that a complete search found nothing that helps; the empty plan of a search that
    did not finish is UNPROVED.
    """

    FAILED = "failed"
    UNPROVED = "unproved"
    PROVED = "proved"
    EMPTY = "empty"
    CONFIRMED = "confirmed"

    @property
    def strength_index(self) -> int:
        """The position in the order FAILED < UNPROVED < PROVED < EMPTY < CONFIRMED."""
        return list(State).index(self)


_SAYS = {
    State.FAILED: "a numerics gate failed",
    State.UNPROVED: "the search ended before a proof, or could not make one",
    State.PROVED: "the training stays the same; fresh runs have not confirmed the gain",
    State.EMPTY: "nothing was found that helps",
    State.CONFIRMED: "the training stays the same, and fresh runs have confirmed the gain",
}
_DOUBTS = {
    State.FAILED: "A numerics gate failed under this plan.",
    State.UNPROVED: "This plan is not proved: run `hasten tune` again.",
    State.PROVED: "This plan is proved, but fresh runs have not confirmed its gain.",
}


def state_of(tuning: Tuning) -> State:
    """Return how far the plan of a tuning can be relied on."""
    if not tuning.plan.settings:
        return State.UNPROVED if tuning.undecided else State.EMPTY
    if not tuning.proof.holds:
        return State.FAILED
    if tuning.speedup is not None and tuning.speedup.is_gain:
        return State.CONFIRMED
    return State.PROVED if tuning.proof.gates else State.UNPROVED


def evidence_table(tuning: Tuning) -> Table:
    """Return the [evidence] table of a tuning."""
    import tomlkit

    table = tomlkit.table()
    state = state_of(tuning)
    table.add("state", tomlkit.item(state.value).comment(_SAYS[state]))
    if tuning.diagnosis is not None and tuning.diagnosis.is_contended:
        table.add("contended", tomlkit.item(True).comment("other processes kept CPUs busy"))
    if tuning.speedup is not None:
        message = "Speedup from fresh runs after the search; 95% interval."
        table.add(tomlkit.comment(message))
        ends = ("low", "mid", "high")
        speedup = tuning.speedup
        ratios = (speedup.low_ratio, speedup.mid_ratio, speedup.high_ratio)
        inline = tomlkit.inline_table()
        inline.update({end: round(ratio, 4) for end, ratio in zip(ends, ratios, strict=True)})
        table.add("speedup", inline)
    table.add("effect", tuning.proof.effect.value)
    gates = tomlkit.array()
    gates.extend(utf8(f"{PASSED[g.passed]}: {g.name}: {g.message}") for g in tuning.proof.gates)
    table.add("gates", gates.multiline(multiline=len(gates) > 1))
    return table


def read_state(table: Mapping[str, Any]) -> State | None:
    """Return the state given in a table; None if there is none, as in a hand-written plan."""
    gates = table.get("gates")
    verdicts = {str(gate).partition(":")[0] for gate in gates} if isinstance(gates, list) else set()
    if "failed" in verdicts:
        return State.FAILED
    told = table.get("state")
    return State(told) if told in list(State) else None


def doubt(state: State | None, plan: Plan) -> str:
    """Return the warning to show before a plan is used; empty if there is none."""
    if plan.settings:
        return _DOUBTS.get(state, "") if state else ""
    if state is not State.UNPROVED:
        return ""
    return "This plan is empty, since its search did not come to its end: run `hasten tune` again."
