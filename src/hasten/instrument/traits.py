"""What the script is made of."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import weakref
from collections import deque
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten import generators
from hasten.instrument.ledger import INDEX
from hasten.instrument.model import ModelFacts
from hasten.instrument.object_table import parameters_of
from hasten.instrument.operation_timing import is_compiled
from hasten.instrument.samples import quietly, tensors_in
from hasten.instrument.setting_signs import SettingSigns
from hasten.instrument.stand_ins import stand_in_later
from hasten.rank import launched_count, own_rank
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


_CHECKPOINT = INDEX[Phase.CHECKPOINT]
_KEPT_COUNT = 64
_WATCHED_COUNT = 8
_VARIABLES = (
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
    "KMP_LIBRARY",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
)
_NOTHING = ("", "false", "none", "disabled")
_OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
# The newest Python that each torch can compile under, as its release notes say.
_NEWEST_PYTHON = (((2, 10), (3, 14)), ((2, 6), (3, 13)), ((0, 0), (3, 12)))


def _name_below_views(dataset: Any) -> str:
    """Return the name of a dataset's class, seen through any `Subset` and `ConcatDataset`."""
    from torch.utils.data import ConcatDataset, Subset

    while type(dataset) in (Subset, ConcatDataset):
        dataset = dataset.dataset if type(dataset) is Subset else dataset.datasets[0]
    return type(dataset).__name__


def _is_foreach(group: Mapping[str, Any]) -> bool:
    """Return whether an optimizer updates all tensors at once, torch's default on a GPU."""
    asked = group.get("foreach")
    if asked is not None or group.get("fused") or group.get("differentiable"):
        return bool(asked)
    return all(parameter.device.type in ("cuda", "xpu") for parameter in group["params"])


def _is_open(optimizer: Any) -> bool:
    """Return whether an optimizer has a fused form that the script does not decide on."""
    return any(group.get("fused", False) is None for group in optimizer.param_groups)


def _has_sparse_gradients(optimizer: Any) -> bool:
    import torch

    gradients = [parameter.grad for parameter in parameters_of(optimizer)]
    return any(grad is not None and grad.layout is not torch.strided for grad in gradients)


def _own_order(sampler: Any) -> bool:
    """Return whether the order of samples comes from a class of the script's own."""
    parts = (sampler, getattr(sampler, "sampler", sampler))
    return not all(
        type(one).__module__.startswith("torch.utils.data") or generators.is_reseeded(one)
        for one in parts
    )


@dataclass(slots=True)
class _StepContents:
    """What a step holds. The first one counts for nothing: in it, the loop's cycle is learned.

    Attributes:
        loaded_count: batches for this step so far.
        stepped_count: steps of optimizers so far.
        update_count: the same in the last step.
    """

    loaded_count: int = 0
    stepped_count: int = 0
    update_count: int = 1
    _batch_count: int = 0
    _fed_count: int = 0
    _is_learned: bool = False

    def ended(self) -> None:
        """Count the step that ends if it was fed, and begin the next."""
        if self._is_learned:
            self._fed_count += self.loaded_count > 0
            self._batch_count += self.loaded_count
            self.update_count = max(1, self.stepped_count)
        self._is_learned = True
        self.loaded_count = self.stepped_count = 0

    @property
    def step_batch_count(self) -> int:
        """Batches in a step that is fed."""
        return max(1, round(self._batch_count / max(1, self._fed_count)))


