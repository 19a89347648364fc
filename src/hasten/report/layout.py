"""The few building blocks of every page.

Everything that comes from the user (arguments, names, lever messages) is `Text`, never
markup: a script called `[red].py` is printed under exactly that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

WIDTH = 80


def heading(title: str) -> RenderableType:
    """Return the heading of a page."""
    return Rule(Text(title, "bold"), align="left", style="dim")


def section(title: str, *parts: RenderableType) -> list[RenderableType]:
    """Put a title above some parts; return nothing if there are none."""
    if not parts:
        return []
    return [Text(), Text(title, "bold"), *(indented(part) for part in parts)]


def indented(part: RenderableType) -> Padding:
    """Indent a part."""
    return Padding(part, (0, 0, 0, 2))


def prose(sentence: str, style: str = "") -> Text:
    """Return a sentence that wraps; a word longer than the line is folded, not cut."""
    return Text(sentence, style, overflow="fold")


def bullets(sentences: Iterable[str]) -> list[RenderableType]:
    """Return one bulleted, hanging paragraph per sentence."""
    return [_columns([("-", sentence)]) for sentence in sentences]


def facts(rows: Sequence[tuple[str, str]]) -> list[RenderableType]:
    """Return names and their values in two columns."""
    return [_columns(rows, "dim")] if rows else []


def _columns(rows: Sequence[tuple[str, str]], style: str = "") -> Table:
    table = Table.grid(padding=(0, 2 if style else 1, 0, 0))
    table.add_column(no_wrap=True, style=style)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), prose(value))
    return table
