"""The cards of the levers: what each does, when it helps, and what it costs."""

from __future__ import annotations

import inspect
import re
from math import isfinite
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from hasten.errors import UsageError
from hasten.report.layout import facts, heading, indented, prose
from hasten.report.wording import EFFECTS
from hasten.units import times

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from rich.console import RenderableType

    from hasten.lever import Lever

SWITCHES = {
    "step": "at any step, there and back, while the script runs",
    "child": "while the script runs, but not back",
    "launch": "only when the script starts",
}


def render_cards(levers: Mapping[str, Lever[Any]], name: str | None = None) -> Group:
    """Draw the card of each lever, or of one.

    Raises:
        UsageError: there is no lever of that name.
    """
    if name is not None and name not in levers:
        raise UsageError(
            f"There is no lever called {name}.", remedy=f"Choose from: {', '.join(levers)}."
        )
    chosen = [levers[name]] if name is not None else list(levers.values())
    if not chosen:
        return Group(prose("No lever is installed."))
    parts = [part for lever in chosen for part in (*_card(lever), Text())]
    return Group(*parts[:-1])


def paragraphs(card: str) -> list[str]:
    r"""Return a card as one line for each of its parts, to be wrapped anew.

    >>> paragraphs("name: what it does.\n\n    Helps: small\n        models.")
    ['name: what it does.', 'Helps: small models.']
    """
    joined = re.sub(r"\n +", " ", inspect.cleandoc(card))
    return [line for line in joined.splitlines() if line]


def _card(lever: Lever[Any]) -> list[RenderableType]:
    rows = [
        ("shortens", f"{', '.join(sorted(lever.phases))} ({_best(lever.gain_ratio)})"),
        ("effect", f"{lever.effect} ({EFFECTS[lever.effect]})"),
        ("switches", f"{lever.switch} ({SWITCHES[lever.switch]})"),
        ("settings", f"hasten run --lever {lever.name}=SETTING"),
    ]
    first, *rest = paragraphs(lever.card)
    return [
        heading(lever.name),
        indented(prose(first)),
        Text(),
        *(indented(prose(part)) for part in rest),
        Text(),
        *(indented(part) for part in facts(rows)),
    ]


def _best(gain_ratio: float) -> str:
    return f"at best {times(gain_ratio)} as fast" if isfinite(gain_ratio) else "to nothing at best"
