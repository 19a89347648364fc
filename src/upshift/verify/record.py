"""Record the first steps of a training: what went in, what came out, to the last bit.

Runs in the child. Tensors go to files in the session's scratch folder, everything else into one
message; nothing of the script's is changed, but for the last bit of its weights where a floor is
asked for.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MOST_ELEMENTS_COUNT = 100_000


def tensor_bytes(tensor: Any) -> bytes:
    """Return the values of a tensor as bytes, in logical order whatever its strides."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def content_hash(value: Any, into: Any = None) -> str:
    """Return a hash of all tensors and plain values inside nested containers."""
    import torch

    digest = into or hashlib.sha256()
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        if value.layout == torch.strided:
            digest.update(tensor_bytes(value))
    elif isinstance(value, (list, tuple)):
        for part in value:
            content_hash(part, digest)
    elif hasattr(value, "items"):
        for name, part in value.items():
            digest.update(repr(name).encode())
            content_hash(part, digest)
    elif isinstance(value, (str, int, float, bool, bytes)):
        digest.update(repr(value).encode())
    return str(digest.hexdigest())


def perturb(parameters: Iterable[Any], *, scale: float, seed: int) -> None:
    """Multiply each weight by 1 + scale or 1 - scale, by coin; the script's generator rests."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            if parameter.is_floating_point():
                coin = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
                parameter.mul_(1 + scale * coin.to(parameter))


class Recorder:
    """An observer of the watch that keeps the evidence of the first steps.

    The first `forced` steps are taught: the run of the script as it is leaves its weights before
    each of them, and every other run starts the step from those weights. So each step compares
    the same computation, and a difference in one does not grow through the next.

    Args:
        order: `steps` and `forced` steps, `folder` for tensors, `teach` to leave weights there,
            `teacher` the folder of weights to start each step from, and `perturb` with `scale`
            and `seed` or None.
        watch: the seams of this process (`attach.Watch`).
        done: takes the evidence as one message, once, after the last step.
    """

    def __init__(
        self, order: dict[str, Any], watch: Any, done: Callable[[dict[str, Any]], object]
    ) -> None:
        self._order = order
        self._folder = Path(order["folder"])
        self._watch = watch
        self._done: Callable[[dict[str, Any]], object] | None = done
        self._step_count = 0
        self._before: list[Any] = []
        self._perturbed = False
        self._forced_losses_count = 0
        self._sizes: list[int] = []
        self._batches: list[str] = []
        self._losses: list[float] = []
        self._structure: list[str] = []
        self._samples: list[int] = []
        self._orders: dict[int, list[str]] = {}
        watch.observers.append(self)
        watch.on_step = self.stepped
        watch.live.on_root(self._before_first_call)
        self._follow_indices()
        atexit.register(self.finish)

    # ---- what the watch reports

    def loading(self) -> None:
        """Nothing to keep before a batch is there."""

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Keep the content of a batch."""
        self._batches.append(content_hash(batch))

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Keep which parts of a root module train and which evaluate."""
        flags = "".join(str(int(part.training)) for part in module.modules())
        self._structure.append(f"call {hashlib.sha256(flags.encode()).hexdigest()[:12]}")

    def backward(self, tensors: Any) -> None:
        """Keep the value of a loss."""
        for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
            if tensor.numel() == 1:
                self._losses.append(float(tensor.detach()))

    def steps(self, optimizer: Any) -> None:
        """Keep the settings of an optimizer before its step, and the gradients."""
        groups = [
            {k: str(v) for k, v in group.items() if k not in ("params", "fused", "foreach")}
            for group in optimizer.param_groups
        ]
        absent = [p.grad is None for group in optimizer.param_groups for p in group["params"]]
        self._structure.append(f"{type(optimizer).__name__} {groups} {hash(tuple(absent))}")
        self._keep_gradients()

    def ended(self) -> None:
        """Nothing to keep before `stepped`."""

    def stepped(self, phases_ns: tuple[int, ...], sample_count: int) -> None:
        """Keep how the step moved the weights, and go on from the taught ones."""
        self._keep_gradients()
        self._keep_moves()
        self._before = []
        self._step_count += 1
        self._samples.append(sample_count)
        if self._step_count < self._order["forced"]:
            self._teach_or_learn()
        if self._step_count <= self._order["forced"]:
            self._forced_losses_count = len(self._losses)
        if self._step_count == self._order["steps"]:
            self.finish()

    # ---- keeping

    def finish(self) -> None:
        """Hand the evidence over, once: after the last step, or when the script ends."""
        done, self._done = self._done, None
        if done is None or not self._step_count:
            return
        weights = [p.detach() for p in self._parameters()]
        done(
            {
                "steps": self._step_count,
                "forced": min(self._step_count, self._order["forced"]),
                "forced_losses": self._forced_losses_count,
                "batches": self._batches,
                "losses": self._losses,
                "structure": self._structure,
                "samples": self._samples,
                "orders": list(self._orders.values()),
                "weights": content_hash([weights, self._buffers()]),
                "sizes": self._sizes,
            }
        )

    def _before_first_call(self, module: Any) -> None:
        if self._order.get("perturb") and not self._perturbed:
            self._perturbed = True
            perturb(module.parameters(), **self._order["perturb"])

    def _keep_gradients(self) -> None:
        if self._before or self._step_count >= self._order["forced"]:
            return
        parameters = self._parameters()
        self._before = [p.detach().clone() for p in parameters]
        gradients = [p.grad if p.grad is not None else p.detach() * 0 for p in parameters]
        self._sizes = self._write(f"gradients{self._step_count}", gradients)

    def _keep_moves(self) -> None:
        if self._before:
            moves = [p.detach() - b for p, b in zip(self._parameters(), self._before, strict=False)]
            self._write(f"moves{self._step_count}", moves)

    def _teach_or_learn(self) -> None:
        name = f"weights{self._step_count}"
        if self._order["teach"]:
            with open(self._folder / name, "wb") as file:
                for parameter in self._parameters():
                    file.write(tensor_bytes(parameter))
        elif self._order["teacher"]:
            self._learn(Path(self._order["teacher"]) / name)

    def _learn(self, taught: Path) -> None:
        import torch

        parameters = self._parameters()
        with open(taught, "rb") as file, torch.no_grad():
            for parameter in parameters:
                content = bytearray(file.read(parameter.numel() * parameter.element_size()))
                if content:
                    values = torch.frombuffer(content, dtype=parameter.dtype)
                    parameter.copy_(values.reshape(parameter.shape))
        if change := self._order.get("perturb"):
            perturb(parameters, scale=change["scale"], seed=change["seed"] + self._step_count)

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

    def _write(self, name: str, tensors: list[Any]) -> list[int]:
        """Write tensors as one run of float32, large ones thinned out; return their lengths."""
        import torch

        sizes = []
        with open(self._folder / name, "wb") as file:
            for tensor in tensors:
                dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor
                flat = dense.detach().to(torch.float32).contiguous().reshape(-1)
                flat = flat[:: 1 + flat.numel() // _MOST_ELEMENTS_COUNT]
                file.write(tensor_bytes(flat))
                sizes.append(flat.numel())
        return sizes

    def _follow_indices(self) -> None:
        """Keep the order of the samples of each dataset, whoever fetches them.

        The first pass only: a dataset that draws in the main process moves the generator from
        which the next pass is shuffled, so that other workers mean another shuffle.
        """
        from torch.utils.data import dataloader

        kind: Any = dataloader._BaseDataLoaderIter
        stock = kind._next_index
        orders = self._orders

        def next_index(iterator: Any) -> Any:
            index = stock(iterator)
            seen = orders.setdefault(id(iterator._dataset), [])
            if len(seen) < _pass_count(iterator):
                seen.append(hashlib.sha256(repr(index).encode()).hexdigest()[:12])
            return index

        kind._next_index = next_index


def _pass_count(iterator: Any) -> float:
    """Return the batches of one pass; infinite for a sampler without length."""
    try:
        return len(iterator._index_sampler)
    except TypeError:
        return float("inf")
