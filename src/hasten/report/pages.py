"""The pages of the findings: the symptoms, the cause, what to do, and when that does not help.

They are the files in `docs/findings`; a wheel has a copy of that folder inside the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.markdown import Markdown
from rich.text import Text

from hasten.errors import UsageError
from hasten.report.layout import facts, prose, section

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rich.console import RenderableType

_IN_WHEEL = Path(__file__).with_name("findings_pages")
_IN_CHECKOUT = Path(__file__).parents[3] / "docs" / "findings"


def folder() -> Path:
    """Return where the pages are."""
    return _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_CHECKOUT


def title(name: str) -> str:
    """Return the heading of a finding's page, or the finding's name if the page is missing."""
    try:
        with (folder() / f"{name}.md").open(encoding="utf-8") as page:
            return page.readline().removeprefix("#").strip()
    except OSError:
        return name


def render_titles(names: Iterable[str]) -> Group:
    """List what hasten can find, by name."""
    rows = [(name, title(name)) for name in names]
    return Group(*facts(rows), *section("One page", prose("hasten findings NAME")))


def render_page(names: Collection[str], name: str) -> RenderableType:
    """Show the page of one finding.

    Raises:
        UsageError: there is no finding of that name, or its page was not installed.
    """
    if name not in names:
        raise UsageError(
            f"There is no finding called {name}.", remedy="List them: `hasten findings`."
        )
    path = folder() / f"{name}.md"
    if not path.is_file():
        raise UsageError(f"There is no page at {path}.", remedy="Install hasten again.")
    return Group(Markdown(path.read_text("utf-8")), Text())
