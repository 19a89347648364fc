"""What the process uses, what the script is made of, what the machine can do."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import sys
import sysconfig
import time
import weakref
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.instrument import accelerators
from hasten.instrument.ledger import INDEX
from hasten.instrument.model import ModelFacts
from hasten.instrument.samples import quietly, tensors_in
from hasten.instrument.setting_signs import SettingSigns
from hasten.instrument.threads import add_threads
from hasten.records import (
    CheckpointTraits,
    CompilerTraits,
    LoaderTraits,
    OptimizerTraits,
    Phase,
    Traits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.instrument.fetches import FetchClock


_MATRIX_SIDE = 1024
_PROBE_S = 0.25


def usage() -> dict[str, float]:
    """Return peak bytes, minor page faults and CPU seconds, loader workers included.

    CPU seconds are those of this process, of its live children by /proc, and of those that
    ended (getrusage(2)).
    """
    import multiprocessing
    import resource

    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    alive_s = 0.0
    for child in multiprocessing.active_children():
        try:
            with open(f"/proc/{child.pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            alive_s += (int(fields[11]) + int(fields[12])) * tick_s
        except OSError:
            continue
    return {
        **accelerators.usage(),
        "peak_rss_bytes": own.ru_maxrss * 1024,
        "faults_count": own.ru_minflt,
        "cpu_s": own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + alive_s,
    }


def _best_rate(work: Callable[[], object], amount: float) -> float:
    work()
    best_s, until = float("inf"), time.perf_counter() + _PROBE_S
    while time.perf_counter() < until:
        start = time.perf_counter()
        work()
        best_s = min(best_s, time.perf_counter() - start)
    return amount / best_s


def peaks(device: str) -> dict[str, float | None]:
    """Measure the best float32 matrix product (FLOP/s) and memory copy (bytes/s) here.

    Best of about a quarter of a second each, with the threads that the process has now. No
    random numbers are drawn: the script's generators stay where they are.

    Args:
        device: the kind that the models are on; nothing is known of another than the CPU, which
            also computes in other formats than float32 at several times the rate.
    """
    import torch

    if device != "cpu":
        return {"peak_flops": None}
    with torch.no_grad():
        left = torch.ones(_MATRIX_SIDE, _MATRIX_SIDE, dtype=torch.float32, device="cpu")
        out = torch.empty_like(left)
        rate = _best_rate(lambda: torch.mm(left, left, out=out), 2 * _MATRIX_SIDE**3)
        return {"peak_flops": rate}


def _name_below_views(dataset: Any) -> str:
    """Return the name of a dataset's class, seen through torch's `Subset` and `ConcatDataset`."""
    from torch.utils.data import ConcatDataset, Subset

    while type(dataset) in (Subset, ConcatDataset):
        dataset = dataset.dataset if type(dataset) is Subset else dataset.datasets[0]
    return type(dataset).__name__


def _is_foreach(group: Mapping[str, Any]) -> bool:
    """Return whether an optimizer takes all tensors at once; on a GPU torch does by default."""
    asked = group.get("foreach")
    if asked is not None or group.get("fused") or group.get("differentiable"):
        return bool(asked)
    return all(parameter.device.type in ("cuda", "xpu") for parameter in group["params"])


def _own_order(sampler: Any) -> bool:
    """Return whether the order of samples comes from a class of the script's own."""
    kinds = {type(sampler), type(getattr(sampler, "sampler", sampler))}
    return not all(kind.__module__.startswith("torch.utils.data") for kind in kinds)


