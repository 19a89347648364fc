"""Every script of the corpus: plain python against `hasten run` under levers.

    python tests/corpus/runner.py                       # all scripts, each with its levers
    python tests/corpus/runner.py loop_state layout/ema # those whose names hold one of these words
    python tests/corpus/runner.py --set loader_workers=2 --set sample_cache=512MiB ordinary
    python tests/corpus/runner.py --assume dataset-unchanged ordinary
    python tests/corpus/runner.py --tune ordinary       # under the plan that `tune` accepts
    python tests/corpus/runner.py --table tests/corpus/README.md

A script runs in a folder of its own, as `train.py` beside `summary.py`. Under levers that claim
equal bits, all that it prints, its exit code and its files must be those of plain python. Under
levers that claim equal sums but for their order, lines of numbers may differ in their last
digits (see `summary.py`), and files in what they hold. Exit code: 0 where all are the same.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import hasten
from hasten.lever import load, names
from hasten.records import Effect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent
SRC = Path(hasten.__file__).parents[1]
_OPERATORS = HERE.parent / "torchvision_ops" / "sitecustomize.py"
Levers = tuple[str, ...]

WORKERS, CACHE = ("loader_workers=2",), ("sample_cache=512MiB",)
EXACT = (
    "batched_fetch=true", "garbage_collector=10", "idle_clip=true", "loader_workers=2",
    "malloc_retention=true", "sample_cache=512MiB",
)  # fmt: skip
# What acts in the process of the script: what that makes twice, or keeps, is not undone.
HERE_ALONE = tuple(one for one in EXACT if one not in WORKERS)
FUSED, LAST = ("fused_optimizer=true",), ("channels_last=true",)
FOREACH, COMPILED = ("foreach_optimizer=true",), ("torch_compile=default",)
UPDATES = (*FUSED, "idle_clip=true")
ROUNDING = (*EXACT, *LAST, *FUSED)
DATA = (WORKERS, ("batched_fetch=true", *CACHE))

# What each script runs under, by its folder, and what it runs under with `--all`, too.
GROUPS: dict[str, Sequence[Levers]] = {
    "loop_state": DATA,
    "item_state": DATA,
    "delivered": DATA,
    "draws": DATA,
    "passes": DATA,
    "workers": (("loader_workers=0",), ("loader_workers=3", "worker_threads=1")),
    "layout": (LAST,),
    "anomalies": (ROUNDING,),
    "collector": (("garbage_collector=10",), ROUNDING),
    "threads": (("intra_op_threads=2",),),
    "compiled": (COMPILED,),
    "updates": (UPDATES, FOREACH),
    "ordinary": (WORKERS, HERE_ALONE, EXACT),
}
MORE: dict[str, Sequence[Levers]] = {
    **dict.fromkeys(
        ("loop_state", "item_state", "delivered", "draws", "passes"), (CACHE, HERE_ALONE, EXACT)
    ),
    "workers": (("loader_workers=3",), ("worker_threads=1",), EXACT),
    "layout": ((*LAST, *FUSED), ROUNDING),
    "compiled": ((*COMPILED, *FUSED),),
    "updates": (FUSED, ("idle_clip=true",), ROUNDING),
    "ordinary": (CACHE, EXACT),
}
# Scripts that depend on how Python starts, and when torch arrives.
FRESH = (
    "ordinary/image_folder", "ordinary/torchvision_folder", "layout/files_have_strides",
    "layout/whole_module_saved", "layout/prune_flatten", "layout/safetensors_file",
    "collector/settings_asked", "collector/collect_by_name", "anomalies/ends_with_an_error",
)  # fmt: skip
# Levers that must act on ordinary scripts, not only leave them as they are.
ACTING: dict[str, Sequence[Levers]] = {
    "ordinary/image_folder": (WORKERS, HERE_ALONE),
    "ordinary/image_folder_flipped": (WORKERS,),
    "ordinary/labels_in_a_table": (WORKERS, HERE_ALONE),
    "ordinary/mapped_array": (WORKERS,),
    "ordinary/table_in_memory": (HERE_ALONE,),
    "ordinary/joined_tables": (HERE_ALONE,),
}

# Weights and losses of these short runs are of order one. One changed bit in a weight comes to
# less than 1e-5 of them at the end; one lost batch, mask or update to more than 1e-2.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4
_LIMIT_S = 180.0
_LOADING = {"batched_fetch", "loader_workers", "sample_cache", "worker_threads"}
_LEVERS = tuple(f"hasten.levers.{name}" for name in names())
_COMMAND_LINE = (
    "hasten.cli",
    "hasten.session",
    "hasten.trials.child_environment",
    "hasten.report.plan_file",
    *_LEVERS,
)
_CHILD = ("hasten.child", "hasten.instrument.watch", "hasten.loader.engine", *_LEVERS)
_WITNESS = """
import os, sys, threading
def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_name == "__getitem__" and code.co_filename.endswith(
        ("train.py", "utils/data/dataset.py", "torchvision/datasets/folder.py")
    ):
        with open(os.environ["WITNESS"], "a") as file:  # one that stays open would be a shared one
            file.write(f"{os.getpid()}\\n")
