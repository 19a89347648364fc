"""Documentation that fails: its examples run, its commands parse, its links and names exist."""

import gc
import inspect
import re
import shlex
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from urllib.parse import unquote

import pytest
import typer

from hasten import cli, errors, lever, search
from hasten.errors import HastenError
from hasten.lever import Lever, ScriptContext
from hasten.machine import caveats
from hasten.records import CollectorTraits, Phase, Traits, traits
from hasten.report import document, plan_file
from hasten.testing import LAPTOP, SERVER, sample_profile

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = "# not run"
PROGRAM = ("hasten",)
MODULE = ("python", "-m", "hasten")
# These start the command that ends their line.
LAUNCHERS = ("srun", "docker")
RUN_OR_READ = {"python", "sh", "console", "toml"}
OUTPUT = {"text", "diff"}


class Block(NamedTuple):
    """One fenced block of a page."""

    page: Path
    line: int
    kind: str
    text: str

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*kinds):
    """Return the blocks of these kinds; all of them where none is named."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for fence in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, fence.start()) + 1
            found.append(Block(page, line, kind=fence[1], text=fence[2]))
    return [block for block in found if not kinds or block.kind in kinds]


def prose(page):
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def commands(block):
    """Yield the command lines of a block: every line of `sh`, those after `$ ` of `console`."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.kind == "console" and not line.startswith("$ "):
            continue
        words = tuple(shlex.split(line.removeprefix("$ "), comments=True))
        if words[:1] and words[0] in LAUNCHERS and "hasten" in words:
            words = words[words.index("hasten") :]
        for start in (PROGRAM, MODULE):
            if words[: len(start)] == start:
                yield words[len(start) :]
        if words[:1] == ("make",):
            yield words


def links():
    for page in PAGES:
        for label, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", prose(page)):
            if not re.match(r"[a-z]+:", target):
                yield page, label, target