class TraitsReader:
    """An observer that notes what the script is made of, for the levers' `settings`.

    Args:
        fetches: says how long the batches took that this process and its workers made.

    Attributes:
        found: what was noted so far.
        about_data: adds what is known of the dataset with this `id`.
    """

    def __init__(self, fetches: FetchClock | None = None) -> None:
        self.found = Traits()
        self.about_data: Callable[[int, LoaderTraits], LoaderTraits] = lambda _, loader: loader
        self._fetches = fetches
        self._dataset = self._iterator = 0
        self._batch_count = self._step_count = self._loaded_count = 0
        self._trains = False
        self._draws = DrawWatch()
        self._updates = UpdateWatch()
        self._model = ModelFacts()
        self._signs = SettingSigns()
        self._checkpoints = CheckpointClock()
        self._prefetch_count = 2

    @property
    def device(self) -> str:
        """The kind of device that the first model is on."""
        return self._model.found.device or "cpu"

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Note what a root module is made of."""
        quietly(self._model.called, module, kwargs)
        quietly(self._signs.called, module, args, kwargs)

    def loading(self) -> None:
        """Look at the generators before a batch is fetched."""
        quietly(self._draws.loading)

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Note how the loader that feeds the loop is set, and who draws random numbers."""
        quietly(self._draws.loaded, iterator)
        quietly(self._loaded, iterator, batch)

    def _loaded(self, iterator: Any, batch: Any) -> None:
        import torch

        # Until something was trained it may be that of an evaluation at the start.
        is_known = id(iterator._dataset) == self._dataset
        if self._trains or (is_known and id(iterator) == self._iterator):
            self._loaded_count += is_known
            return
        self._dataset, self._iterator = id(iterator._dataset), id(iterator)
        self._loaded_count = 1
        self._draws = DrawWatch()
        # A loader without workers has no such number; None stands for torch's own, 2.
        self._prefetch_count = int(getattr(iterator, "_prefetch_factor", None) or 2)
        loader = LoaderTraits(
            worker_count=int(iterator._num_workers),
            is_map_style=iterator._dataset_kind == 0,
            is_persistent=bool(iterator._persistent_workers),
            has_own_order=_own_order(iterator._index_sampler),
            dataset=_name_below_views(iterator._dataset),
        )
        self.found = replace(self.found, loader=loader)  # whatever becomes of the rest
        tensors = [one for one in tensors_in(batch) if one.layout is torch.strided]
        loader = replace(loader, batch_bytes=sum(one.nbytes for one in tensors))
        # A sampler of the script's own is not asked: it may count how often it is.
        if loader.is_map_style and not loader.has_own_order:
            loader = replace(loader, pass_batch_count=len(iterator._index_sampler))
        self.found = replace(self.found, loader=loader)

    def backward(self, tensors: Any) -> None:
        """Note which debug modes are on, and that the loader seen last feeds a training."""
        self._trains = self._trains or self.found.loader is not None
        quietly(self._signs.backward)

    def steps(self, optimizer: Any) -> None:
        """Note the optimizer's class and which of torch's forms the script asks for."""
        quietly(self._signs.steps, optimizer)
        quietly(self._steps, optimizer)

    def _steps(self, optimizer: Any) -> None:
        if self.found.optimizer.name is not None:
            return
        seen = OptimizerTraits(name=type(optimizer).__name__)
        self.found = replace(self.found, optimizer=seen)  # whatever becomes of the rest
        group = optimizer.param_groups[0]
        seen = replace(
            seen,
            is_fused=bool(group.get("fused")),
            is_foreach=_is_foreach(group),
            tensor_count=len(group["params"]),
        )
        self.found = replace(self.found, optimizer=seen)

    def ended(self) -> None:
        """Count the steps that the loader has fed, and its batches in them."""
        self._signs.ended()
        self._step_count += self._loaded_count > 0
        self._batch_count += self._loaded_count
        self._loaded_count = 0

    def stepped(self, phases_ns: tuple[int, ...]) -> None:
        """Take in the phases of a step."""
        self._checkpoints.stepped(phases_ns)

    def read(self) -> Traits:
        """Return the traits, with the thread counts of this moment."""
        import torch

        version = str(torch.__version__)
        self._take(add_threads)
        for add in (self._updates.add, self._model.add, self._signs.add, self._checkpoints.add):
            quietly(self._take, add)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self.found = replace(self.found, rank_count=torch.distributed.get_world_size())
        if self.found.loader is not None:
            self.found = replace(self.found, loader=self._read_loader(self.found.loader))
        # Batches come in bursts of as many as there are workers; so many are on their way at once.
        ahead_count = self._prefetch_count * self.found.worker_count
        return replace(
            self.found,
            torch=version,
            compiler=read_compiler(version),
            loop_draws=self._draws.loop,
            cycle_count=max(1, ahead_count),
        )

    def _take(self, add: Callable[[Traits], Traits]) -> None:
        self.found = add(self.found)

    def _read_loader(self, loader: LoaderTraits) -> LoaderTraits:
        if self._fetches is not None:
            loader = self.about_data(self._dataset, self._fetches.add(self._dataset, loader))
        if self._step_count:
            per_step = max(1, round(self._batch_count / self._step_count))
            loader = replace(loader, step_batch_count=per_step)
        if loader.worker_count:
            return loader
        # Pillow loads its readers when a first file is opened; workers do that elsewhere.
        opens_images = "PIL.JpegImagePlugin" in sys.modules
        return replace(loader, opens_images=opens_images, draws=self._draws.items)