sys.setprofile(note)
threading.setprofile(note)
"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended.

    Attributes:
        code: its exit code.
        out: what it printed.
        err: what it complained of.
        files: a digest of each file that it left.
        items: how many samples were made, in the first process and in others.
    """

    code: int
    out: str
    err: str
    files: dict[str, str]
    items: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a script under levers.

    Attributes:
        levers: what it ran under.
        difference: where it first left what plain python does; empty where it is the same.
        said: what hasten said of it.
        items: samples made in the first process and in others, plain and under the levers.
    """

    levers: Levers
    difference: str
    said: tuple[str, ...] = ()
    items: tuple[tuple[int, int], tuple[int, int]] | None = None

    @property
    def acted(self) -> bool:
        """Samples were not made as plain python makes them."""
        return self.items is not None and self.items[0] != self.items[1]

    @property
    def assumptions(self) -> list[str]:
        """What the user would have to grant."""
        return sorted(set(re.findall(r"--assume[ =]([\w-]+)", " ".join(self.said))))


@dataclass(frozen=True, kw_only=True)
class Script:
    """One script of the corpus."""

    path: Path

    @property
    def name(self) -> str:
        """Its folder and its name."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def group(self) -> str:
        """Its folder."""
        return self.path.parent.name

    @property
    def text(self) -> str:
        """What it does: the first line of its docstring."""
        return (ast.get_docstring(ast.parse(self.path.read_text())) or "").partition("\n")[0]

    def levers(self, *, every: bool = False) -> list[Levers]:
        """Return what it runs under: those of its folder that are installed."""
        wanted = [*GROUPS[self.group], *(MORE.get(self.group, ()) if every else ())]
        known = set(names())
        found = [tuple(one for one in some if one.partition("=")[0] in known) for some in wanted]
        return [some for some in dict.fromkeys(found) if some]

    @property
    def missing(self) -> str:
        """A package that it needs and that cannot be imported here."""
        for name in re.findall(
            r"^(?:import|from) (torchvision|pandas|PIL)", self.path.read_text(), re.M
        ):
            if not _is_importable(name):
                return name
        return ""


def _is_importable(name: str, known: dict[str, bool] = {}) -> bool:  # noqa: B006
    if name not in known:
        found = subprocess.run(
            [sys.executable, "-c", f"import {name}"], capture_output=True, check=False,
            env=os.environ | {"PYTHONPATH": str(_OPERATORS.parent)},
        )  # fmt: skip
        known[name] = found.returncode == 0
    return known[name]


def scripts(words: Sequence[str] = ()) -> list[Script]:
    """Return the scripts whose names hold one of the words; all of them without words."""
    found = [Script(path=path) for path in sorted(HERE.glob("*/*.py"))]
    return [one for one in found if not words or any(word in one.name for word in words)]


# ---- runs


@dataclass(kw_only=True)
class Runner:
    """Runs scripts, plain and under levers.

    Attributes:
        python: what stands for `python` where its start does not matter; see `warm_python.py`.
        loading: what stands for it under levers that import the data engine anyway.
        hasten: the command line there, and where it does.
        assume: what the user grants.
    """

    python: str
    loading: str
    hasten: Sequence[str] = (sys.executable, "-m", "hasten")
    assume: Sequence[str] = ()
    _plain: dict[Path, Ended] = field(default_factory=dict)

    def plain(self, script: Script) -> Ended:
        """Run under plain python, once."""
        if script.path not in self._plain:
            self._plain[script.path] = self._run(script, [])
        return self._plain[script.path]

    def under(self, script: Script, levers: Levers) -> Outcome:
        """Run under levers that are pulled by hand, and compare."""
        words = [word for lever in levers for word in ("--set", lever)]
        words += [word for one in self.assume for word in ("--assume", one)]
        now = self._run(script, ["run", *words])
        return self._judge(script, levers, now)

    def tuned(self, script: Script, budget: str = "30s") -> Outcome:
        """Tune, run under the plan that is accepted, and compare."""
        with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
            plan = str(Path(folder) / "hasten.toml")
            words = [
                "tune",
                "--budget",
                budget,
                "--numerics",
                "rounding",
                "--plan",
                plan,
                "--quiet",
            ]
            tuned = self._run(script, words, fresh=True)
            if not Path(plan).exists():
                return Outcome(levers=(), difference="", said=(f"no plan ({tuned.code})",))
            levers = _levers_of(Path(plan).read_text())
            now = self._run(script, ["run", "--plan", plan], fresh=True)
        return self._judge(script, levers, now)

    def _judge(self, script: Script, levers: Levers, now: Ended) -> Outcome:
        before = self.plain(script)
        said = tuple(line for line in now.err.splitlines() if "hasten" in line)
        items = None
        if before.items is not None and now.items is not None:
            items = before.items, now.items
        return Outcome(
            levers=levers, difference=difference(before, now, exact=_claims_bits(levers)),
            said=said, items=items,
        )  # fmt: skip

    def _run(self, script: Script, words: Sequence[str], *, fresh: bool = False) -> Ended:
        fresh = fresh or script.name in FRESH
        with tempfile.TemporaryDirectory(prefix="corpus-") as top:
            folder, site = Path(top) / "work", Path(top) / "site"
            folder.mkdir()
            site.mkdir()
            shutil.copy(script.path, folder / "train.py")
            shutil.copy(HERE / "summary.py", folder)
            env = _environment(top)
            if script.group == "ordinary":
                (site / "sitecustomize.py").write_text(_WITNESS + _OPERATORS.read_text())
                env |= {"WITNESS": str(Path(top) / "items"), "PYTHONPATH": f"{SRC}:{site}"}
            if script.group == "compiled":  # torch's compiler keeps its headers there
                env["TMPDIR"] = tempfile.gettempdir()
            pulled = {word.partition("=")[0] for word in words}
            if script.group != "collector" and "garbage_collector" not in pulled:
                env["WARM_PYTHON_FROZEN"] = "1"
            warm = self.loading if _LOADING & pulled else self.python
            start = [sys.executable if fresh else warm, "train.py"]
            command = start
            if words and fresh:
                command = [sys.executable, "-m", "hasten", *words, "train.py"]
            elif words:
                command = [*self.hasten, *words, "--", *start]
            done = _finish(command, folder, env)
            return Ended(
                code=done.returncode, out=done.stdout, err=done.stderr.replace(f"{folder}/", ""),
                files=_digests(folder), items=_items(Path(top) / "items"),
            )  # fmt: skip


def _environment(home: str) -> dict[str, str]:
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": home, "TMPDIR": home, "PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1", "COLUMNS": "300", "PYTHONHASHSEED": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / f"corpus-code-{os.getpid()}"),
    }  # fmt: skip


def _finish(
    command: Sequence[str], folder: Path, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; one that hangs is killed, with all that it started."""
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=_LIMIT_S)
        return subprocess.CompletedProcess(command, process.returncode, out, err)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        out, err = process.communicate()
        return subprocess.CompletedProcess(command, -9, out, f"{err}\nno end after {_LIMIT_S} s")


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _items(path: Path) -> tuple[int, int] | None:
    """Return how many samples the process that made the first one made, and how many others."""
    if not path.exists():
        return None
    pids = path.read_text().split()
    here = pids.count(pids[0]) if pids else 0
    return here, len(pids) - here


