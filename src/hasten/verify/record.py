"""Record the first steps of a training: what went in, what came out, to the last bit.

Runs in the child. Tensors go to files in the session's scratch folder, everything else into one
message; nothing of the script's is changed but what the order asks for: the last bits of its
weights, the batches and gradients that it is taught.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import pickle
import random
import sys
import weakref
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.verify.contents import content_hash, outline, perturb, tensor_bytes, thinned

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.protocol import RecordingSpec


_PLAIN = (int, float, bool, type(None))


class Recorder:
    """An observer of the watch that keeps the evidence of the first steps.

    The first `forced` steps are taught: the run of the script as it is leaves its weights before
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
        self,
        take: RecordingSpec,
        folder: str,
        watch: Any,
        done: Callable[[dict[str, Any]], object],
    ) -> None:
        self._take = take
        self._folder = Path(folder)
        self._teacher = Path(take.teacher) if take.teacher else None
        self._watch = watch
        self._done: Callable[[dict[str, Any]], object] | None = done
        self._step_count = self._optimizers_count = 0
        self._before: list[Any] = []
        self._after_forced: list[Any] = []
        self._perturbed = self._gradients_taught = self._noted_new = False
        self._fed_step_count: int | None = None
        self._sizes: list[int] = []
        self._found: dict[str, list[Any]] = {
            name: []
            for name in (
                "batches", "outlines", "losses", "losses_at", "structure", "samples",
                "fetch_draws", "model_draws",
            )
        }  # fmt: skip
        self._averages: tuple[list[str], list[int]] = ([], [])
        self._orders: dict[int, list[str]] = {}
        self._keeper = BatchRecorder(self._folder) if take.keeps else None
        self._feeder: BatchReplayer | None = None
        if take.feeds and self._teacher:
            advancers, seed = watch.live.answers.advancers, take.reseed
            self._feeder = BatchReplayer(self._teacher, advancers, reseed=seed)
            self._fed_step_count = 0
        self._followers = AveragedState(self._parameters, self._buffers, self._states)
        watch.observers.append(self)
        watch.on_step = self.stepped
        watch.live.on_root(self._before_first_call)
        self._let_indices = self._follow_indices()
        atexit.register(self.finish)

    # ---- what the watch reports

    def loading(self) -> None:
        """Let the batch that the loop asks for be a kept one."""
        if self._feeder is not None:
            self._feeder.arm()

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Keep the content of a batch, of the one that was really made."""
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
        trains = [parameter.requires_grad for parameter in module.parameters()]
        self._found["structure"].append(f"call {_short_hash((parts, trains))}")
        if self._step_count == self._take.forced_count - 1 and not self._noted_new:
            self._noted_new = True
            self._followers.note_new()

    def backward(self, tensors: Any) -> None:
        """Keep the value of a loss; inside `torch.func` nobody can read one."""
        if _transformed():
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
        self._keep_moves()
        self._before = []
        self._step_count += 1
        self._found["samples"].append(sample_count)
        self._found["losses_at"].append(len(self._found["losses"]))
        if self._feeder is not None and self._feeder.count and not self._feeder.lacks:
            self._fed_step_count = self._step_count
        if self._step_count < forced:
            self._teach_or_learn()
        if self._step_count == 1 and forced > 1:
            self._followers.note()
        if self._step_count == forced:
            self._keep_averages()
        if self._take.reseed is not None and not (self._feeder and self._feeder.count):
            reseed(self._take.reseed, self._step_count)
        if self._step_count == self._take.step_count:
            self.finish()

    # ---- keeping

    def finish(self) -> None:
        """Hand the evidence over, once: after the last step, or when the script ends."""
        done, self._done = self._done, None
        self._let_indices()
        if self._feeder is not None:
            self._feeder.close()
        if done is None or not self._step_count:
            return
        if self._after_forced:
            self._write("tail", self._since(self._after_forced))
        weights = [p.detach() for p in self._parameters()]
        done(
            {
                **self._found,
                "steps": self._step_count,
                "forced": min(self._step_count, self._take.forced_count),
                "orders": list(self._orders.values()),
                "weights": content_hash([weights, self._buffers()]),
                "sizes": self._sizes,
                "averages": self._averages,
                "fed": self._fed_step_count,
                "gradients_taught": self._gradients_taught,
            }
        )

    def _before_first_call(self, module: Any) -> None:
        if self._take.perturb_ratio and not self._perturbed and not _transformed():
            self._perturbed = True
            perturb(
                module.parameters(),
                scale=self._take.perturb_ratio,
                seed=self._take.perturb_seed,
            )

    def _keep_gradients(self) -> None:
        if self._before or self._step_count >= self._take.forced_count:
            return
        parameters = self._parameters()
        self._before = [p.detach().clone() for p in parameters]
        gradients = [p.grad if p.grad is not None else p.detach() * 0 for p in parameters]
        self._sizes = self._write(f"gradients{self._step_count}", gradients)
        if self._keeper is not None or self._take.feeds:
            self._teach_or_learn_gradients(parameters)

    def _teach_or_learn_gradients(self, parameters: list[Any]) -> None:
        """Let every optimizer get the same gradients, so that it alone is compared.

        With several optimizers in a step those of the later ones are not there yet.
        """
        if len(self._watch.live.optimizers.known) > 1:
            self._gradients_taught = False
            return
        name = f"taught{self._step_count}"
        if self._keeper is not None:
            dense = [None if _is_odd(p.grad) else p.grad.detach().cpu() for p in parameters]
            (self._folder / name).write_bytes(pickle.dumps(dense))
        elif self._teacher is not None and (self._teacher / name).exists():
            kept = pickle.loads((self._teacher / name).read_bytes())
            for parameter, gradient in zip(parameters, kept, strict=False):
                if gradient is not None and not _is_odd(parameter.grad):
                    parameter.grad.detach().copy_(gradient)
            self._gradients_taught = True

    def _keep_moves(self) -> None:
        if self._before:
            self._write(f"moves{self._step_count}", self._since(self._before))

    def _since(self, before: list[Any]) -> list[Any]:
        return [p.detach() - b for p, b in zip(self._parameters(), before, strict=False)]

    def _keep_averages(self) -> None:
        self._after_forced = [p.detach().clone() for p in self._parameters()]
        moved = self._followers.moved()
        shapes = [str(tuple(tensor.shape)) for tensor in moved]
        self._averages = (shapes, self._write("averages", moved))

    def _teach_or_learn(self) -> None:
        name = f"weights{self._step_count}"
        if self._teacher is None:
            with open(self._folder / name, "wb") as file:
                for parameter in self._parameters():
                    file.write(tensor_bytes(parameter))
        else:
            self._learn(self._teacher / name)

    def _learn(self, taught: Path) -> None:
        import torch

        parameters = self._parameters()
        with open(taught, "rb") as file, torch.no_grad():
            for parameter in parameters:
                content = bytearray(file.read(parameter.numel() * parameter.element_size()))
                if content:
                    values = torch.frombuffer(content, dtype=parameter.dtype)
                    parameter.copy_(values.reshape(parameter.shape))
        if scale := self._take.perturb_ratio:
            seed = self._take.perturb_seed + self._step_count
            perturb(parameters, scale=scale, seed=seed)

    def _parameters(self) -> list[Any]:
        found: dict[int, Any] = {}
        for module in list(self._watch.live.roots.known):
            found.update((id(p), p) for p in module.parameters())
        for optimizer in list(self._watch.live.optimizers.known):
            for group in optimizer.param_groups:
                found.update((id(p), p) for p in group["params"])
        return list(found.values())

    def _buffers(self) -> list[Any]:
        """Return what the model learns without gradients, such as the statistics of a norm."""
        found: dict[int, Any] = {}
        for module in list(self._watch.live.roots.known):
            found.update((id(buffer), buffer) for buffer in module.buffers())
        return list(found.values())

    def _states(self) -> list[Any]:
        known = list(self._watch.live.optimizers.known)
        states = [state for optimizer in known for state in optimizer.state.values()]
        return [v for state in states if isinstance(state, dict) for v in state.values()]

    def _write(self, name: str, tensors: list[Any]) -> list[int]:
        """Write tensors as one run of float32, large ones thinned out; return their lengths."""
        sizes = []
        with open(self._folder / name, "wb") as file:
            for tensor in tensors:
                flat = thinned(tensor)
                file.write(tensor_bytes(flat))
                sizes.append(flat.numel())
        return sizes

    def _follow_indices(self) -> Callable[[], None]:
        """Keep the order of the samples of each dataset, whoever fetches them.

        The first pass only: a dataset that draws in the main process moves the generator from
        which the next pass is shuffled, so that other workers mean another shuffle. Of an
        iterable dataset nobody knows an order.
        """
        from torch.utils.data import IterableDataset, dataloader

        kind: Any = dataloader._BaseDataLoaderIter
        stock = kind._next_index
        orders = self._orders

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
    except Exception:  # a sampler of the script's own may raise anything there
        return float("inf")


def _transformed() -> bool:
    """Return whether a function runs under `torch.func`, where tensors have no values to read."""
    import torch

    functions: Any = getattr(torch._C, "_functorch", None)
    peek = getattr(functions, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def _plain(part: Any, name: str) -> Any:
    value = getattr(part, name, None)
    return value if isinstance(value, _PLAIN) else None


def _is_odd(gradient: Any) -> bool:
    import torch

    return gradient is None or gradient.layout != torch.strided


def _short_hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


def _generator_hash() -> str:
    drawn = generators()
    return hashlib.sha256(b"".join(map(tensor_bytes, drawn["torch"]))).hexdigest()[:12]


# ---- what follows the training without gradients: averages of the weights, statistics of a norm

_MOST_COUNT = 2000


class AveragedState:
    """The tensors that follow one training.

    Args:
        parameters: returns what trains.
        buffers: returns what the models learn without gradients.
        states: returns the tensors that the optimizers keep; they are their own matter.
    """

    def __init__(
        self,
        parameters: Callable[[], list[Any]],
        buffers: Callable[[], list[Any]],
        states: Callable[[], list[Any]],
    ) -> None:
        self._parameters, self._buffers, self._states = parameters, buffers, states
        self._old: list[tuple[weakref.ref[Any], int]] = []
        self._new: list[weakref.ref[Any]] = []

    def note(self) -> None:
        """Note what is there after the first step."""
        self._old = [(weakref.ref(t), _checksum(t)) for t in self._living()]

    def note_new(self) -> None:
        """Note before the last step what has come since."""
        old = {id(ref()) for ref, _ in self._old}
        self._new = [weakref.ref(t) for t in self._living() if id(t) not in old]

    def moved(self) -> list[Any]:
        """Return the statistics of norms, and what has changed or outlived the last step."""
        old = [(ref(), checksum) for ref, checksum in self._old]
        found = [t for t in self._buffers() if t.is_floating_point() and t.numel()]
        found += [t for t, checksum in old if t is not None and _checksum(t) != checksum]
        found += [t for t in (ref() for ref in self._new) if t is not None]
        return list({id(t): t for t in found}.values())[:_MOST_COUNT]

    def _living(self) -> list[Any]:
        """Return every dense tensor of a parameter's shape that has no history of its own.

        Nothing is asked of objects that are no tensors: some of a script's do much when asked.
        """
        import torch

        parameters = self._parameters()
        known = {id(t) for t in (*parameters, *self._states(), *self._buffers())}
        known |= {id(p.grad) for p in parameters if p.grad is not None}
        shapes = {(p.shape, p.dtype) for p in parameters if p.numel() > 1}
        kinds = (torch.Tensor, torch.nn.Parameter)
        gc.collect()  # what only waits for it would be found in one run and not in another
        tensors = [t for t in gc.get_objects() if type(t) in kinds and id(t) not in known]
        tensors = [t for t in tensors if t.layout == torch.strided and not t.is_meta]
        dense = [t for t in tensors if t.grad_fn is None]
        return [t for t in dense if (t.shape, t.dtype) in shapes][:_MOST_COUNT]


def _checksum(tensor: Any) -> int:
    return zlib.crc32(tensor_bytes(tensor))


# ---- batches and generators of the script as it is, kept and given to another run of it

_MOST_BYTES = 1 << 28


def generators() -> dict[str, Any]:
    """Return the states of the generators that a script draws from without naming one."""
    import torch

    states: dict[str, Any] = {"torch": [torch.get_rng_state()], "python": random.getstate()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["torch"] += torch.cuda.get_rng_state_all()
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    return states


def set_generators(states: dict[str, Any]) -> None:
    """Put the generators where `generators` found them."""
    import torch

    torch.set_rng_state(states["torch"][0])
    if len(states["torch"]) > 1:
        torch.cuda.set_rng_state_all(states["torch"][1:])
    random.setstate(states["python"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(states["numpy"])


class BatchRecorder:
    """Keep the first batches in a folder, as many as fit; one that cannot be pickled ends it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left_bytes = _MOST_BYTES
        self._count = 0

    def keep(self, batch: Any) -> None:
        """Keep a batch that was just made."""
        if self._left_bytes <= 0:
            return
        try:
            content = pickle.dumps((batch, generators()))
        except Exception:  # whatever a class of the script's raises: it is not kept, no more
            self._left_bytes = 0
            return
        self._left_bytes -= len(content)
        if self._left_bytes > 0:
            (self._folder / f"batch{self._count}").write_bytes(content)
            self._count += 1