class FlopProbe:
    """Count the floating point operations of the next whole step with torch's own counter."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        self._mode: Any = FlopCounterMode(display=False)
        self._scope = ExitStack()
        self._scope.enter_context(self._mode)

    def close(self) -> float:
        """Stop counting and return the operations since the probe was made."""
        self._scope.close()
        return float(self._mode.get_total_flops())


# ---- how often and how long the loop stands still to write a checkpoint

_CHECKPOINT = INDEX[Phase.CHECKPOINT]
_KEPT_COUNT = 64


class CheckpointClock:
    """Note the steps in which a checkpoint was written, from the first step on.

    A closer look is too short for that: checkpoints are often minutes apart.
    """

    def __init__(self) -> None:
        self._step_count = self._wall_ns = 0
        # The step, the wall clock at its end, and the time of its checkpoints.
        self._seen: deque[tuple[int, int, int]] = deque(maxlen=_KEPT_COUNT)

    def stepped(self, phases_ns: tuple[int, ...]) -> None:
        """Take in a step, with all that came between it and the one before."""
        self._step_count += 1
        self._wall_ns += sum(phases_ns)
        if phases_ns[_CHECKPOINT]:
            self._seen.append((self._step_count, self._wall_ns, phases_ns[_CHECKPOINT]))

    def add(self, traits: Traits) -> Traits:
        """Return traits with the seconds of checkpoints and their mean distance, from two on."""
        if len(self._seen) < 2:
            return traits
        (first_step, first_ns, _), (last_step, last_ns, _) = self._seen[0], self._seen[-1]
        between_count = len(self._seen) - 1
        seen = CheckpointTraits(
            each_s=tuple(spent_ns * 1e-9 for _, _, spent_ns in self._seen),
            period_s=(last_ns - first_ns) * 1e-9 / between_count,
            period_step_count=(last_step - first_step) / between_count,
        )
        return replace(traits, checkpoints=seen)


# ---- whether torch.compile can work in this process, as traits for the levers

_OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
# The newest Python that each torch can compile under, as its release notes say.
_NEWEST_PYTHON = (((2, 10), (3, 14)), ((2, 6), (3, 13)), ((0, 0), (3, 12)))


def read_compiler(torch_version: str) -> CompilerTraits:
    """Return what torch.compile finds here, and what stands against it."""
    return CompilerTraits(
        is_used=_has_compiled(),
        cxx=_cxx(),
        has_triton=find_spec("triton") is not None,
        refused=_refused(torch_version),
    )


def _has_compiled() -> bool:
    """Return whether torch.compile has made a graph in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    stats = getattr(dynamo, "counters", {}).get("stats", {})
    return bool(stats.get("unique_graphs"))


def _cxx() -> str:
    asked = shlex.split(os.environ.get("CXX", ""))[:1]
    return next((name for name in asked or ("g++", "clang++") if shutil.which(name)), "")


