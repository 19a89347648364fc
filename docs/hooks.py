"""What MkDocs adds to these pages: the levers, the index of findings, and the files linked to.

Nothing of it is written down twice. A lever's page is the docstring of its file, the index of
findings is that of `hasten.diagnose`, and a link that leads out of this folder gets a page which
shows the file as it is.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

    from hasten.lever import Lever

DOCS = Path(__file__).parent
ROOT = DOCS.parent
OUTSIDE = "repository/"
LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s:]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NUMBER = 2
NAMED = {
    "allocator": "jemalloc",
    "autocast": "bfloat16",
    "device_copies": "arrival",
    "device_placement": "cuda",
    "fp32_precision": "bf16",
    "huge_pages": "glibc",
    "omp_wait_policy": "passive",
    "ranks": "2x4",
    "sample_cache": "8GiB",
    "thread_binding": "cores",
    "torch_compile": "default",
}


# ---- levers


def lever_page(lever: Lever[Any]) -> str:
    """Return the page of one lever: its card, what it declares, and the lines to write by hand."""
    from hasten.report.levers import SCOPES, paragraphs

    says, rest = summary(lever), paragraphs(lever.card)[1:]
    lines = lever.snippet(example(lever))
    kind = "sh" if "# in the shell" in lines else "python"
    return "\n\n".join(
        [
            f"# {lever.name}",
            f"{says[:1].upper()}{says[1:]}",
            *map(named, rest),
            f"**Effect:** {lever.effect}: {effects()[lever.effect]}.",
            f"**Shortens:** {', '.join(sorted(lever.phases))}.",
            f"**Scope:** {lever.scope}: {SCOPES[lever.scope]}.",
            "## By hand",
            f"```{kind}\n{lines}\n```",
            "## By hasten",
            f"```console\n$ hasten tune --only {lever.name} train.py\n```",
            *named_by(lever.name),
        ]
    )


def example(lever: Lever[Any]) -> Any:
    """Return a setting of the kind that a lever has."""
    return {bool: True, int: NUMBER}.get(lever.kind) or NAMED[lever.name]


def named(part: str) -> str:
    """Return a part of a card with its name in bold and its addresses as links."""
    bold = re.sub(r"^(\w+): ", r"**\1:** ", part)
    return re.sub(r"(https?://[^\s,)]+[^\s,).])", r"<\1>", bold)


def lever_index() -> str:
    """Return all levers, by their effect."""
    from hasten.lever import discover

    parts = [
        "# Levers",
        "A lever is one setting that `hasten tune` may try. They are ordered by the most that "
        "each may do to the arithmetic.",
    ]
    for effect, says in effects().items():
        found = [lever for lever in discover().values() if lever.effect == effect]
        rows = [(f"[`{one.name}`]({one.name}.md)", summary(one), one.scope) for one in found]
        if rows:
            parts += [f"## {effect}", f"{says[:1].upper()}{says[1:]}."]
            parts.append(table(("lever", "does", "scope"), rows))
    return "\n\n".join(parts)


def summary(lever: Lever[Any]) -> str:
    """Return the first line of a card, without the name."""
    from hasten.report.levers import paragraphs

    return paragraphs(lever.card)[0].partition(": ")[2]


def effects() -> dict[Any, str]:
    """Return what each effect means, weakest first."""
    from hasten.report.wording import EFFECTS

    return EFFECTS


# ---- findings


def finding_index() -> str:
    """Return all findings: what users say, and the levers that the page names."""
    from hasten.diagnose import discover
    from hasten.report.pages import title

    rows = []
    for name in discover():
        levers = ", ".join(f"[`{one}`](../levers/{one}.md)" for one in levers_of(name))
        rows.append((f"[{name}]({name}.md)", title(name), levers))
    return "\n\n".join(
        [
            "# Findings",
            "What `hasten profile` and `hasten tune` can find. Each is reported only where its "
            "cost was measured; `hasten findings NAME` shows its page on the terminal.",
            table(("finding", "what you notice", "levers"), rows),
        ]
    )


@cache
def levers_of(finding: str) -> tuple[str, ...]:
    """Return the levers that the page of a finding names."""
    from hasten.lever import names

    page = DOCS / "findings" / f"{finding}.md"
    said = set(re.findall(r"`(\w+)`", page.read_text("utf-8"))) if page.is_file() else set()
    return tuple(name for name in names() if name in said)


def named_by(lever: str) -> list[str]:
    """Return the findings whose pages name a lever, as a section; nothing where there are none."""
    from hasten.diagnose import discover
    from hasten.report.pages import title

    found = [
        f"- [{title(name)}](../findings/{name}.md) (`{name}`)"
        for name in discover()
        if lever in levers_of(name)
    ]
    return ["## Findings that it answers", "\n".join(found)] if found else []


# ---- links


def linked_files() -> set[Path]:
    """Return every file outside this folder that a page leads to, directly or by such a file."""
    waiting, found = list(DOCS.rglob("*.md")), set[Path]()
    while waiting:
        page = waiting.pop()
        for _, target in LINK.findall(FENCED.sub("", page.read_text("utf-8"))):
            path = (page.parent / target.partition("#")[0]).resolve()
            if path.is_file() and not path.is_relative_to(DOCS) and path not in found:
                found.add(path)
                waiting += [path] if path.suffix == ".md" else []
    return found


def shown(path: Path) -> str:
    """Return the page of a file outside: Markdown as it is, code as code."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return text
    kind = {".py": "python", ".toml": "toml", ".json": "json"}.get(path.suffix, "text")
    fence = "`" * (max(map(len, re.findall(r"`+", text)), default=2) + 1)
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {path.relative_to(ROOT).as_posix()}"
    return f'{head}\n\n{fence}{kind} linenums="1"\n{text.rstrip()}\n{fence}\n'


