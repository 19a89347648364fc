"""The [guard] of a plan file: what the first steps of a real run are held against."""

from __future__ import annotations

import reprlib  # what stands in a file may be long
from typing import TYPE_CHECKING, Any

from hasten.errors import PlanError
from hasten.records import LossEnvelope

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tomlkit.items import Table

_DIGITS = 4


def guard_table(envelope: LossEnvelope) -> Table:
    """Return the table of a band; figures are rounded to four digits."""
    import tomlkit

    table = tomlkit.table()
    for comment in (
        "How the script begins without levers, in windows of 8 steps. `hasten run` watches its",
        "first 50 steps, and disables the levers if the loss diverges. Delete this table to run",
        "unwatched.",
    ):
        table.add(tomlkit.comment(comment))
    table.add("step", "backward" if envelope.by_hand else "optimizer")
    if envelope.losses:
        table.add("losses", _rounded(envelope.losses))
        table.add("spreads", _rounded(envelope.spreads))
        table.add("range", _rounded(envelope.losses_range))
    if envelope.moves:
        table.add("moves", _rounded(envelope.moves))
    if envelope.step_s is not None:
        table.add("step_s", _rounded((envelope.step_s,))[0])
    return table


def read_envelope(path: Path, table: Mapping[str, Any]) -> LossEnvelope | None:
    """Return the band of a table, None where there is none.

    Raises:
        PlanError: a figure is missing or no figure.
    """
    if not table:
        return None
    try:
        return _envelope(table)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"The [guard] of {path} cannot be read: {error}.",
            remedy="Delete that table to run unwatched, or run `hasten tune` again.",
        ) from error


def _envelope(table: Mapping[str, Any]) -> LossEnvelope:
    figures = {name: _figures(name, table.get(name, [])) for name in ("losses", "spreads", "moves")}
    if len(figures["losses"]) != len(figures["spreads"]):
        raise ValueError("losses and spreads differ in length")
    low, high = _figures("range", table.get("range", [0.0, 0.0]))
    step_s = table.get("step_s")
    return LossEnvelope(
        by_hand=table.get("step") == "backward",
        losses_range=(low, high),
        step_s=None if step_s is None else _figures("step_s", [step_s])[0],
        **figures,
    )


def _figures(name: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or any(
        isinstance(item, bool) or not isinstance(item, int | float) for item in value
    ):
        raise TypeError(f"{name} = {reprlib.repr(value)} is no list of numbers")
    return tuple(map(float, value))


def _rounded(values: tuple[float, ...]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