def _refused(torch_version: str) -> str:
    """Say why nothing can be compiled; empty where it can."""
    for name in _OFF:
        if os.environ.get(name) == "1":
            return f"{name} switches torch.compile off"
    version = tuple(int(part) for part in torch_version.split(".")[:2])
    newest = next(python for oldest, python in _NEWEST_PYTHON if version >= oldest)
    own = sys.version_info[:2]
    if own > newest or (sysconfig.get_config_var("Py_GIL_DISABLED") == 1 and own < (3, 14)):
        return f"torch {torch_version} cannot compile under Python {own[0]}.{own[1]}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of Python are not installed (Python.h)"
    return ""


# ---- who draws random numbers: the items of the loader, the rest of the loop, or both in turn

_WATCHED_COUNT = 8


class DrawWatch:
    """Compare the global generators before and after the first batches are fetched.

    The first batch of a pass does not count: the loader and its sampler draw for it.

    Attributes:
        items: the items of the loader draw in this process; None while nobody knows.
        loop: the rest of the loop draws; None while nobody knows.
    """

    def __init__(self) -> None:
        self.items: bool | None = None
        self.loop: bool | None = None
        self._left_count = _WATCHED_COUNT
        self._before: Any = None
        self._after: Any = None
        self._pass: Callable[[], Any] = lambda: None

    def loading(self) -> None:
        """Look before a batch is fetched."""
        if self._left_count > 0:
            self._before = _states()

    def loaded(self, iterator: Any) -> None:
        """Look after it."""
        if self._left_count <= 0 or self._before is None:
            return
        last, self._after = self._after, _states()
        if self._pass() is iterator:
            self.loop = bool(self.loop or self._before != last)
            self.items = bool(self.items or self._before != self._after)
        self._pass = weakref.ref(iterator)
        self._left_count -= 1


def _states() -> Any:
    import torch

    numpy = sys.modules.get("numpy.random")
    own = None
    if numpy is not None:
        name, keys, *rest = numpy.get_state()
        own = name, keys.tobytes(), *rest
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), own


# ---- what a script does around its update: how it clips and averages; for the levers


class UpdateWatch:
    """Notice clippings and averaged models until the traits are read."""

    def __init__(self) -> None:
        from torch.nn.utils import clip_grad
        from torch.optim import swa_utils

        self._averages = False
        self._clip_count = self._idle_count = 0
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._replace(clip_grad, "_clip_grads_with_norm_", self._clipping)
        self._replace(swa_utils.AveragedModel, "__init__", self._averaging)

    def _replace(self, owner: Any, name: str, make: Any) -> None:
        original = vars(owner).get(name)
        if original is not None:
            noting = make(original)
            setattr(owner, name, noting)
            self._replaced.append((owner, name, original, noting))

    def _clipping(self, original: Any) -> Any:
        @wraps(original)
        def clip(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kw: Any) -> Any:
            if self._replaced and total_norm.is_cpu:
                self._clip_count += 1
                self._idle_count += bool(max_norm / (total_norm + 1e-6) >= 1)
            return original(parameters, max_norm, total_norm, *args, **kw)

        return clip

    def _averaging(self, original: Any) -> Any:
        from torch.optim import swa_utils

        make: Any = swa_utils.get_ema_avg_fn
        own = getattr(make(), "__wrapped__", None)

        @wraps(original)
        def construct(averaged: Any, *args: Any, **kwargs: Any) -> None:
            original(averaged, *args, **kwargs)
            average = getattr(averaged.__dict__.get("avg_fn"), "__wrapped__", None)
            if own is not None and getattr(average, "__code__", None) is own.__code__:
                self._averages = True

        return construct

    def add(self, traits: Traits) -> Traits:
        """Return traits with what was found, and look no longer."""
        for owner, name, original, noting in self._replaced:
            if vars(owner).get(name) is noting:
                setattr(owner, name, original)
        self._replaced = []
        ratio = self._idle_count / self._clip_count if self._clip_count else None
        return replace(traits, idle_clip_ratio=ratio, averages_by_loop=self._averages)