class TraitsReader:
    """An observer that notes what the script is made of, for the levers' `settings`.

    Attributes:
        about_data: adds what is known of the dataset with this `id`.
        model: what is noted about root modules.
    """

    def __init__(self, fetches: FetchClock | None = None) -> None:
        self.found = Traits()
        self.about_data: Callable[[int, LoaderTraits], LoaderTraits] = lambda _, loader: loader
        self._fetches = fetches
        self._dataset = 0
        self._iterator: Callable[[], Any] = lambda: None  # a weak reference
        self._contents = _StepContents()
        self._trains = self._is_open = False
        self._draws = DrawWatch()
        self._updates = UpdateWatch()
        self.model = ModelFacts()
        self._signs = SettingSigns()
        self._checkpoints = CheckpointClock()
        self._prefetch_count = 2

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Note what a root module is made of."""
        quietly(self.model.called, module, args)

    def loading(self) -> None:
        """Look at the generators before a batch is fetched."""
        quietly(self._draws.loading)

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Note how the loader that feeds the loop is set, and who draws random numbers."""
        quietly(self._loaded, iterator, batch)
        if id(getattr(iterator, "_dataset", None)) == self._dataset:
            quietly(self._draws.loaded, iterator)

    def _loaded(self, iterator: Any, batch: Any) -> None:
        import torch

        # Until something has been trained, it may be the loader of an initial evaluation.
        is_known = id(iterator._dataset) == self._dataset
        if self._trains or (is_known and self._iterator() is iterator):
            self._contents.loaded_count += is_known
            return
        self._dataset, self._iterator = id(iterator._dataset), weakref.ref(iterator)
        self._contents.loaded_count = 1
        self._draws = DrawWatch()
        # A loader without workers has no such number; None means torch's default, 2.
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
        # The script's own sampler is not asked: it may count how often that happens.
        if loader.is_map_style and not loader.has_own_order:
            loader = replace(loader, pass_batch_count=len(iterator._index_sampler))
        self.found = replace(self.found, loader=loader)

    def backward(self, tensors: Any) -> None:
        """Note which debug modes are on, and that the loader seen last feeds a training."""
        self._trains = self._trains or self.found.loader is not None
        quietly(self._signs.backward)

    def steps(self, optimizer: Any) -> None:
        """Note the optimizer's class and which of torch's forms the script asks for."""
        self._contents.stepped_count += 1
        quietly(self._signs.steps, optimizer)
        quietly(self._steps, optimizer)

    def _steps(self, optimizer: Any) -> None:
        if self.found.optimizer.name is not None and (self._is_open or not _is_open(optimizer)):
            return
        seen = OptimizerTraits(name=type(optimizer).__name__)
        self.found = replace(self.found, optimizer=seen)  # whatever becomes of the rest
        self._is_open = _is_open(optimizer)
        groups = optimizer.param_groups
        seen = replace(
            seen,
            is_fused=bool(groups[0].get("fused")),
            is_foreach=_is_foreach(groups[0]),
            tensor_count=sum(len(group["params"]) for group in groups),
            has_sparse_gradients=_has_sparse_gradients(optimizer),
        )
        self.found = replace(self.found, optimizer=seen)

    def ended(self) -> None:
        """Count the steps that the loader has fed, and the batches it fed to them."""
        self._signs.ended()
        self._contents.ended()

    def stepped(self, phases_ns: tuple[int, ...]) -> None:
        """Record the phases of a step."""
        self._checkpoints.stepped(phases_ns)

    def read(self) -> Traits:
        """Return the traits, with the thread counts of this moment."""
        import torch

        version = str(torch.__version__)
        self._take(add_threads)
        model, rank = self.model, own_rank()
        for adds in (self._updates, model, self._signs, self._checkpoints):
            quietly(self._take, adds.add)
        quietly(self._take, model.add_unshared)
        if self.found.loader is not None:
            self.found = replace(self.found, loader=self._read_loader(self.found.loader))
        # Batches come in bursts of one per worker; this many are in flight at once.
        ahead_count = self._prefetch_count * self.found.worker_count
        optimizer = replace(self.found.optimizer, step_count=self._contents.update_count)
        return replace(
            self.found,
            rank_count=rank.total_count,
            local_rank_count=launched_count() or rank.local_count,
            torch=version,
            optimizer=optimizer,
            compiler=_read_compiler(version),
            loop_draws=self._draws.loop,
            cycle_count=max(1, ahead_count),
        )

    def _take(self, add: Callable[[Traits], Traits]) -> None:
        self.found = add(self.found)

    def _read_loader(self, loader: LoaderTraits) -> LoaderTraits:
        if self._fetches is not None:
            loader = self.about_data(self._dataset, self._fetches.add(self._dataset, loader))
        loader = replace(loader, step_batch_count=self._contents.step_batch_count)
        if loader.worker_count or self._draws.items is None:
            return loader
        return replace(loader, draws=self._draws.items)


