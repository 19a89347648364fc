"""Made cases and made devices; real ones are in tests/accelerator."""

from types import SimpleNamespace

import pytest
import torch

from hasten.diagnose import Case, discover
from hasten.instrument import accelerators, processes
from hasten.instrument.examine.copies import Copies
from hasten.instrument.ledger import INDEX
from hasten.instrument.watch import Watch
from hasten.records import Phase, Step
from hasten.testing import sample_profile

STEPS_COUNT, STEP_S = 10, 0.1
MIB = 1 << 20
PROFILE = sample_profile({Phase.FORWARD: STEP_S}, step_count=STEPS_COUNT)
LINE = ("/home/train.py", 9)


@pytest.fixture
def told(machine_of):
    def tell(name, **found):
        case = Case(
            machine=machine_of(4),
            profile=PROFILE,
            found={f"copies.{key}": value for key, value in found.items()},
            steps=(Step(phase_ns={Phase.FORWARD: int(STEP_S * 1e9)}),) * STEPS_COUNT,
        )
        return discover()[name].find(case)

    return tell


def copies(step_s):
    return {"step_s": [step_s] * STEPS_COUNT, "step_bytes": 10.0 * MIB, "lines": [LINE]}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pinned-memory-missing", "pageable"),
        ("blocking-copies", "blocking"),
        ("pinned-memory-useless", "pinning"),
    ],
)
def test_copies_are_told_by_what_they_take(told, name, kind) -> None:
    found = told(name, **{kind: copies(0.02)})
    assert found.share.mid_ratio == pytest.approx(0.2)
    assert "10.0 MiB" in found.message
    assert found.places[0].line == 9
    assert told(name, **{kind: copies(0.001)}) is None
    assert told(name) is None


# ---- the examiner, with a device that is made of time


class Made:
    """Stand for a tensor: it lies somewhere and has a size."""

    def __init__(self, device, *, pinned=False, size=MIB):
        self.is_cpu, self.nbytes, self._pinned = device == "cpu", size, pinned
        self.layout = torch.strided

    def is_pinned(self):
        return self._pinned


@pytest.fixture
def look(monkeypatch):
    """Return what the examiner sees of copies that take the seconds given, one a step."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(accelerators, "in_use", lambda: True)
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def see(tensor, seconds, target="cuda", **kwargs):
        movers = []
        live = SimpleNamespace(on_transfer=lambda move: movers.append(move) or movers.clear)
        before = torch.Tensor.pin_memory
        examiner = Copies(SimpleNamespace(live=live, thread=0))
        for taken_s in seconds:

            def original(tensor, *args, taken_s=taken_s, **kwargs):
                clock[0] += taken_s
                return Made(target)

            movers[0](original, tensor, (target,), kwargs)
            examiner.ended()
        found = examiner.end()
        assert not movers
        assert torch.Tensor.pin_memory is before
        return found

    return see


def test_copies_are_sorted_by_their_memory_and_by_who_waits(look) -> None:
    pageable = look(Made("cpu"), [0.01] * 3, non_blocking=True)
    assert pageable["pageable"]["step_s"] == pytest.approx([0.01] * 3)
    assert pageable["blocking"] is None
    assert pageable["pageable"]["lines"][0][0] == __file__
    blocking = look(Made("cpu", pinned=True), [0.01] * 3)
    assert blocking["pageable"] is None
    assert blocking["blocking"]["step_bytes"] == MIB
    free = look(Made("cpu", pinned=True), [0.01] * 3, non_blocking=True)
    assert (free["pageable"], free["blocking"]) == (None, None)
    inside = look(Made("cpu"), [0.01] * 3, target="cpu")
    assert inside["pageable"] is None


def test_a_copy_is_not_charged_with_the_kernels_before_it(look) -> None:
    seen = look(Made("cpu"), [0.5, 0.01, 0.5])["pageable"]
    assert seen["step_s"] == pytest.approx([0.01] * 3)


@pytest.mark.parametrize(("phase", "is_by_hand"), [(Phase.OTHER, True), (Phase.DATA, False)])
def test_what_a_loader_pins_in_the_thread_of_the_loop_is_not_pinned_by_hand(
    monkeypatch, phase, is_by_hand
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(accelerators, "in_use", lambda: True)
    clock = iter([0.0, 0.01, 1.0, 1.03])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    watch = Watch(measuring=True)
    examiner = Copies(watch)
    watch.ledger.enter(INDEX[phase])
    for _ in range(2):
        torch.ones(1 << 16).pin_memory()
        examiner.ended()
    seen = examiner.end()["pinning"]
    assert (seen and seen["step_s"]) == (
        [pytest.approx(0.01), pytest.approx(0.03)] if is_by_hand else None
    )


def test_nothing_is_touched_and_no_driver_asked_where_no_accelerator_is_used(monkeypatch) -> None:
    def forbidden():
        raise AssertionError("asked the driver")

    monkeypatch.setattr(torch.cuda, "is_available", forbidden)
    monkeypatch.setattr(getattr(torch, "accelerator", torch.cuda), "is_available", forbidden)
    monkeypatch.setattr(accelerators, "in_use", lambda: False)
    before = torch.Tensor.pin_memory
    examiner = Copies(SimpleNamespace())
    assert torch.Tensor.pin_memory is before
    examiner.ended()
    assert not any(examiner.end().values())


def test_shared_and_private_memory_is_read(tmp_path) -> None:
    folder = tmp_path / "proc/7"
    folder.mkdir(parents=True)
    (folder / "smaps_rollup").write_text(
        "5619-7ffc ---p 00000000 00:00 0    [rollup]\n"
        "Shared_Clean:   99 kB\nShared_Dirty:   20 kB\nPrivate_Dirty:   3 kB\n"
    )
    assert processes.mapped(7, root=tmp_path) == (20 * 1024, 3 * 1024)
    assert processes.mapped(8, root=tmp_path) is None


def test_a_copy_to_where_another_tensor_lies_is_timed_and_a_sparse_one_passes() -> None:
    moved = SimpleNamespace(is_cpu=False)
    seen = Copies(Watch(measuring=True))
    for tensor in (torch.ones(4), torch.eye(4).to_sparse()):
        assert seen._moved(lambda *_, **__: moved, tensor, (torch.ones(4),), {}) is moved
    assert len(seen._kinds["pageable"].seen) == 1
    seen.end()
