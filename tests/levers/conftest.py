"""What the tests of the levers share: contexts, and a small training that applies them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hasten
from hasten.lever import ScriptContext, discover
from hasten.records import (
    CollectorTraits,
    CompilerTraits,
    LoaderTraits,
    ModelTraits,
    OptimizerTraits,
    PrecisionTraits,
    ProductSpeed,
    Traits,
)
from hasten.testing import LAPTOP, SERVER, sample_profile

TRAITS = {
    "nothing": Traits(),
    "images": Traits(
        model=ModelTraits(has_conv2d=True, dtype="float32", device="cpu"),
        optimizer=OptimizerTraits(name="SGD"),
        loader=LoaderTraits(worker_count=0, is_map_style=True),
        precision=PrecisionTraits(
            matmul="highest", bf16=ProductSpeed(matmul_ratio=1.9, conv_ratio=1.4),
            inside=ProductSpeed(matmul_ratio=1.6),
        ),
        thread_count=4,
    ),
    "text": Traits(
        model=ModelTraits(dtype="bfloat16", device="cuda"),
        optimizer=OptimizerTraits(name="AdamW", is_fused=True),
        loader=LoaderTraits(worker_count=2, is_map_style=False),
        thread_count=64,
    ),
    "dropout": Traits(
        optimizer=OptimizerTraits(name="SGD"),
        loader=LoaderTraits(worker_count=0, is_map_style=True, draws=True),
        loop_draws=True, thread_count=4,
    ),
    "by hand": Traits(thread_count=1),
    "compiler": Traits(
        model=ModelTraits(parameter_count=1000), compiler=CompilerTraits(cxx="g++"),
    ),
    "kept": Traits(
        optimizer=OptimizerTraits(name="RMSprop"),
        loader=LoaderTraits(worker_count=2, is_map_style=True, is_persistent=True),
        thread_count=16,
    ),
    "many objects": Traits(collector=CollectorTraits(step_s=0.02, threshold_count=700)),
    "decayed": Traits(denormal_ratio=0.02, huge_pages="madvise"),
    "keeping": Traits(
        model=ModelTraits(parameter_count=20_000_000), compiler=CompilerTraits(cxx="g++"),
        optimizer=OptimizerTraits(name="RMSprop"), idle_clip_ratio=0.9,
    ),
    "clipping": Traits(
        optimizer=OptimizerTraits(name="Adam", is_foreach=True), idle_clip_ratio=0.0,
    ),
}  # fmt: skip

HEAD = r"""
import hashlib, json
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from hasten.instrument import Watch
from hasten.child import AppliedLevers

torch.set_num_threads(1)
facts = {}


class Net(nn.Module):
    keeps = True

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.point, self.head = nn.Conv2d(6, 4, 1), nn.Linear(4, 3)

    def forward(self, x):
        h = self.point(self.norm(self.conv(x)).relu())
        if self.keeps:
            self.seen = h
        return self.head(h.mean((2, 3)))


def hashed(value):
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()[:12]
    if isinstance(value, dict):
        return [[str(name), hashed(part)] for name, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [hashed(part) for part in value]
    return repr(value)


def flags(groups):
    return [[group.get("fused"), group.get("foreach")] for group in groups]


STEPPED = {}


def under(optimizer):  # the flags of its last step, before any hook gave them back
    return STEPPED[id(optimizer)]


def note(optimizer):
    STEPPED[id(optimizer)] = flags(optimizer.param_groups)


torch.optim.Optimizer._optimizer_step_code = note


class Run:
    def __init__(self, make=lambda p: torch.optim.Adam(p, lr=0.01), measuring=True):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.watch = Watch(measuring=measuring)
        self.watch.live.assumed = frozenset({"dataset-unchanged"})  # these programs have no file
        self.applied = AppliedLevers(self.watch.live)
        self.watch.install()
        data = TensorDataset(torch.randn(32, 3, 8, 8), torch.randint(0, 3, (32,)))
        self.loader = DataLoader(data, batch_size=4, shuffle=True)
        self.net = Net()
        self.optimizer = make(self.net.parameters())

    def train(self, at=lambda step: None, count=12):
        step = 0
        while step < count:
            for x, y in self.loader:
                at(step)
                if step == count:
                    break
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.net(x), y).backward()
                self.optimizer.step()
                step += 1
        return self

    def close(self):
        self.applied.switch({})
        self.watch.detach()
        return self

    def bits(self):
        states = self.net.state_dict(), self.optimizer.state_dict()
        return [hashed(states), hashed(torch.get_rng_state())]

    def shape(self):
        tensors = [*self.net.parameters(), *self.net.buffers()]
        tensors += [p.grad for p in self.net.parameters()]
        for state in self.optimizer.state.values():
            tensors += [v for v in state.values() if isinstance(v, torch.Tensor)]
        flags = [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]
        return {
            "objects": [id(t) for t in tensors],
            "strides": [t.stride() for t in tensors],
            "types": [str(t.dtype) for t in tensors],
            "flags": repr(flags),
            "threads": torch.get_num_threads(),
        }
"""


@pytest.fixture(scope="session", autouse=True)
def libraries(tmp_path_factory):
    """Put native libraries where levers look for them: the first bytes, which nobody loads."""
    folder = tmp_path_factory.mktemp("conda") / "lib"
    folder.mkdir()
    for name in ("libjemalloc.so.2", "libtcmalloc.so.4", "libiomp5.so"):
        (folder / name).write_bytes(Path(sys.executable).read_bytes()[:64])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONDA_PREFIX", str(folder.parent))
        yield


@pytest.fixture
def run_under(tmp_path):
    """Run a script by `hasten run`, in a folder of its own, under a lever; return how it ended."""

    def run(lever, source, *words):
        (tmp_path / "train.py").write_text(source)
        command = ["-m", "hasten", "run", "--set", lever, "train.py", *words]
        env = {
            "PYTHONPATH": str(Path(hasten.__file__).parents[1]), "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def training(gathered):
    """Run a program after HEAD and return the `facts` that it gathered; see `gathered`."""
    return lambda program, **limits: gathered(f"{HEAD}\n{program}", **limits)


@pytest.fixture(scope="session")
def scenes() -> dict[str, ScriptContext]:
    """Machines and scripts of many kinds."""
    return {
        f"{name}, {kind}{', profiled' if profile else ''}": ScriptContext(
            machine=machine, baseline=profile, traits=traits
        )
        for name, machine in (("laptop", LAPTOP), ("server", SERVER))
        for kind, traits in TRAITS.items()
        for profile in (None, sample_profile())
    }


@pytest.fixture(params=sorted(discover()))
def lever(request):
    """Every lever that is installed."""
    return discover()[request.param]
