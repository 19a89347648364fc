"""The record of each lever is what the committed benchmarks say."""

import importlib.util
import json
import sys
import tomllib
from math import log
from pathlib import Path

import pytest

import hasten.search

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("priors", ROOT / "benchmarks" / "priors.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "priors", module)
    spec.loader.exec_module(module)
    return module


def test_the_committed_file_is_made_of_the_committed_records(script) -> None:
    committed = Path(hasten.search.__file__).with_name("priors.toml")
    made = script.render(ROOT / "benchmarks")
    assert committed.read_text() == made, "run `python benchmarks/priors.py`"
    assert all(entry["from"] for entry in tomllib.loads(made)["lever"].values())


def test_no_script_that_is_reported_is_a_prior(script) -> None:
    names = {"public.json", "made.json"}
    reported = [json.loads((ROOT / "benchmarks" / name).read_text()) for name in names]
    told = {word for entries in reported for e in entries for word in (e["name"], e.get("folder"))}
    for record in script.read_records(ROOT / "benchmarks"):
        assert not any(word and word in record.source for word in told), record.source


def records(folder, *, cases=(), tunings=None):
    (folder / "priors-loader.json").write_text(json.dumps({"cases": list(cases)}))
    if tunings is not None:
        (folder / "priors.json").write_text(json.dumps(tunings))


def test_levers_that_were_applied_together_share_a_gain_evenly(script, tmp_path) -> None:
    case = {"case": "x", "what": "end to end", "levers": ["one=True", "two=4"], "failed": None,
            "ratio": {"low": 1.3, "mid": 1.44}}  # fmt: skip
    records(tmp_path, cases=[case])
    found = {record.lever: record for record in script.read_records(tmp_path)}
    assert found.keys() == {"one", "two"}
    assert found["one"].log_gain == pytest.approx(log(1.2))
    assert found["one"].source == "priors-loader.json: x"


def test_a_case_counts_by_its_interval(script, tmp_path) -> None:
    cases = [
        {"case": "x", "what": "rows: time in the loader", "levers": ["a=1"], "failed": None,
         "ratio": {"low": 2.0, "mid": 3.0}},
        {"case": "y", "what": "draws: end to end", "levers": ["a=1"], "failed": None,
         "ratio": {"low": 0.6, "mid": 0.7}},
    ]  # fmt: skip
    records(tmp_path, cases=cases)
    entry = tomllib.loads(script.render(tmp_path))["lever"]["a"]
    assert (entry["script_count"], entry["helped_count"]) == (2, 1)
    assert entry["log_gain"] == pytest.approx(log(3.0), abs=1e-3)


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
