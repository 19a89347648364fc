"""Parts of examiners that need no loop: what they count, and that they leave nothing behind."""

import builtins
import gc
import linecache
import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch

from hasten.instrument import accelerators, processes
from hasten.instrument.examine import Examination, operations, processors
from hasten.instrument.examine.bookkeeping import Bookkeeping
from hasten.instrument.examine.faults import fault_s
from hasten.instrument.examine.loops import Loops
from hasten.instrument.examine.shapes import count_padding, padding
from hasten.instrument.examine.waits import Waits
from hasten.instrument.kept_graph import node_count
from hasten.instrument.ledger import INDEX, Ledger
from hasten.instrument.operation_profile import OperationProfile, is_light
from hasten.instrument.operation_timing import OperationMode
from hasten.instrument.probes import ConvolutionShape, speed_ratio
from hasten.instrument.rerun import Rerun
from hasten.instrument.source_lines import OWN, line_of
from hasten.instrument.starts import StartClock
from hasten.instrument.watch import Watch
from hasten.records import Phase


def test_padding_is_the_run_of_one_value_at_the_end() -> None:
    tokens = torch.tensor([[5, 6, 7, 0, 0, 0], [5, 6, 7, 8, 0, 0], [1, 2, 3, 4, 5, 6]])
    assert count_padding(padding(tokens)) == (18, 5, 0)


def test_padding_may_stand_in_front() -> None:
    tokens = torch.tensor([[9, 9, 9, 1, 2], [9, 9, 3, 4, 5]])
    assert count_padding(padding(tokens)) == (10, 5, 4)


def test_a_value_that_also_stands_among_the_others_is_a_category() -> None:
    rows = torch.tensor([[1, 0, 1, 0, 1, 0, 0, 0], [0, 1, 1, 0, 0, 1, 0, 0]] * 2)
    assert count_padding(padding(rows))[1] == 0


def test_rows_without_runs_have_no_padding() -> None:
    tokens = torch.arange(24).reshape(4, 6)
    assert count_padding(padding(tokens)) == (24, 0, 0)


def test_rows_that_end_with_one_mark_have_no_padding() -> None:
    tokens = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 0]])
    assert count_padding(padding(tokens))[1] == 0


def test_a_sum_of_losses_holds_their_graphs() -> None:
    weight = torch.ones(3, requires_grad=True)
    one = weight.sum()
    total = one + weight.sum() + weight.sum()
    assert node_count([total]) > node_count([one]) > 0
    assert node_count([total.detach()]) == 0


def test_a_rerun_leaves_arguments_alone() -> None:
    rerun = Rerun()
    numbers = torch.full((5000,), 1e-40)
    before, version = numbers.clone(), numbers._version
    rerun.try_out("mul_", torch.ops.aten.mul_.Tensor, (numbers, torch.tensor(0.5)), {})
    assert numbers._version == version
    assert torch.equal(numbers, before)


def test_a_rerun_does_not_touch_what_it_does_not_know() -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError

    denormal = torch.full((5000,), 1e-40)
    rerun = Rerun()
    rerun.try_out("native_batch_norm", refuse, (denormal,), {})
    rerun.try_out("mul", refuse, (torch.ones(5000), torch.ones(5000)), {})
    assert rerun.waste_ns == 0


def test_the_mode_sees_operations_and_goes() -> None:
    seen = []

    def ran(operation, args, kwargs):
        seen.append(operation.name())
        return operation(*args, **kwargs)

    mode = OperationMode(ran)
    assert mode.begin()
    assert not OperationMode(ran).begin()
    torch.ones(3).add_(1)
    mode.end()
    torch.ones(3).mul_(2)
    assert "aten::add_.Tensor" in seen
    assert "aten::mul_.Tensor" not in seen


def test_a_product_is_light_by_its_multiplications() -> None:
    narrow, wide = torch.ones(2, 16), torch.ones(512, 512)
    assert is_light("mm", (narrow, torch.ones(16, 16), narrow))
    assert not is_light("mm", (wide, wide, wide))
    assert is_light("add", (narrow,))
    assert not is_light("add", (wide,))