class CheckpointClock:
    """Note in which steps a checkpoint was written: a closer look is too short to see several."""

    def __init__(self) -> None:
        self._step_count = self._wall_ns = 0
        # The step, the wall clock at its end, and the time of its checkpoints.
        self._seen: deque[tuple[int, int, int]] = deque(maxlen=_KEPT_COUNT)

    def stepped(self, phases_ns: tuple[int, ...]) -> None:
        """Take in a step, with everything since the previous one."""
        self._step_count += 1
        self._wall_ns += sum(phases_ns)
        if phases_ns[_CHECKPOINT]:
            self._seen.append((self._step_count, self._wall_ns, phases_ns[_CHECKPOINT]))

    def add(self, traits: Traits) -> Traits:
        """Return traits with the seconds and mean distance of checkpoints, if there are two."""
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


class UpdateWatch:
    """Notice how the script clips its gradients, until the traits are read."""

    def __init__(self) -> None:
        self._clip_count = self._idle_count = 0
        home = "torch.nn.utils.clip_grad"
        self._undo: Callable[[], None] | None = stand_in_later(
            home, "_clip_grads_with_norm_", self._clipped
        )

    def _clipped(
        self, original: Any, parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kw: Any
    ) -> Any:
        if self._undo and total_norm.is_cpu:
            self._clip_count += 1
            self._idle_count += bool(max_norm / (total_norm + 1e-6) >= 1)
        return original(parameters, max_norm, total_norm, *args, **kw)

    def add(self, traits: Traits) -> Traits:
        """Return traits with what was found, and look no longer."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        ratio = self._idle_count / self._clip_count if self._clip_count else None
        return replace(traits, idle_clip_ratio=ratio)


def add_threads(traits: Traits) -> Traits:
    """Return traits with thread counts, and the OpenMP variables that somebody has set."""
    import torch

    return replace(
        traits,
        thread_count=torch.get_num_threads(),
        openmp_variables=tuple(
            name for name in _VARIABLES if os.environ.get(name, "").lower() not in _NOTHING
        ),
    )


def _read_compiler(torch_version: str) -> CompilerTraits:
    """Return what torch.compile finds here, and what prevents it."""
    return CompilerTraits(
        is_used=is_compiled(),
        cxx=_cxx(),
        has_triton=find_spec("triton") is not None,
        refused=_why_uncompiled(torch_version),
    )


def _cxx() -> str:
    asked = shlex.split(os.environ.get("CXX", ""))[:1]
    return next((name for name in asked or ("g++", "clang++") if shutil.which(name)), "")


def _why_uncompiled(torch_version: str) -> str:
    """Say why nothing can be compiled; empty where it can."""
    for name in _OFF:
        if os.environ.get(name) == "1":
            return f"{name} switches torch.compile off"
    version = tuple(int(part) for part in torch_version.split(".")[:2])
    newest = next(python for oldest, python in _NEWEST_PYTHON if version >= oldest)
    own = sys.version_info[:2]
    if own > newest:
        return f"torch {torch_version} cannot compile under Python {own[0]}.{own[1]}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of Python are not installed (Python.h)"
    return ""


class DrawWatch:
    """Compare the global generators before and after the first batches of a loader are fetched.

    The first batch of a pass does not count: the loader and its sampler draw for it.

    Attributes:
        items: the items of the loader draw in this process; None while that is unknown.
        loop: the rest of the loop draws; None while that is unknown.
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
            self._before = generators.read()

    def loaded(self, iterator: Any) -> None:
        """Look after a batch was fetched."""
        if self._left_count <= 0:
            return
        last, self._after = self._after, generators.read()
        if self._pass() is iterator:
            self.loop = bool(self.loop or self._before != last)
            self.items = bool(self.items or self._before != self._after)
        self._pass = weakref.ref(iterator)
        self._left_count -= 1
