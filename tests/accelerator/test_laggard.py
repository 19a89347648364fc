"""The accelerator for tests: it computes what the CPU does, and what is read too early is wrong."""

import time

import laggard
import pytest
import torch
from torch import nn

LATE_US = 30_000


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.out = nn.LSTM(24, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.cells(x.flatten(2).reshape(len(x), -1, 24).transpose(0, 1))[0][-1])


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    )


def trained(make, device):
    torch.manual_seed(1)
    net = make().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for _ in range(6):
        x, y = torch.randn(8, 3, 8, 8), torch.randint(0, 4, (8,))
        if device != "cpu":
            x, y = (t.pin_memory().to(device, non_blocking=True) for t in (x, y))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return {name: value.cpu() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("late_us", [0, 200])
@pytest.mark.parametrize("make", [convolutional, Recurrent])
def test_a_training_is_that_of_the_cpu(make, late_us) -> None:
    laggard.configure(kernel_us=late_us, copy_us=late_us)
    before = laggard.counts()
    found = trained(make, "laggard")
    for name, value in trained(make, "cpu").items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)
    assert (laggard.counts()["late_kernels"] > before["late_kernels"]) == bool(late_us)


def late_copy():
    laggard.configure(copy_us=LATE_US)
    stream = torch.Stream(device="laggard")
    with stream:
        copied = torch.arange(1000.0).pin_memory().to("laggard", non_blocking=True)
        event = stream.record_event()
    return copied, event


def test_a_copy_on_another_stream_has_to_be_waited_for() -> None:
    copied, event = late_copy()
    assert not (copied + 0).cpu().equal(torch.arange(1000.0)), "read before it has come"
    copied, event = late_copy()
    torch.accelerator.current_stream().wait_event(event)
    assert (copied + 0).cpu().equal(torch.arange(1000.0))


def test_memory_that_another_stream_reads_has_to_be_recorded() -> None:
    def read_late(*, recorded):
        laggard.configure(kernel_us=LATE_US)
        numbers = torch.ones(1000, device="laggard")
        torch.accelerator.synchronize()
        stream = torch.Stream(device="laggard")
        with stream:
            result = numbers * 2
        if recorded:
            numbers.record_stream(stream)
        del numbers
        stream.synchronize()
        return result.cpu().equal(torch.full((1000,), 2.0))

    assert read_late(recorded=True)
    assert not read_late(recorded=False)


def test_what_comes_back_without_waiting_is_not_there_yet() -> None:
    laggard.configure(copy_us=LATE_US)
    back = torch.zeros(1000).pin_memory()
    back.copy_(torch.ones(1000, device="laggard"), non_blocking=True)
    assert back.sum() == 0
    torch.accelerator.synchronize()
    assert back.sum() == 1000


def test_kernels_take_their_time_on_the_stream_and_not_on_the_host() -> None:
    laggard.configure(kernel_us=LATE_US)
    begin, end = (torch.Event(device="laggard", enable_timing=True) for _ in range(2))
    x = torch.ones(10, device="laggard")
    torch.accelerator.synchronize()
    begun_s = time.monotonic()
    begin.record()
    for _ in range(5):
        x = x * 2
    end.record()
    host_s = time.monotonic() - begun_s
    end.synchronize()
    assert host_s < 5 * LATE_US * 1e-6 / 2
    assert begin.elapsed_time(end) >= 5 * LATE_US * 1e-3


def test_memory_is_counted_and_ends() -> None:
    before = torch.accelerator.memory_allocated()
    held = torch.empty(1 << 20, device="laggard")
    assert torch.accelerator.memory_allocated() - before == held.nbytes
    laggard.configure(memory_bytes=before + 2 * held.nbytes)
    with pytest.raises(torch.OutOfMemoryError, match="laggard out of memory"):
        torch.empty(1 << 21, device="laggard")
