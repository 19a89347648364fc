"""The [evidence] table of a plan file: what was shown about the plan, and how firmly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.records import REPEATABLE, STRUCTURE
from hasten.report.document import utf8
from hasten.report.plan_state import State, state_of
from hasten.report.wording import PASSED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tomlkit.items import InlineTable, Table

    from hasten.records import Interval, Passes, Plan, Tuning


_SAYS = {
    State.FAILED: "a numerics gate failed",
    State.UNPROVED: "the search ended before a proof, or could not make one",
    State.PROVED: "no gate failed; fresh runs have not confirmed the gain",
    State.EMPTY: "nothing was found that helps",
    State.CONFIRMED: "no gate failed, and fresh runs have confirmed the gain",
}
_DOUBTS = {
    State.FAILED: "A numerics gate failed under this plan.",
    State.UNPROVED: "This plan is not proved: run `hasten tune` again.",
    State.PROVED: "This plan is proved, but fresh runs have not confirmed its gain.",
}


def evidence_table(tuning: Tuning) -> Table:
    """Return the [evidence] table of a tuning."""
    import tomlkit

    table = tomlkit.table()
    state = state_of(tuning)
    table.add("state", tomlkit.item(state.value).comment(_SAYS[state]))
    if tuning.diagnosis is not None and tuning.diagnosis.is_contended:
        table.add("contended", tomlkit.item(True).comment("other processes kept CPUs busy"))
    if tuning.speedup is not None:
        _add_speedup(table, tuning.speedup, tuning.passes)
    table.add("effect", tuning.proof.effect.value)
    gates = tomlkit.array()
    gates.extend(utf8(f"{PASSED[g.passed]}: {g.name}: {g.message}") for g in tuning.proof.gates)
    table.add("gates", gates.multiline(multiline=len(gates) > 1))
    return table


def _add_speedup(table: Table, speedup: Interval, passes: Passes | None) -> None:
    import tomlkit

    part = ""
    if passes is not None:
        part = " of later passes" if passes.longer_s else " of steps alone"
    table.add(tomlkit.comment(f"Speedup{part} from fresh runs after the search; 95% interval."))
    table.add("speedup", _inline(speedup))
    if passes is not None:
        table.add(tomlkit.comment(f"Of the whole training, passes: {passes.pass_count}."))
        table.add("whole", _inline(passes.whole))


def _inline(ratio: Interval) -> InlineTable:
    import tomlkit

    ends = {"low": ratio.low_ratio, "mid": ratio.mid_ratio, "high": ratio.high_ratio}
    inline = tomlkit.inline_table()
    inline.update({end: round(value, 4) for end, value in ends.items()})
    return inline


def read_state(table: Mapping[str, Any]) -> State | None:
    """Return the state given in a table; None if there is none, as in a hand-written plan."""
    gates = table.get("gates")
    verdicts = {str(gate).partition(":")[0] for gate in gates} if isinstance(gates, list) else set()
    if "failed" in verdicts:
        return State.FAILED
    told = table.get("state")
    return State(told) if told in list(State) else None


def read_judged(table: Mapping[str, Any]) -> bool:
    """Return whether a gate that compares numbers passed; True where a table has no gates."""
    gates = table.get("gates")
    if not isinstance(gates, list) or not gates:
        return True
    others = tuple(f"{PASSED[True]}: {name}" for name in (REPEATABLE, STRUCTURE))
    passed = [str(gate) for gate in gates if str(gate).startswith(PASSED[True])]
    return any(not gate.startswith(others) for gate in passed)


def doubt(state: State | None, plan: Plan) -> str:
    """Return the warning to show before a plan is used; empty if there is none."""
    if plan.settings:
        return _DOUBTS.get(state, "") if state else ""
    if state is not State.UNPROVED:
        return ""
    return "This plan is empty, since its search did not come to its end: run `hasten tune` again."
