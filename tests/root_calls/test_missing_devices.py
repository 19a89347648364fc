"""A script that asks for a GPU trains on the CPU to the same bits as one that asks for the CPU."""

import pickle
import subprocess
import sys

import pytest
from tests.conftest import ENVIRONMENT

from hasten.root_calls.missing_devices import replace_missing

torch = pytest.importorskip("torch")
from torch.utils._device import DeviceContext  # noqa: E402

if hasattr(torch, "accelerator") and torch.accelerator.is_available():
    pytest.skip(
        "this machine has an accelerator, and the scripts here need none", allow_module_level=True
    )

SCRIPT = """
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")  # of `set_default_tensor_type`, which is deprecated
GPU = sys.argv[1] == "gpu"
device = torch.device("cuda:0" if GPU else "cpu")
if GPU:
    torch.cuda.set_device(0)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.get_device_name() and torch.cuda.current_device() == 0
    assert not torch.cuda.is_available()
    free_bytes, all_bytes = torch.cuda.mem_get_info(0)
    assert 0 < free_bytes <= all_bytes == torch.cuda.get_device_properties("cuda").total_memory
    assert torch.cuda.get_device_properties(0).multi_processor_count > 0
    assert torch.cuda.get_device_capability(device) < (7, 0)  # none of a GPU's own ways
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    torch.cuda.nvtx.range_push("all")
began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2)) if GPU else (None, None)
side = torch.cuda.Stream() if GPU else None


def of_kind(tensor, name):
    return tensor.type(f"torch.cuda.{name}" if GPU else f"torch.{name}")


def there(tensor, **words):
    return tensor.cuda(**words) if GPU else tensor


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4, device=device))
net = net.cuda() if GPU else net
optimizer = torch.optim.Adam(net.parameters(), 0.05)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
generator: torch.Generator | None = torch.Generator(device=device).manual_seed(4)
assert isinstance(generator, torch.Generator)
assert isinstance(torch.default_generator, torch.Generator)
start = torch.randn(8, generator=generator, device=device)
start += of_kind(torch.LongTensor([1] * 8), "FloatTensor")
if GPU:
    began.record()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.device(0), torch.cuda.stream(side):
        start = start.to(device, non_blocking=True)
    start.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.current_stream().wait_event(side.record_event())
    ended.record()
    ended.synchronize()
    assert isinstance(side, torch.cuda.Stream) and isinstance(ended, torch.cuda.Event)
    assert 0 <= began.elapsed_time(ended) < 60_000 and ended.query()
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    assert torch.zeros(1).dtype is torch.float64
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
print(start.sum().item())
scale = torch.ones(1, device=device) + torch.zeros_like(there(torch.ones(1)), device=device)
for _ in range(3):
    for x, y in DataLoader(data, 16, shuffle=True):
        x = there(x.pin_memory() if GPU else x, non_blocking=True).to(device=device)
        noise = torch.randn(x.shape, device=device) * 0.01 + x.new_zeros(8, device=device)
        loss = nn.functional.cross_entropy(net(x + noise), there(y)) * scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if GPU:
        torch.cuda.synchronize()
    print(loss.item(), x.to(0).device if GPU else "cpu")
torch.save(net.state_dict(), "net.pt")
net.load_state_dict(torch.load("net.pt", map_location=device if GPU else None))
net.load_state_dict(torch.load("net.pt", "cuda" if GPU else "cpu"))
if GPU:
    torch.set_default_device("cuda")
print(torch.zeros(1).device, next(net.parameters()).device)
"""


def ran(folder, *words):
    """Run the script in a folder; return what it printed."""
    (folder / "train.py").write_text(SCRIPT)
    env = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_script_for_a_gpu_trains_on_the_cpu_to_the_same_bits(tmp_path) -> None:
    code, own, _ = ran(tmp_path, "train.py", "cpu")
    assert code == 0
    assert ran(tmp_path, "train.py", "gpu")[0] == 1
    command = ("-m", "hasten", "run", "-q", "--device", "cpu", "train.py", "gpu")
    assert ran(tmp_path, *command) == (0, own, "")


def test_all_is_put_back() -> None:
    owners = (torch, torch.Tensor, torch.cuda, torch.UntypedStorage, DeviceContext)
    before = [dict(vars(owner)) for owner in owners]
    undo = replace_missing("cpu")
    assert torch.zeros(1).cuda().is_cpu
    undo()
    assert [dict(vars(owner)) for owner in owners] == before


def test_a_block_and_a_checkpoint_for_a_gpu_are_here(tmp_path) -> None:
    place = tmp_path / "x.pt"
    torch.save(torch.ones(2), place)
    undo = replace_missing("cpu")
    try:
        with torch.device("cuda"):
            assert torch.nn.Linear(2, 2).weight.is_cpu
        assert torch.load(place, map_location=lambda storage, _: storage.cuda()).is_cpu
        assert pickle.loads(pickle.dumps(torch.load)) is torch.load
    finally:
        undo()