def _levers_of(plan: str) -> Levers:
    import tomllib

    found = tomllib.loads(plan).get("plan", {})
    return tuple(f"{name}={value}" for name, value in sorted(found.items()))


# ---- comparisons


def _claims_bits(levers: Levers) -> bool:
    return all(load(one.partition("=")[0]).effect is Effect.EXACT for one in levers)


def difference(before: Ended, now: Ended, *, exact: bool) -> str:
    """Return where a run first differs from plain python; empty where it does not."""
    if before.code != now.code:
        last = (now.err.strip().splitlines() or [""])[-1]
        return f"exit code {before.code}, and now {now.code} ({last[:120]})"
    lines = [_facts(ended.out, exact=exact) for ended in (before, now)]
    for old, new in zip_longest(*lines, fillvalue="(nothing)"):
        if old != new and (exact or not _is_near(old, new)):
            return f"`{old[:60]}`, and now `{new[:60]}`"
    if (exact and before.files != now.files) or before.files.keys() != now.files.keys():
        changed = {key for key, _ in before.files.items() ^ now.files.items()}
        return f"files differ: {', '.join(sorted(changed))}"
    return ""


def _facts(out: str, *, exact: bool) -> list[str]:
    return [line for line in out.splitlines() if exact or not line.startswith("# ")]