@pytest.mark.parametrize(("most_count", "timed"), [(1000, [2, 4, 6]), (50, [2])])
def test_a_step_of_very_many_operations_is_the_last_one_that_is_timed(
    monkeypatch, most_count, timed
) -> None:
    monkeypatch.setattr(operations, "_MANY_COUNT", most_count)
    nothing = SimpleNamespace(roots=SimpleNamespace(known=()), optimizers=SimpleNamespace(known=()))
    watch = SimpleNamespace(live=nothing, ledger=SimpleNamespace(current=INDEX[Phase.OTHER]))
    examiner = operations.Operations(watch)
    for _ in range(8):
        for _ in range(30):
            torch.ones(3).add_(1)
        examiner.ended()
    assert examiner.end()["steps"] == timed


def test_a_list_of_tensors_is_no_loop() -> None:
    from hasten.instrument.ledger import INDEX
    from hasten.records import Phase

    tally, phase = OperationProfile(floor_ns=1000.0), INDEX[Phase.OPTIMIZER]
    parts = [torch.ones(4) for _ in range(30)]
    tally.note("_foreach_mul_", (parts, 0.9), None, phase, 5000)
    assert not tally.loops
    for part in parts:
        tally.note("mul_", (part, 0.9), part, phase, 5000)
    (loop,) = tally.loops.values()
    assert (loop.count, len(loop.tensors), loop.in_optimizer) == (30, 30, True)


def test_a_batch_that_is_filled_number_by_number_is_no_update() -> None:
    from hasten.instrument.ledger import INDEX
    from hasten.records import Phase

    tally, phase = OperationProfile(floor_ns=1000.0), INDEX[Phase.OTHER]
    for number in torch.zeros(30):
        tally.note("copy_", (number, torch.ones(())), number, phase, 5000)
    assert not tally.loops
    for gradient in torch.zeros(30, 4):  # views of one flat tensor
        tally.note("mul_", (gradient, 0.1), gradient, phase, 5000)
    (loop,) = tally.loops.values()
    assert (loop.count, loop.in_optimizer) == (30, False)


@pytest.mark.parametrize(
    ("name", "phase", "kind"),
    [
        ("mm", Phase.FORWARD, "float64.products"),
        ("add", Phase.LOSS, "float64.others"),
        ("_to_copy", Phase.OTHER, None),  # x = x.float()
        ("copy_", Phase.OTHER, None),
        ("stack", Phase.DATA, None),  # the loader makes a batch
    ],
)
def test_a_batch_that_is_converted_at_once_is_no_float64(name, phase, kind) -> None:
    tally, doubles = OperationProfile(floor_ns=1000.0), torch.ones(4, 4, dtype=torch.float64)
    tally.note(name, (doubles, doubles), doubles, INDEX[phase], 5000)
    found = {key: ns for key, ns in tally.ns.items() if key.startswith("float64")}
    assert found == ({kind: 4000.0} if kind else {})


def test_what_follows_a_backward_pass_is_no_loop_of_the_model() -> None:
    loops, model = Loops(SimpleNamespace()), torch.nn.Linear(2, 2)
    for _ in range(3):
        loops.ended()
    loops.called(model, (), {})
    rows = torch.ones(2)
    for _ in range(12):
        rows = model(rows)
    total = rows.sum()
    total.register_hook(lambda gradient: loops.backward(total))  # torch has taken the mode off
    total.backward()
    for _ in range(20):
        torch.zeros(()).clone()
    (line,) = loops.end()["lines"]
    assert line["turn_count"] == 12
    assert linecache.getline(line["path"], line["line"]).strip() == "rows = model(rows)"
    assert not torch._C._len_torch_function_stack()


def test_a_convolution_is_run_in_both_layouts() -> None:
    options = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    assert speed_ratio(ConvolutionShape((1, 4, 8, 8), (4, 4, 3, 3), torch.float32, options)) > 0


def test_one_channel_has_two_layouts_too(monkeypatch) -> None:
    filled = []
    fill = torch.Tensor.fill_
    monkeypatch.setattr(
        torch.Tensor, "fill_", lambda one, value: filled.append(fill(one, value)) or one
    )
    options = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    speed_ratio(ConvolutionShape((2, 1, 8, 8), (4, 1, 3, 3), torch.float32, options))
    first, last = filled[:2], filled[2:]
    assert [one.stride() for one in first] == [(64, 64, 8, 1), (9, 9, 3, 1)]
    assert [one.stride() for one in last] == [(64, 1, 8, 1), (9, 1, 3, 1)]