class BatchReplayer:
    """Give the loop the kept batches in place of its own.

    Args:
        folder: where they are.
        advancers: what is asked for the next batch of an iterator, the first one only; it
            comes before the levers'.
        reseed: draw other numbers after each batch, by this seed, than the script as it is.

    Attributes:
        own: the batch that was really made.
        lacks: there was none left for a batch of the loop.
        count: batches so far.
    """

    def __init__(self, folder: Path, advancers: list[Any], *, reseed: int | None) -> None:
        self.own: Any = None
        self.lacks = False
        self.count = 0
        self._folder = folder
        self._advancers = advancers
        self._reseed = reseed
        self._armed = False
        self._states: dict[str, Any] = {}
        advancers.insert(0, self._advance)

    def arm(self) -> None:
        """Feed the next batch that is asked for; those that it is made of stay as they are."""
        self._armed = True

    def close(self) -> None:
        """Feed no more."""
        if self._advance in self._advancers:
            self._advancers.remove(self._advance)

    def _advance(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        armed, self._armed = self._armed, False
        later = self._advancers[1:2]
        own = later[0](original, iterator) if later else original(iterator)
        if not armed:
            return own
        self.own = own
        path = self._folder / f"batch{self.count}"
        self.count += 1
        if self.lacks or not path.exists():
            self.lacks = True
            return own
        # Written by the run before, in a folder of our own.
        batch, states = pickle.loads(path.read_bytes())
        self._states = states
        return batch

    def settle(self) -> None:
        """Put the generators where they stood when the batch was made, or aside by `reseed`."""
        if self.lacks or not self._states:
            return
        set_generators(self._states)
        if self._reseed is not None:
            reseed(self._reseed, self.count)


def reseed(seed: int, index: int) -> None:
    """Seed torch's generator with a number that belongs to `seed` and `index`."""
    import torch

    torch.manual_seed(seed * 1_000_003 + index)
