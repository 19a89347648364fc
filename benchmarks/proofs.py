"""Ask the engine's own proof what may be done with datasets of public repositories.

    python benchmarks/proofs.py CHECKOUTS

`proofs.json` names the classes; `CHECKOUTS/OWNER/NAME` is each repository at its commit. Each
is copied unmodified into a scratch folder beside made data, and a plain training script is
written there: a DataLoader without workers, two passes. The script is run under `hasten
run` with the data levers, where a witness records what the engine's proof says. If the proof
holds, it also runs plainly, and the batches and random states of both runs are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures import machine_line
from proofs_page import name_of, page

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))
from warm_python import served  # noqa: E402

CLASSES = HERE / "proofs.json"
RESULTS = HERE / "proofs-results.json"
BEFORE = HERE / "proofs-before.json"
WITNESS = HERE / "witness"
LIMIT_S = 300.0
LEVERS = ["--set", "loader_workers=2", "--set", "sample_cache=1GiB"]
_ERROR = re.compile(r"[A-Za-z_.]+(Error|Exception|Exit)\b")
SCRIPT = """\
import hashlib
import random

import numpy as np
import torch
from torch.utils.data import DataLoader

{lines}


def digest(value):
    if isinstance(value, dict):
        return [(key, digest(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return [digest(one) for one in value]
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return str(value.dtype), hashlib.sha256(np.asarray(value).tobytes()).hexdigest()
    return repr(value)


def main():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    loader = DataLoader(dataset, batch_size={size}, shuffle=True, num_workers=0{collate})
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range({passes}):
        {before}
        for batch in loader:
            print("batch", hashlib.sha256(repr(digest(batch)).encode()).hexdigest())
            optimizer.zero_grad()
            loss = model(torch.ones(4, 1)).square().mean()
            loss.backward()
            optimizer.step()
        print("states", random.random(), np.random.rand(), torch.rand(1).item())


if __name__ == "__main__":
    main()
"""


def script_of(entry: dict[str, Any]) -> str:
    """Return an ordinary training script that uses a dataset."""
    return SCRIPT.format(
        lines="\n".join(entry["script"]),
        size=entry.get("batch", 4),
        passes=entry.get("passes", 2),
        collate=f", collate_fn={entry['collate']}" if "collate" in entry else "",
        before=entry.get("before", "pass"),
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last error that a process printed."""
    lines = done.stderr.strip().splitlines() or ["nothing was said"]
    return next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1])


def run(words: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder of copied sources."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name, value in more.items():
        inherited = environment.get(name) if name == "PYTHONPATH" else None
        environment[name] = os.pathsep.join(filter(None, (value, inherited)))
    return subprocess.run(
        words, cwd=folder, check=False, timeout=LIMIT_S, capture_output=True, text=True,
        env=environment,
    )  # fmt: skip


def hashes(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what a script printed about its batches and random states."""
    lines = done.stdout.splitlines()
    return [line for line in lines if line.startswith(("batch ", "states "))]


def judge(entry: dict[str, Any], checkouts: Path, scratch: Path, python: str) -> dict[str, Any]:
    """Return what is proved about one dataset, or why it does not run."""
    home = scratch / "code"
    shutil.copytree(checkouts / entry["repo"], home, ignore=shutil.ignore_patterns(".git"))
    folder = (home / entry["file"]).parent if entry.get("beside") else home
    head = ["import sys", f"sys.path.append({str(HERE)!r})", "from proofs_data import *"]
    (folder / "hasten_data.py").write_text("\n".join([*head, *entry["data"]]))
    (folder / "hasten_train.py").write_text(script_of(entry))
    made = run([python, "hasten_data.py"], folder)
    if made.returncode:
        return {"error": f"the data could not be made: {last_line(made)}"}
    witness = scratch / "witness.jsonl"
    levers = run(
        [sys.executable, "-m", "hasten", "run", *LEVERS, "--", python, "hasten_train.py"],
        folder, PYTHONPATH=str(WITNESS), WITNESS_OUT=str(witness),
    )  # fmt: skip
    proofs = (
        [json.loads(line) for line in witness.read_text().splitlines()] if witness.exists() else []
    )
    if levers.returncode or not proofs:
        said = last_line(levers).replace(f"{home}/", "")
        return {"error": re.sub(r"/\S+site-packages/", "", said)}
    first = proofs[0]
    for gap in first["gaps"]:
        gap[2] = gap[2].replace(f"{home}/", "").rpartition("site-packages/")[2]
    if first["whole"]:
        plain = run([python, "hasten_train.py"], folder, PYTHONPATH=str(WITNESS))
        first["same"] = not plain.returncode and hashes(plain) == hashes(levers)
    said = [line for line in levers.stderr.splitlines() if line.startswith("hasten")]
    return {**first, "said": [one.replace(f"{home}/", "") for one in said]}


def main() -> None:
    """Judge the classes that have not been judged yet, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkouts", type=Path, help="folder of OWNER/NAME checkouts")
    parser.add_argument("--only", help="a part of the names of those to judge anew")
    asked = parser.parse_args()
    entries = json.loads(CLASSES.read_text())
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    warm = {**os.environ, "PYTHONPATH": str(WITNESS)}
    with served(warm, "torch", "torch._dynamo", "torchvision", "pandas") as python:
        for entry in entries:
            name = name_of(entry)
            if name in known and not (asked.only and asked.only in name):
                continue
            with tempfile.TemporaryDirectory() as scratch:
                known[name] = judge(entry, asked.checkouts.resolve(), Path(scratch), python)
            print(name, json.dumps(known[name]), flush=True)
            RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    machine = machine_line(("torch", "torchvision", "numpy", "pandas"))
    (HERE / "proofs.md").write_text(page(entries, known, json.loads(BEFORE.read_text()), machine))


if __name__ == "__main__":
    main()