def place_of(path: Path) -> str | None:
    """Return where a file of the repository stands on the site; None for what is not there."""
    if path == DOCS / "findings":
        return "findings/index.md"
    if path.is_relative_to(DOCS):
        inside = path.relative_to(DOCS).as_posix()
        return inside if path.suffix == ".md" else None
    return f"{OUTSIDE}{path.relative_to(ROOT).as_posix()}.md" if path.is_file() else None


def relinked(markdown: str, source: Path, here: str) -> str:
    """Return a page whose links lead to pages of the site; a folder keeps its name alone.

    Args:
        markdown: the text.
        source: the file that it stands in, from which its links lead.
        here: the page on the site.
    """

    def turned(link: re.Match[str]) -> str:
        label, target = link[1], link[2]
        path, _, mark = target.partition("#")
        place = place_of((source.parent / path).resolve()) if path else here
        if place is None:
            return label[1:-1]
        where = os.path.relpath(place, os.path.dirname(here))
        return f"{label}({where}#{mark})" if mark else f"{label}({where})"

    pieces = re.split(rf"({FENCED.pattern})", markdown, flags=FENCED.flags)
    return "".join(p if p.startswith("```") else LINK.sub(turned, p) for p in pieces)


# ---- what MkDocs calls


def pages() -> dict[str, str]:
    """Return every page that has no file in this folder, by its place on the site."""
    from hasten.lever import discover

    made = {f"levers/{name}.md": lever_page(lever) for name, lever in discover().items()}
    made["levers/index.md"] = lever_index()
    made["findings/index.md"] = finding_index()
    for path in linked_files():
        made[str(place_of(path))] = relinked(shown(path), path, str(place_of(path)))
    return made


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    from mkdocs.structure.files import File

    for place, text in sorted(pages().items()):
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn the links of a page of this folder."""
    if page.file.generated_by:
        return markdown
    return relinked(markdown, DOCS / page.file.src_uri, page.file.src_uri)