def anchor(heading):
    """Return the anchor of a heading as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_the_examples_run(block):
    code = compile(block.text, str(block), "exec", dont_inherit=True)
    if NOT_RUN not in block.text:
        exec(code, {"__name__": "example"})


def test_every_block_runs_or_is_read_or_shows_output():
    for block in blocks():
        assert block.kind in RUN_OR_READ | OUTPUT, f"{block}: what is it? Name it after the fence"


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_the_shell_lines_are_shell(block):
    done = subprocess.run(
        ["bash", "-n"], input=block.text, capture_output=True, text=True, check=False
    )
    assert not done.stderr, block


LINES = [(block, words) for block in blocks("sh", "console") for words in commands(block)]


@pytest.mark.parametrize(("block", "words"), LINES, ids=str)
def test_the_command_lines_parse(block, words):
    if words[:1] == ("make",):
        verbs = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(verbs), f"{block}: no such verb: {shlex.join(words)}"
        return
    group = typer.main.get_command(cli.app)
    verb, *rest = words or ("--help",)
    if verb.startswith("--"):
        assert verb in {"--help", "--version"}, block
        return
    assert verb in group.commands, f"{block}: no such command: {verb}"
    if "--help" in rest:
        return
    try:
        context = group.commands[verb].make_context(verb, list(rest))
    except Exception as error:
        pytest.fail(f"{block}: hasten {shlex.join(words)}: {error}")
    named = [pair.partition("=")[0] for pair in context.params.get("lever") or ()]
    named += [*(context.params.get("only") or ()), *(context.params.get("skip") or ())]
    assert set(named) <= set(lever.discover()), f"{block}: no such lever in {named}"


def test_an_option_that_is_none_would_be_noticed():
    group = typer.main.get_command(cli.app)
    with pytest.raises(Exception, match="no-such"):
        group.commands["tune"].make_context("tune", ["--no-such", "train.py"])


def test_every_link_leads_to_a_file():
    for page, _, target in links():
        path, _, mark = unquote(target).partition("#")
        place = (page.parent / path).resolve() if path else page
        where = f"{page.relative_to(ROOT)}: {target}"
        assert place.exists(), f"{where} leads nowhere"
        assert place.is_relative_to(ROOT), f"{where} leads out of the repository"
        if mark and place.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", prose(place), re.MULTILINE)
            assert mark in map(anchor, headings), f"{where}: no such heading"


def test_a_name_that_links_to_a_file_of_code_stands_in_it():
    for page, label, target in links():
        name = re.fullmatch(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`", label)
        if name is None or not target.endswith(".py"):
            continue
        part = name[1].rpartition(".")[2]
        if part not in ("py", Path(target).stem):
            code = (page.parent / target).read_text("utf-8")
            where = f"{page.relative_to(ROOT)}: {label} is not in {target}"
            assert re.search(rf"^\s*(class |def )?{part}\b", code, re.MULTILINE), where


def test_every_test_that_is_named_exists():
    here = Path(__file__).parent
    known = {
        name
        for path in here.rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
    }
    for page in PAGES:
        named = set(re.findall(r"`(test_\w+)`", prose(page)))
        assert named <= known, f"{page.relative_to(ROOT)} names {sorted(named - known)}"


def test_every_decision_has_its_four_parts_and_its_place_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        headings = re.findall(r"^## (.*)$", page.read_text("utf-8"), re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequences", "The test that keeps it"], page
        assert page.read_text("utf-8").startswith(f"# {page.name[:4]}: "), page
        assert f"(decisions/{page.name})" in index, f"{page.name} is not in the index"


def test_no_page_names_a_machine():
    for page in PAGES:
        found = re.search(r"(?<![\w/])/(work|home|root|Users)/\w+", page.read_text("utf-8"))
        assert found is None, f"{page.relative_to(ROOT)}: {found and found[0]}"


def test_the_table_of_levers_is_the_folder_of_levers():
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (\w+) \| ([^|]+) \|$", prose(REFERENCE), re.M)
    known = lever.discover()
    assert [name for name, *_ in rows] == list(known)
    compared = {"step": "step by step", "process": "blocks", "launch": "started anew"}
    for name, effect, how in rows:
        assert effect == known[name].effect, name
        assert compared[known[name].scope] in how, name


def test_every_command_option_and_exit_code_is_told():
    reference = REFERENCE.read_text("utf-8")
    group = typer.main.get_command(cli.app)
    for verb, command in group.commands.items():
        assert f"| `hasten {verb}" in reference, verb
        for parameter in command.params:
            long = [option for option in parameter.opts if option.startswith("--")]
            assert all(f"`{option}" in reference for option in long if option != "--help"), long
    codes = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, HastenError)
    }
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", reference, re.MULTILINE)}
    assert codes <= told


def test_every_caveat_is_told():
    section = prose(REFERENCE).partition("\n## Caveats\n")[2].partition("\n## ")[0]
    told = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)))
    bare = caveats.find(replace(LAPTOP, torch=None), {}, ends_as_one=True)
    known = {check.__name__ for check in caveats._CHECKS} | {caveat.name for caveat in bare}
    assert len(told) == len(set(told))
    assert set(told) == known


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_the_plans_that_are_shown_can_be_read(block, tmp_path):
    path = tmp_path / "hasten.toml"
    path.write_text(block.text, "utf-8")
    assert plan_file.read_plan(path).plan.settings


def test_every_key_of_the_document_is_told():
    page = (ROOT / "docs" / "plan-file.md").read_text("utf-8")
    told = re.findall(r"^\| `(\w+)` \|.*\|.*\|.*\|.*\|$", page, re.MULTILINE)
    assert told == list(document.KEYS)


# ---- the traits of add-a-lever.md


def test_every_trait_is_told():
    page = (ROOT / "docs" / "add-a-lever.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", page, re.MULTILINE)
    told = {name: re.findall(r"`(\w+)`", names) for name, names in rows}
    kinds = [kind for kind in vars(traits).values() if isinstance(kind, type)]
    assert told == {kind.__name__: [item.name for item in fields(kind)] for kind in kinds}
    for kind in kinds:
        described = re.findall(r"^    (\w+): ", inspect.getdoc(kind), re.MULTILINE)
        assert described == told[kind.__name__]


# ---- the lever of add-a-lever.md


class FakeTraining:
    """A training that has begun: what settles at its start settles at once."""

    def __init__(self):
        self.undone = False

    def on_training(self, apply):
        undo = apply()

        def undo_it():
            self.undone = True
            if undo is not None:
                undo()

        return undo_it


@pytest.fixture
def example():
    page = ROOT / "docs" / "add-a-lever.md"
    text = next(b.text for b in blocks("python") if b.page == page and "LEVER = " in b.text)
    module = ModuleType("gc_freeze")
    exec(compile(text, str(page), "exec", dont_inherit=True), vars(module))
    return module


def test_the_example_lever_is_a_lever(example):
    found = example.LEVER
    assert isinstance(found, Lever)
    text = (ROOT / "docs" / "add-a-lever.md").read_text("utf-8")
    assert f"`src/hasten/levers/{found.name}.py`" in text
    assert found.name not in lever.discover()
    card = inspect.cleandoc(example.__doc__)
    assert card.startswith(f"{found.name}: ")
    for part in ("Helps: ", "Hurts: ", "Maths: ", "Source: https://"):
        assert f"\n{part}" in card
    assert f"Maths: {found.effect}" in card
    assert found.phases <= set(Phase)
    assert found.gain_ratio > 1


@pytest.mark.parametrize("machine", [LAPTOP, SERVER], ids=["laptop", "server"])
def test_the_example_lever_keeps_the_contract_in_the_parent(example, machine, monkeypatch):
    found = example.LEVER
    for scene in (
        ScriptContext(machine=machine),
        ScriptContext(machine=machine, baseline=sample_profile()),
    ):
        for setting in found.settings(scene):
            assert found.snippet(setting).strip()
            assert found.cycle_count(setting) >= 1
            assert found.env({"A": "b"}, setting) == {"A": "b"}
            assert found.promising(scene) in (True, False)
    candidate = search.Candidate(
        lever=found.name, phases=found.phases, settings=found.settings(scene),
        gain_ratio=found.gain_ratio, scope=found.scope, effect=found.effect,
    )  # fmt: skip
    kept, _ = search.bounds([candidate], sample_profile(), least_ratio=0.02)
    assert [one.lever for one in kept] == [candidate.lever]
    _, skipped = search.bounds(
        [replace(candidate, phases=frozenset())], scene.baseline, least_ratio=0.1
    )
    assert skipped[0].outcome == "skipped"
    frozen = replace(scene, traits=Traits(collector=CollectorTraits(frozen_count=9)))
    assert found.settings(frozen) == ()
    assert found.why_not(frozen)
    assert not found.why_not(frozen).endswith(".")


def test_the_example_lever_and_its_undo_leave_things_as_they_were(example):
    gc.unfreeze()
    training = FakeTraining()
    undo = example.LEVER.apply(training, True)
    assert gc.get_freeze_count() > 0
    undo()
    assert training.undone
    assert gc.get_freeze_count() == 0
