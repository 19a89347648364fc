"""The levers' cards: what each does, when it helps, and what it costs."""

from __future__ import annotations

import inspect
import re
from math import isfinite
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from hasten.errors import UsageError, choice
from hasten.report.layout import facts, heading, indented, prose
from hasten.report.wording import EFFECTS
from hasten.units import times

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from rich.console import RenderableType

    from hasten.lever import Lever

SCOPES = {
    "step": "on and off at any step while the script runs",
    "process": "on while the script runs; off again only in part",
    "launch": "only when the script starts",
}


def render_levers(levers: Mapping[str, Lever[Any]], name: str | None = None) -> Group:
    """Show one line for each lever, or the card of one lever.

    Raises:
        UsageError: there is no lever of that name.
    """
    if name is not None and name not in levers:
        raise UsageError(f"There is no lever called {name}.", remedy=choice(name, levers))
    if name is not None:
        return Group(*_card(levers[name]))
    if not levers:
        return Group(prose("No lever is installed."))
    lines = [_line(lever, max(map(len, levers))) for lever in levers.values()]
    return Group(*lines, Text(), prose("The card of one: hasten levers NAME", "dim"))


def _line(lever: Lever[Any], width: int) -> Text:
    """Return a lever's name, its effect, and what it does, on one line."""
    what = paragraphs(lever.card)[0].removeprefix(f"{lever.name}: ")
    line = Text(f"{lever.name:<{width}}  ", "bold", no_wrap=True, overflow="ellipsis")
    return line.append(f"{lever.effect:<12}  ", "not bold dim").append(what, "not bold")


def paragraphs(card: str) -> list[str]:
    r"""Return a card with each paragraph joined into one line, ready to be rewrapped.

    >>> paragraphs("name: what it does.\n\n    Helps: small\n        models.")
    ['name: what it does.', 'Helps: small models.']
    """
    joined = re.sub(r"\n +", " ", inspect.cleandoc(card))
    return [line for line in joined.splitlines() if line]


_KINDS: dict[type, str] = {bool: "true", int: "NUMBER"}


def _card(lever: Lever[Any]) -> list[RenderableType]:
    gain = lever.gain_ratio
    best = f"at best {times(gain)} faster" if isfinite(gain) else "to nothing at best"
    rows = [
        ("shortens", f"{', '.join(sorted(lever.phases))} ({best})"),
        ("effect", f"{lever.effect} ({EFFECTS[lever.effect]})"),
        ("scope", f"{lever.scope} ({SCOPES[lever.scope]})"),
        ("settings", f"hasten run --set {lever.name}={_KINDS.get(lever.kind, 'SETTING')}"),
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
