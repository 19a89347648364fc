"""Record the first steps of a training: what went in, what came out, to the last bit.

Runs in the child. Tensors go to files in the session's scratch folder, everything else into one
message; what is changed in the script is in `teaching.py`.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import weakref
import zlib
from typing import TYPE_CHECKING, Any

from hasten.modules import weights_of
from hasten.verify.contents import content_hash, outline, tensor_bytes, thinned
from hasten.verify.teaching import (
    BatchRecorder,
    BatchReplayer,
    RankFolder,
    Teaching,
    generators,
    parameters_of,
    reseed,
    transformed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.protocol import RecordingSpec


_PLAIN = (int, float, bool, type(None))


class Recorder:
    """An observer of the watch that keeps the evidence of the first steps.

    The first `forced_count` steps are taught: the run of the plain script leaves its weights before
    each of them, and every other run starts the step from those weights. So each step compares
    the same computation, and a difference in one does not grow through the next. Where the order
    asks for it, batches and gradients are taught in the same way.

    Args:
        take: what to record.
        folder: where tensors go.
        watch: the seams of this process (`instrument.Watch`).
        done: takes the evidence as one message, once, after the last step.
    """

    def __init__(
        self, take: RecordingSpec, folder: str, watch: Any,
        done: Callable[[dict[str, Any]], object],
    ) -> None:  # fmt: skip
        self._take = take
        self._live = watch.live
        self._done: Callable[[dict[str, Any]], object] | None = done
        self._step_count = 0
        self._noted_new = False
        self._fed_step_count: int | None = None
        self._useless_count = 0
        self._found: dict[str, list[Any]] = {
            name: []
            for name in (
                "batches", "outlines", "losses", "losses_at", "structure", "samples",
                "fetch_draws", "model_draws", "overflows",
            )
        }  # fmt: skip
        self._orders: dict[int, list[str]] = {}
        place = RankFolder(folder)
        self._keeper = BatchRecorder(place) if take.keeps else None
        self._feeder: BatchReplayer | None = None
        if take.feeds and take.teacher:
            advancers, seed = self._live.answers.advancers, take.reseed
            self._feeder = BatchReplayer(RankFolder(take.teacher), advancers, reseed=seed)
            self._fed_step_count = 0
        self._moves = MoveRecorder(place, self._live)
        self._teaching = Teaching(take, place, self._live)
        watch.observers.append(self)
        watch.on_step = self.stepped
        self._live.on_root(self._teaching.begin)
        self._let_indices = _follow_indices(self._orders)
        atexit.register(self.finish)

    # ---- what the watch reports

    def loading(self) -> None:
        """Give the loop a kept batch in place of the one that it asks for."""
        if self._feeder is not None:
            self._feeder.arm()

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Keep the content of a batch: of the one that the loader really made."""
        made = batch if self._feeder is None else self._feeder.own
        self._found["batches"].append(content_hash(made))
        self._found["outlines"].append(outline(made))
        self._found["fetch_draws"].append(_generator_hash())
        if self._keeper is not None:
            self._keeper.keep(batch)
        if self._feeder is not None:
            self._feeder.settle()

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Keep which parts of a root module train and which evaluate, and how they are set."""
        parts = [
            (part.training, *(_plain(part, name) for name in ("p", "momentum", "eps")))
            for part in module.modules()
        ]
        trains = [parameter.requires_grad for parameter in weights_of(module)]
        self._found["structure"].append(f"call {_short_hash((parts, trains))}")
        if self._step_count == self._take.forced_count - 1 and not self._noted_new:
            self._noted_new = True
            self._moves.followers.note_new()

    def backward(self, tensors: Any) -> None:
        """Keep the value of a loss; inside `torch.func` nobody can read one."""
        if transformed():
            return
        self._found["model_draws"].append(_generator_hash())
        for tensor in tensors:
            if tensor.numel() == 1 and not tensor.is_complex():
                self._found["losses"].append(float(tensor.detach()))

    def steps(self, optimizer: Any) -> None:
        """Keep the settings of an optimizer before its step, and the gradients."""
        groups = [
            {k: str(v) for k, v in group.items() if k not in ("params", "fused", "foreach")}
            for group in optimizer.param_groups
        ]
        absent = [p.grad is None for group in optimizer.param_groups for p in group["params"]]
        said = f"{type(optimizer).__name__} {groups} {_short_hash(absent)}"
        self._found["structure"].append(said)
        self._keep_gradients()

    def ended(self) -> None:
        """Nothing to keep before `stepped`."""

    def stepped(self, phases_ns: tuple[int, ...], sample_count: int) -> None:
        """Keep how the step moved the weights, and go on from the taught ones."""
        forced = self._take.forced_count
        self._keep_gradients()
        self._moves.end(self._step_count)
        if (count := self._live.updates.useless_count) > self._useless_count:
            self._useless_count = count
            self._found["overflows"].append(self._step_count)
        self._step_count += 1
        self._found["samples"].append(sample_count)
        self._found["losses_at"].append(len(self._found["losses"]))
        if self._feeder is not None and self._feeder.count and not self._feeder.lacks:
            self._fed_step_count = self._step_count
        if self._step_count < forced:
            self._teaching.weights(self._step_count)
        if self._step_count == 1 and forced > 1:
            self._moves.followers.note()
        if self._step_count == forced:
            self._moves.keep_averages()
        if self._take.reseed is not None and not (self._feeder and self._feeder.count):
            reseed(self._take.reseed, self._step_count)
        if self._step_count == self._take.step_count:
            self.finish()

    def _keep_gradients(self) -> None:
        """Keep and teach the gradients of a step, once: before its first optimizer."""
        if self._step_count < self._take.forced_count and not self._moves.begun:
            self._moves.begin(self._step_count)
            self._teaching.gradients(self._step_count)

    def finish(self) -> None:
        """Hand the evidence over, once: after the last step, or when the script ends."""
        done, self._done = self._done, None
        self._let_indices()
        if self._feeder is not None:
            self._feeder.close()
        if done is None or not self._step_count:
            return
        self._moves.keep_tail()
        weights = [p.detach() for p in parameters_of(self._live)]
        done(
            {
                **self._found,
                "steps": self._step_count,
                "forced": min(self._step_count, self._take.forced_count),
                "orders": list(self._orders.values()),
                "weights": content_hash([weights, _buffers_of(self._live)]),
                "sizes": self._moves.sizes,
                "averages": self._moves.averages,
                "fed": self._fed_step_count,
                "gradients_taught": self._teaching.gradients_taught,
            }
        )


def _follow_indices(orders: dict[int, list[str]]) -> Callable[[], None]:
    """Keep the order of the samples of each dataset in `orders`, whoever fetches them.

    Only in the first pass: a dataset that draws in the main process advances the generator that
    shuffles the next pass, so a different number of workers means a different shuffle. The order
    of an iterable dataset is unknown. Calling the result ends it.
    """
    from torch.utils.data import IterableDataset, dataloader

    kind: Any = dataloader._BaseDataLoaderIter
    stock = kind._next_index

    def next_index(iterator: Any) -> Any:
        index, dataset = stock(iterator), iterator._dataset
        known = len(orders.get(id(dataset), ()))
        if known < _pass_count(iterator) and not isinstance(dataset, IterableDataset):
            plain = index.tolist() if hasattr(index, "tolist") else index
            orders.setdefault(id(dataset), []).append(_short_hash(plain))
        return index

    def let() -> None:
        if kind._next_index is next_index:
            kind._next_index = stock

    kind._next_index = next_index
    return let


def _pass_count(iterator: Any) -> float:
    """Return the batches of one pass; infinite for a sampler without length."""
    try:
        return len(iterator._index_sampler)
    except Exception:  # the script's own sampler may raise anything there
        return float("inf")


def _plain(part: Any, name: str) -> Any:
    value = getattr(part, name, None)
    return value if isinstance(value, _PLAIN) else None


def _short_hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


def _generator_hash() -> str:
    drawn = generators()
    kept = hashlib.sha256(b"".join(map(tensor_bytes, drawn["torch"])))
    kept.update(repr(drawn["python"]).encode())
    if "numpy" in drawn:
        kept.update(repr(drawn["numpy"]).encode())
    return kept.hexdigest()[:12]


# ---- how the weights move, and what follows them without gradients

_MOST_COUNT = 2000


class MoveRecorder:
    """The gradients of a step and how it moves the weights, as files.

    Attributes:
        sizes: values that are kept of each parameter.
        averages: shape and kept values of each tensor that follows the training.
        followers: these tensors.
    """

    def __init__(self, folder: RankFolder, live: Any) -> None:
        self.sizes: list[int] = []
        self.averages: tuple[list[str], list[int]] = ([], [])
        self.followers = AveragedState(live)
        self._folder = folder
        self._live = live
        self._before: list[Any] = []
        self._after_forced: list[Any] = []

    @property
    def begun(self) -> bool:
        """Whether the gradients of the current step have been kept."""
        return bool(self._before)

    def begin(self, step: int) -> None:
        """Keep the gradients of a step."""
        parameters = parameters_of(self._live)
        self._before = [(p, p.detach().clone()) for p in parameters]
        gradients = [p.grad if p.grad is not None else p.detach() * 0 for p in parameters]
        self.sizes = self._write(f"gradients{step}", gradients)

    def end(self, step: int) -> None:
        """Keep how a step that was begun has moved the weights."""
        if self._before:
            self._write(f"moves{step}", self._since(self._before))
        self._before = []

    def keep_averages(self) -> None:
        """Keep what follows the training, after the last of the taught steps."""
        self._after_forced = [(p, p.detach().clone()) for p in parameters_of(self._live)]
        moved = self.followers.moved()
        shapes = [str(tuple(tensor.shape)) for tensor in moved]
        self.averages = (shapes, self._write("averages", moved))

    def keep_tail(self) -> None:
        """Keep how all steps after the taught ones have moved the weights."""
        if self._after_forced:
            self._write("tail", self._since(self._after_forced))

    def _since(self, before: list[tuple[Any, Any]]) -> list[Any]:
        """Return how far parameters have moved; others may have joined them since."""
        return [parameter.detach() - then for parameter, then in before]

    def _write(self, name: str, tensors: list[Any]) -> list[int]:
        """Write tensors as one file of float32, large ones thinned out; return their lengths."""
        sizes = []
        with open(self._folder / name, "wb") as file:
            for tensor in tensors:
                flat = thinned(tensor)
                file.write(tensor_bytes(flat))
                sizes.append(flat.numel())
        return sizes


class AveragedState:
    """The tensors that follow one training: averages of the weights, statistics of a norm."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._old: list[tuple[weakref.ref[Any], int]] = []
        self._new: list[weakref.ref[Any]] = []

    def note(self) -> None:
        """Note what is there after the first step."""
        self._old = [(weakref.ref(t), _checksum(t)) for t in self._living()]

    def note_new(self) -> None:
        """Note, before the last taught step, which tensors have appeared since."""
        old = {id(ref()) for ref, _ in self._old}
        self._new = [weakref.ref(t) for t in self._living() if id(t) not in old]

    def moved(self) -> list[Any]:
        """Return the statistics of norms, and what changed or outlived the last taught step."""
        old = [(ref(), checksum) for ref, checksum in self._old]
        found = [t for t in _buffers_of(self._live) if t.is_floating_point() and t.numel()]
        found += [t for t, checksum in old if t is not None and _checksum(t) != checksum]
        found += [t for t in (ref() for ref in self._new) if t is not None]
        return list({id(t): t for t in found}.values())[:_MOST_COUNT]

    def _living(self) -> list[Any]:
        """Return every dense tensor of a parameter's shape that autograd did not produce.

        Objects that are not tensors are left alone: reading attributes may have side effects.
        """
        import torch

        parameters, live = parameters_of(self._live), self._live
        known = {id(t) for t in (*parameters, *_states_of(live), *_buffers_of(live))}
        known |= {id(p.grad) for p in parameters if p.grad is not None}
        shapes = {(p.shape, p.dtype) for p in parameters if p.numel() > 1}
        kinds = (torch.Tensor, torch.nn.Parameter)
        gc.collect()  # garbage would be found in one run and not in another
        tensors = [t for t in gc.get_objects() if type(t) in kinds and id(t) not in known]
        tensors = [t for t in tensors if t.layout == torch.strided and not t.is_meta]
        dense = [t for t in tensors if t.grad_fn is None]
        return [t for t in dense if (t.shape, t.dtype) in shapes][:_MOST_COUNT]


def _buffers_of(live: Any) -> list[Any]:
    """Return what the models learn without gradients, such as the statistics of a norm."""
    held = [buffer for module in list(live.roots.known) for buffer in module.buffers()]
    return list({id(buffer): buffer for buffer in held}.values())


def _states_of(live: Any) -> list[Any]:
    """Return the state tensors of the optimizers, which do not count as averages."""
    states = [state for own in list(live.optimizers.known) for state in own.state.values()]
    return [v for state in states if isinstance(state, dict) for v in state.values()]


def _checksum(tensor: Any) -> int:
    return zlib.crc32(tensor_bytes(tensor))
