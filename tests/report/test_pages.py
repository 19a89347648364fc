import io
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from hasten.errors import UsageError
from hasten.records import Diagnosis
from hasten.report import findings, pages

NAMES = ("gc-pauses",)


def shown(page):
    paper = io.StringIO()
    Console(file=paper, width=80).print(page)
    return paper.getvalue()


def test_every_finding_is_listed_by_its_name_and_what_users_say(tmp_path, monkeypatch):
    (tmp_path / "gc-pauses.md").write_text("# Steps [stall] now and then\n")
    monkeypatch.setattr(pages, "_IN_WHEEL", tmp_path)
    page = shown(pages.render_titles(NAMES))
    assert "gc-pauses  Steps [stall] now and then" in page
    assert "hasten findings NAME" in page


def test_a_page_is_shown_whole(tmp_path, monkeypatch):
    (tmp_path / "gc-pauses.md").write_text("# Stalls\n\n## Why\n\nA [full](x.md) collection.\n")
    monkeypatch.setattr(pages, "_IN_WHEEL", tmp_path)
    page = shown(pages.render_page(NAMES, "gc-pauses"))
    for words in ("Stalls", "Why", "A full collection."):
        assert words in page


def test_a_page_that_is_not_there_is_said():
    with pytest.raises(UsageError, match="no finding called x"):
        pages.render_page(NAMES, "x")
    with pytest.raises(UsageError, match="no page at"):
        pages.render_page(("no-page",), "no-page")


def test_a_wheel_carries_the_pages_of_the_repository():
    root = Path(__file__).parents[2]
    assert pages.folder() == root / "docs" / "findings"
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]
    target = pages._IN_WHEEL.relative_to(root / "src").as_posix()
    assert wheel["wheel"]["force-include"] == {"docs/findings": target}


def test_the_report_names_the_page_of_the_costliest_finding(diagnosis):
    console = Console(width=80)
    with console.capture() as capture:
        for part in findings.told(diagnosis):
            console.print(part)
    assert f"hasten findings {diagnosis.findings[0].name}" in capture.get()
    assert findings.told(Diagnosis()) == []