def test_lines_are_told_what_their_operations_cost_but_not_in_the_backward_pass() -> None:
    from hasten.instrument.ledger import INDEX
    from hasten.records import Phase

    tally = OperationProfile(floor_ns=1000.0)
    tally.note_costs(700, 0, INDEX[Phase.FORWARD])
    here = __file__, sys._getframe().f_lineno - 1
    tally.note_costs(900, 50, INDEX[Phase.BACKWARD])
    tally.note_costs(0, -5, INDEX[Phase.FORWARD])
    assert tally.faulting == {here: 700}
    assert tally.denormal_ns == {here: 0}


def test_a_fault_takes_some_time() -> None:
    assert 0 <= fault_s() < 1e-3


def test_an_instruction_without_a_line_is_told_as_the_first_of_its_function() -> None:
    code = test_padding_may_stand_in_front.__code__
    assert line_of(SimpleNamespace(f_code=code, f_lineno=None)) == code.co_firstlineno
    assert line_of(SimpleNamespace(f_code=code, f_lineno=7)) == 7


def test_what_children_ran_is_counted_while_they_live_and_after() -> None:
    busy = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    before_s = processes.children_run_s()
    child = subprocess.Popen(
        [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    alive_s = processes.children_run_s() - before_s
    child.communicate(b"\n")
    ended_s = processes.children_run_s() - before_s
    assert 0.25 < alive_s <= ended_s + 0.02
    assert ended_s < 0.8


def test_an_evaluation_between_steps_does_not_count_as_idle_cpus_of_the_steps(monkeypatch) -> None:
    now_s, used = [0.0], [0.0]
    monkeypatch.setattr(processors.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(processors.time, "process_time", lambda: used[0])
    monkeypatch.setattr(processors.processes, "children_run_s", lambda: used[0] / 2)
    monkeypatch.setattr(processors.processes, "busy_s", lambda _: used[0] * 2)
    examiner = processors.Processors(SimpleNamespace())
    for length_s, run_s in [(0.1, 0.2), (0.1, 0.2), (5.0, 0.0), (0.1, 0.2)]:
        now_s[0] += length_s
        used[0] += run_s
        examiner.ended()
    found = examiner.end()
    assert found["wall_s"] == pytest.approx(5.3)
    assert found["steps_wall_s"] == pytest.approx(0.3)
    assert found["steps_own_run_s"] == pytest.approx(0.6)
    assert found["steps_children_run_s"] == pytest.approx(0.3)
    assert found["steps_busy_s"] == pytest.approx(1.2)


def note_marks(monkeypatch):
    """Return the list of ledgers in which a stretch of the same phase begins."""
    marked = []

    def again(ledger):
        marked.append(ledger)

    monkeypatch.setattr(Ledger, "again", again)
    return marked


def test_what_reports_is_put_back(capsys, monkeypatch) -> None:
    watch = Watch(measuring=True)
    told = builtins.print, torch.Tensor.item, "item" in vars(torch.Tensor)
    examiner = Bookkeeping(watch)
    print("loss", torch.ones(()).item())
    examiner.ended()
    marked = note_marks(monkeypatch)
    repr(torch.ones((), device="meta"))
    examiner.ended()
    found = examiner.end()
    assert (builtins.print, torch.Tensor.item, "item" in vars(torch.Tensor)) == told
    assert capsys.readouterr().out == "loss 1.0\n"
    assert found["reports_count"] == 3 / 2
    assert [spent_s > 0 for spent_s in found["reporting_s"]] == [True, False]
    assert [spent_s > 0 for spent_s in found["waiting_s"]] == [False, True]
    assert marked == [watch.ledger]
    assert found["places"][0][0] == __file__


@pytest.mark.parametrize(
    ("act", "only_reads"),
    [(lambda: torch.ones(()).item(), True), (lambda: print(torch.ones(()).item()), False)],
)
def test_a_line_that_only_reads_is_told_from_one_that_reports(act, only_reads) -> None:
    examiner = Bookkeeping(Watch(measuring=True))
    act()
    examiner.ended()
    assert examiner.end()["only_reads"] is only_reads


def test_what_a_model_reads_in_its_forward_pass_is_no_report(capsys) -> None:
    watch = Watch(measuring=True)
    examiner = Bookkeeping(watch)
    watch.ledger.enter(INDEX[Phase.FORWARD])
    value = torch.ones(()).item()
    watch.ledger.leave()
    examiner.ended()
    watch.ledger.enter(INDEX[Phase.FORWARD])
    print(value)
    watch.ledger.leave()
    examiner.ended()
    found = examiner.end()
    assert [spent_s > 0 for spent_s in found["reporting_s"]] == [False, True]
    assert not any(found["waiting_s"])


def test_waits_for_a_device_are_timed_outside_of_evaluations_and_our_own(monkeypatch) -> None:
    monkeypatch.setattr(accelerators, "in_use", lambda: True)
    watch, before, marked = Watch(measuring=True), torch.cuda.empty_cache, note_marks(monkeypatch)
    watch.ledger.loop_begins()
    examiner = Waits(watch)
    torch.cuda.empty_cache()
    examiner.ended()
    watch.tracker.evaluating = True
    torch.cuda.empty_cache()
    watch.tracker.evaluating = False
    watch.ledger.enter(INDEX[Phase.CHECKPOINT])
    torch.cuda.empty_cache()
    watch.ledger.leave()
    exec(compile("torch.cuda.empty_cache()", f"{OWN}ours.py", "exec"), {"torch": torch})
    examiner.ended()
    found = examiner.end()
    assert torch.cuda.empty_cache is before
    assert [spent_s > 0 for spent_s in found["empty_cache_s"]] == [True, False]
    assert found["synchronize_s"] == [0.0, 0.0]
    assert found["calls_count"] == 1 / 2
    assert marked == [watch.ledger]
    assert [path for path, _ in found["places"]] == [__file__]


def test_no_wait_is_timed_where_no_device_is_used() -> None:
    before, examiner = torch.cuda.empty_cache, Waits(Watch(measuring=True))
    assert torch.cuda.empty_cache is before
    examiner.ended()
    assert examiner.end() == {}


def test_a_stream_that_cannot_be_changed_stays(monkeypatch) -> None:
    class Sink:
        __slots__ = ()

        def write(self, text: str) -> int:
            return len(text)

    monkeypatch.setattr(sys, "stdout", Sink())
    ledger = SimpleNamespace(current=-1)
    examiner = Bookkeeping(SimpleNamespace(ledger=ledger, thread=0, debug_lines=[]))
    examiner.end()
    assert type(sys.stdout) is Sink


def test_an_examination_that_has_ended_keeps_nothing_of_the_script() -> None:
    """Not even until the next collection, which a script may have switched off."""
    part = SimpleNamespace(end=dict, kept=torch.nn.Linear(1, 1))
    gone = weakref.ref(part.kept)
    parts = [part]
    watch = SimpleNamespace(observers=[], starts=StartClock(lambda: 0.0))
    examination = Examination(watch, {"one": lambda _: parts.pop()})
    del part
    gc.disable()
    try:
        assert examination.end() == {"broken": {}}
        del examination
        assert gone() is None
    finally:
        gc.enable()


def test_what_a_look_takes_is_not_between_two_starts_of_workers(monkeypatch) -> None:
    class Loader:
        persistent_workers, multiprocessing_context = False, None

    class Iterator:
        _num_workers = 1

    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    starts = StartClock(lambda: 0.0)
    watch = SimpleNamespace(observers=[], starts=starts)

    def look() -> None:
        now[0] += 5.0

    examination = Examination(watch, {"slow": lambda _: SimpleNamespace(ended=look)})
    for _ in range(2):
        starts.begin(lambda original, loader: Iterator(), None, Loader())
        examination.ended()
        now[0] += 1.0
    (first_s, *_), (second_s, *_) = starts.read()["starts"]
    assert second_s - first_s == 1.0
