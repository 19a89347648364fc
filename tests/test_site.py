"""The site: a page for each lever and each finding, and no link that leads nowhere."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hasten import diagnose, lever
from hasten.lever import discover

ROOT = Path(__file__).parents[1]
FINDINGS = ROOT / "docs" / "findings"
HEADINGS = [
    "What you notice", "What hasten measures", "Why", "What to do", "When it does not help",
    "Evidence",
]  # fmt: skip
FETCHED = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""")


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(hooks):
    return hooks.pages()


def test_every_finding_has_its_page_and_every_page_its_finding():
    assert {page.stem for page in FINDINGS.glob("*.md")} == set(diagnose.discover())


@pytest.mark.parametrize("name", diagnose.discover())
def test_a_page_of_a_finding_says_what_when_and_when_not(name):
    text = (FINDINGS / f"{name}.md").read_text("utf-8")
    assert re.findall(r"^# (.+)$", text, re.MULTILINE), "it begins with a title"
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    parts = re.split(r"^## .+$", text, flags=re.MULTILINE)
    assert all(part.strip() for part in parts[1:]), "no part is empty"
    # On a terminal a link leads nowhere; the name of another finding can be typed.
    for label, target in re.findall(r"\[([^\]]+)\]\(((?!https?:)[^)]*)\)", text):
        assert target == f"{label}.md", target
        assert label in diagnose.discover()


def test_a_page_names_the_levers_that_cure_the_finding(hooks):
    said = [(name, lever.name) for lever in discover().values() for name in lever.cures]
    assert ("gc-pauses", "garbage_collector") in said
    for name, named in said:
        assert named in hooks.levers_of(name), f"docs/findings/{name}.md: name `{named}`"


def test_every_finding_is_in_the_index_with_what_users_say(pages):
    for name in diagnose.discover():
        title = (FINDINGS / f"{name}.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")
        assert f"| [{name}]({name}.md) | {title} |" in pages["findings/index.md"]


def test_every_lever_has_a_page_made_of_its_card(pages):
    for name, found in lever.discover().items():
        page = pages[f"levers/{name}.md"]
        assert page.startswith(f"# {name}\n")
        for word in " ".join(inspect.cleandoc(found.card).split()[1:]).split():
            assert word.removeprefix("(").rstrip(".,:)").lower() in page.lower(), (name, word)
        assert f"**Effect:** {found.effect}: " in page
        assert f"hasten tune --only {name} " in page


def test_every_lever_is_in_the_index_under_its_effect(pages):
    parts = re.split(r"^## (\w+)$", pages["levers/index.md"], flags=re.MULTILINE)
    told = {
        name: effect
        for effect, part in zip(parts[1::2], parts[2::2], strict=True)
        for name in re.findall(r"\[`(\w+)`\]\(\1\.md\)", part)
    }
    assert told == {name: found.effect for name, found in lever.discover().items()}


def test_a_finding_and_the_levers_that_its_page_names_lead_to_one_another(pages):
    assert "(../levers/garbage_collector.md)" in pages["findings/index.md"]
    assert "(../findings/gc-pauses.md)" in pages["levers/garbage_collector.md"]


def test_a_part_of_a_card_gets_a_bold_name_and_links(hooks):
    assert hooks.named("Source: https://a.org/b, (https://c.org).") == (
        "**Source:** <https://a.org/b>, (<https://c.org>)."
    )


def test_links_out_of_the_documents_lead_to_pages_that_show_the_file(hooks):
    text = (
        "[a](tour.md#x) [`b`](../src/hasten/lever.py) [c](decisions) [d](#e) [f](https://g.org)\n"
        "```text\n[h](../README.md)\n```\n"
    )
    assert hooks.relinked(text, ROOT / "docs" / "README.md", "README.md") == (
        "[a](tour.md#x) [`b`](repository/src/hasten/lever.py.md) c [d](README.md#e) "
        "[f](https://g.org)\n```text\n[h](../README.md)\n```\n"
    )
    shown = hooks.relinked("[a](docs/tour.md)", ROOT / "README.md", "repository/README.md.md")
    assert shown == "[a](../tour.md)"


def test_code_is_shown_whole_inside_a_longer_fence(hooks, tmp_path, monkeypatch):
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text('"""\n````\n"""\n')
    assert '`````python linenums="1"\n"""\n````\n"""\n`````\n' in hooks.shown(tmp_path / "a.py")


def test_every_page_at_the_top_is_in_the_navigation():
    named = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert {page.name for page in (ROOT / "docs").glob("*.md")} == set(named)


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path):
    pytest.importorskip("material", reason='needs pip install -e ".[docs]"')
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    built = [*tmp_path.rglob("*.html")]
    assert len(built) > len(lever.names())
    for page in built:
        assert not FETCHED.search(page.read_text("utf-8")), page
