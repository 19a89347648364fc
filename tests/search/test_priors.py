"""The record of each lever is what the committed benchmarks say."""

import importlib.util
import json
import sys
import tomllib
from math import log
from pathlib import Path

import pytest

import upshift.search

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("priors", ROOT / "benchmarks" / "priors.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "priors", module)
    spec.loader.exec_module(module)
    return module


def test_the_committed_file_is_made_of_the_committed_records(script) -> None:
    committed = Path(upshift.search.__file__).with_name("priors.toml")
    made = script.render(ROOT / "benchmarks")
    assert committed.read_text() == made, "run `python benchmarks/priors.py`"
    assert all(entry["from"] for entry in tomllib.loads(made)["lever"].values())


def records(folder, *, cases=(), table="", tunings=None):
    (folder / "loader.json").write_text(json.dumps({"cases": list(cases)}))
    (folder / "first-light.md").write_text(table)
    if tunings is not None:
        (folder / "tunings.json").write_text(json.dumps(tunings))


def test_levers_that_were_pulled_together_share_a_gain_evenly(script, tmp_path) -> None:
    table = "| CNN (a/b) | one=True, two=4 | 1.44x [1.30, 1.50] | exact |\n"
    records(tmp_path, table=table)
    found = {record.lever: record for record in script.read_records(tmp_path)}
    assert found.keys() == {"one", "two"}
    assert found["one"].log_gain == pytest.approx(log(1.2))
    assert found["one"].source == "first-light.md: CNN"


def test_a_case_counts_by_its_interval_and_by_what_was_timed(script, tmp_path) -> None:
    cases = [
        {"case": "x", "what": "rows: time in the loader", "levers": ["a=1"], "failed": None,
         "ratio": {"low": 2.0, "mid": 3.0}},
        {"case": "y", "what": "draws: end to end", "levers": ["a=1"], "failed": None,
         "ratio": {"low": 0.6, "mid": 0.7}},
    ]  # fmt: skip
    records(tmp_path, cases=cases)
    entry = tomllib.loads(script.render(tmp_path))["lever"]["a"]
    assert (entry["script_count"], entry["helped_count"]) == (2, 1)
    assert entry["phase_log_gain"] == pytest.approx(log(3.0), abs=1e-3)
    assert "step_log_gain" not in entry


def test_the_rows_of_a_tuning_count_wherever_it_stands(script, tmp_path) -> None:
    rows = [
        {"lever": "a", "verdict": "kept", "speedup": {"low": 1.1, "mid": 1.2, "high": 1.3}},
        {"lever": "b", "verdict": "dropped", "speedup": {"low": 0.9, "mid": 1.0, "high": 1.1}},
        {"lever": "c", "verdict": "skipped", "speedup": None},
    ]
    document = {
        "schema": 1, "workload": {"argv": ["train.py"]}, "plan": {}, "baseline": {}, "levers": rows,
    }  # fmt: skip
    records(tmp_path, tunings={"runs": [document, document]})
    found = tomllib.loads(script.render(tmp_path))["lever"]
    assert found.keys() == {"a", "b"}
    assert (found["a"]["script_count"], found["a"]["helped_count"]) == (2, 2)
    assert (found["b"]["script_count"], found["b"]["helped_count"]) == (2, 0)
    assert script.render(tmp_path) == script.render(tmp_path)