def _is_near(old: str, new: str) -> bool:
    if not (old.startswith("~ ") and new.startswith("~ ")):
        return False
    (name, *numbers), (new_name, *new_numbers) = (line[2:].split() for line in (old, new))
    if name != new_name or len(numbers) != len(new_numbers):
        return False
    return all(map(_is_near_number, map(float, numbers), map(float, new_numbers)))


def _is_near_number(old: float, new: float) -> bool:
    if math.isnan(old) or math.isnan(new):
        return math.isnan(old) and math.isnan(new)
    return math.isclose(old, new, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)


# ---- the table


def _cell(outcome: Outcome) -> str:
    parts = [f"**differs**: {outcome.difference}" if outcome.difference else "same"]
    if outcome.items is not None and not outcome.difference:
        (here, there), (here_now, there_now) = outcome.items
        parts.append(f"items made here {here} -> {here_now}, elsewhere {there} -> {there_now}")
    if outcome.assumptions:
        parts.append(f"needs {', '.join(outcome.assumptions)}")
    parts += [line.removeprefix("hasten: ") for line in outcome.said]
    return "; ".join(parts).replace("|", "\\|")


def _label(levers: Levers) -> str:
    known = {
        EXACT: "exact levers", HERE_ALONE: "exact levers without workers",
        ROUNDING: "exact and rounding levers",
    }  # fmt: skip
    return known.get(levers, " ".join(levers) or "nothing")


PAGE = """\
# Scripts that look closely at their own training

{count} scripts in ordinary styles, each of which notices something of how it is run: what a loop
writes between two batches, what an item remembers, where a weight lies in memory. Each runs to its
end under plain python and under each set of levers, and all that it prints and writes is compared:
to the bit where the levers claim equal bits, but for the last digits where they claim equal sums.
{run_count} runs: {differing} differ, {told_count} were told why a lever is left out,
{assuming_count} of these by an assumption that the user may grant.

Written by `python tests/corpus/runner.py --table tests/corpus/README.md`.
"""


