"""A process whose graph is in torch's cache compiles nothing, and asks nothing twice."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from hasten.root_calls import graph

SCRIPT = """
import json, sys
started = []
sys.addaudithook(lambda event, args: event == "subprocess.Popen" and started.append(args[1]))
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(34, 8))
loader = torch.utils.data.DataLoader(data, batch_size=4)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
graphs = []
for epoch in range(4):
    model.train()
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(torch.randn(5, 8))
    seen = torch._dynamo.utils.counters
    graphs.append(seen["stats"]["unique_graphs"])
print(json.dumps({
    "graphs": graphs,
    "aot": seen["aot_autograd"],
    "inductor": seen["inductor"],
    "started": [command if isinstance(command, str) else " ".join(command) for command in started],
}))
"""
LEVER = ("-m", "hasten", "run", "--set", "torch_compile=default", "train.py")
ASKED = ("--version", " -v")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train under the lever, all with one cache; a first run has filled it."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.py").write_text(SCRIPT)
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}

    def train():
        done = subprocess.run(
            [sys.executable, *LEVER], cwd=folder, env=env, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert not done.stderr
        return json.loads(done.stdout)

    train.cache, train.first = folder / "cache", train()
    return train


def is_compiled(facts) -> bool:
    """Whether one graph serves all full batches of all passes, and nothing else is compiled."""
    return facts["graphs"] == [0, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.child
def test_a_second_run_compiles_nothing_and_starts_no_process_for_it(trained) -> None:
    assert is_compiled(trained.first)
    assert trained.first["inductor"]["fxgraph_cache_miss"] == 2
    facts = trained()
    assert is_compiled(facts)
    assert facts["aot"]["autograd_cache_hit"] == facts["aot"]["total"] == 1
    assert "fxgraph_cache_miss" not in facts["inductor"]
    assert all(command.endswith(ASKED) for command in facts["started"]), facts["started"]


@pytest.mark.slow
@pytest.mark.child
@pytest.mark.parametrize(("names", "content"), [("*.main.so", ""), ("*.py", "(")])
def test_a_file_that_does_not_load_is_compiled_again(trained, names, content) -> None:
    broken = list(trained.cache.rglob(names))
    assert len(broken) >= 2  # forward and backward
    for path in broken:
        path.write_text(content)
    assert is_compiled(trained())
    assert not any(path.read_bytes() == content.encode() for path in broken)


def test_only_a_probe_that_succeeded_is_not_made_again(tmp_path, monkeypatch) -> None:
    from torch._inductor import cpu_vec_isa

    asked = []

    def check_build(self, code) -> bool:
        asked.append(code)
        return code == "works"

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
    for compiler, again in (("g++ 13", ["works"]), ("g++ 13", []), ("g++ 14", ["works"])):
        told = f"{compiler} {{}}".format
        monkeypatch.setattr(cpu_vec_isa, "_get_isa_dry_compile_fingerprint", told)
        with graph._remembered_probes(str(tmp_path)):
            isa = cpu_vec_isa.VecAVX2()
            assert [isa.check_build("works"), isa.check_build("fails")] == [True, False]
        assert asked == [*again, "fails"]
        asked.clear()
    assert cpu_vec_isa.VecISA.check_build is check_build
