"""The programs that no user starts, benchmarks and the corpus, run: renames reach them, too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.child

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(
    path.relative_to(ROOT)
    for path in [*(ROOT / "benchmarks").glob("*.py"), ROOT / "tests/corpus/runner.py"]
    if "ArgumentParser" in path.read_text()
)


ASK = """
import runpy, sys
sys.argv[1:] = ["--help"]
for program in sys.stdin.read().split():
    sys.path.insert(0, program.rpartition("/")[0])
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        print(program, ended.code)
    del sys.path[0]
"""


def started(*words, given=None):
    argv = [sys.executable, *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests/torchvision_ops")}  # as the Makefile does
    return subprocess.run(
        argv, cwd=ROOT, env=env, input=given, capture_output=True, text=True, check=False
    )


def test_each_program_says_what_it_takes() -> None:
    done = started("-c", ASK, given=" ".join(map(str, PROGRAMS)))
    assert (done.returncode, done.stderr) == (0, "")
    said = [f"{program} 0" for program in PROGRAMS]
    assert [line for line in done.stdout.splitlines() if line in said] == said
    assert done.stdout.count("usage:") == len(PROGRAMS)


@pytest.mark.slow
def test_the_corpus_writes_its_table(tmp_path) -> None:
    table = tmp_path / "table.md"
    words = ["ordinary/labels_in_a_table", "--set", "malloc_retention=true", "--table", table]
    done = started("tests/corpus/runner.py", *words)
    assert done.returncode == 0, done.stderr
    assert "1 scripts, 1 comparisons, 0 differ" in done.stdout
    assert "labels_in_a_table" in table.read_text()


@pytest.mark.slow
def test_the_loader_benchmark_writes_its_page(tmp_path) -> None:
    words = ["--quick", "--no-peers", "--only", "rows", "--out", tmp_path]
    done = started("benchmarks/loader.py", *words)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "loader.json").read_text())["cases"]
    assert row["failed"] is None
    assert "rows" in (tmp_path / "loader.md").read_text()