def table(found: dict[Script, list[Outcome]]) -> str:
    """Return the outcomes as a page of Markdown: a row for runs of a script that ended alike."""
    every = [one for some in found.values() for one in some]
    page = PAGE.format(
        count=len(found), run_count=len(every), differing=sum(bool(o.difference) for o in every),
        told_count=sum(bool(o.said) for o in every),
        assuming_count=sum(bool(o.assumptions) for o in every),
    )  # fmt: skip
    lines = [page]
    for group in dict.fromkeys(script.group for script in found):
        lines += [
            f"## {group}",
            "",
            "| script | what it does | levers | outcome |",
            "|---|---|---|---|",
        ]
        for script, outcomes in found.items():
            if script.group == group:
                alike: dict[str, list[str]] = {}
                for one in outcomes:
                    alike.setdefault(_cell(one), []).append(_label(one.levers))
                lines += [
                    f"| [{script.path.stem}]({script.name}.py) | {script.text} "
                    f"| {'; '.join(levers)} | {cell} |"
                    for cell, levers in alike.items()
                ]
        lines.append("")
    return "\n".join(lines)


@contextlib.contextmanager
def runner(assume: Sequence[str] = ()) -> Iterator[Runner]:
    """Yield a runner that spares what it can of the starts of Python."""
    if sys.platform != "linux":
        yield Runner(python=sys.executable, loading=sys.executable, assume=assume)
        return
    sys.path.insert(0, str(HERE.parent))
    module = importlib.import_module("warm_python")
    sys.path.pop(0)
    env = _environment(tempfile.gettempdir())
    late = [name for name in ("torchvision", "pandas", "PIL.Image") if _is_importable(name)]
    warm = env | {"PYTHONPATH": f"{SRC}:{_OPERATORS.parent}"}
    with (
        module.served(warm, "torch", "torch._dynamo", *late) as python,
        module.served(warm, "torch", "torch._dynamo", *late, *_CHILD) as loading,
        module.served(env, *_COMMAND_LINE) as other,
    ):
        hasten = [other, "-c", "from hasten.cli import main; main()"]
        try:
            yield Runner(python=python, loading=loading, hasten=hasten, assume=assume)
        finally:
            shutil.rmtree(env["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)


def outcomes(
    running: Runner, script: Script, cases: Sequence[Levers] | None = None
) -> list[Outcome]:
    """Run a script under each of its levers, two runs at a time."""
    with ThreadPoolExecutor(2) as pool:
        running.plain(script)
        return list(pool.map(partial(running.under, script), cases or script.levers()))


def _ask(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="parts of the names of scripts")
    parser.add_argument("--set", action="append", help="one plan of these, not the usual ones")
    parser.add_argument("--all", action="store_true", help="more plans of levers for each script")
    parser.add_argument("--assume", action="append", default=[], help="grant it to each run")
    parser.add_argument("--tune", action="store_true", help="compare under the plan of `tune`")
    parser.add_argument("--budget", default="30s", help="of each tuning")
    parser.add_argument("--table", type=Path, help="write the outcomes as Markdown")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the scripts and print what came of them."""
    asked = _ask(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that it started stays
    found: dict[Script, list[Outcome]] = {}
    with runner(asked.assume) as running:
        for script in scripts(asked.words):
            if script.missing:
                print(f"{script.name}: left out, {script.missing} cannot be imported")
                continue
            if asked.tune:
                found[script] = [running.tuned(script, asked.budget)]
            else:
                cases = [tuple(asked.set)] if asked.set else script.levers(every=asked.all)
                found[script] = outcomes(running, script, cases)
            for one in found[script]:
                print(f"{script.name} [{_label(one.levers)}]: {_cell(one)}", flush=True)
    every = [one for some in found.values() for one in some]
    differing = sum(bool(one.difference) for one in every)
    print(f"{len(found)} scripts, {len(every)} comparisons, {differing} differ")
    if asked.table:
        asked.table.write_text(table(found))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
