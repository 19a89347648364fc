"""What a recorded run changes in the script: it takes over what the teaching run has left.

These are weights and gradients, batches and generators; both sides are here, the one that leaves
them behind and the one that takes them over. On request the last bits of the weights are changed.
"""

from __future__ import annotations

import pickle
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.generators import read_numpy, restore_numpy
from hasten.modules import weights_of
from hasten.rank import own_rank
from hasten.verify.contents import perturb, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hasten.protocol import RecordingSpec

_MOST_BYTES = 1 << 28
_OTHER_MODEL = "the script makes another model in each launch, so nothing can be compared"


def parameters_of(live: Any) -> list[Any]:
    """Return the parameters of a script's live objects (`instrument.LiveTraining`)."""
    held = [p for module in list(live.roots.known) for p in weights_of(module)]
    groups = [g for optimizer in list(live.optimizers.known) for g in optimizer.param_groups]
    held += [p for group in groups for p in group["params"]]
    return list({id(p): p for p in held}.values())


def transformed() -> bool:
    """Return whether a function runs under `torch.func`, where tensors have no values to read."""
    import torch

    functions: Any = getattr(torch._C, "_functorch", None)
    peek = getattr(functions, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


class RankFolder:
    """A folder of a recorded run in which each rank but the first has one of its own."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def __truediv__(self, name: str) -> Path:
        """Return where a file of this rank is; which rank that is, the script decides late."""
        if not (number := own_rank().number):
            return self._path / name
        own = self._path / f"rank{number}"
        own.mkdir(exist_ok=True)
        return own / name


class Teaching:
    """Weights and gradients of the taught steps, left behind or taken over.

    Attributes:
        gradients_taught: the optimizer got the gradients of the teaching run.
    """

    def __init__(self, take: RecordingSpec, folder: RankFolder, live: Any) -> None:
        self.gradients_taught = False
        self._take = take
        self._folder = folder
        self._teacher = RankFolder(take.teacher) if take.teacher else None
        self._live = live
        self._perturbed = False

    def begin(self, module: Any) -> None:
        """Change the last bits of the weights before the first call, if the order asks for it."""
        if not self._perturbed and not transformed():
            self._perturbed = True
            self._perturb(weights_of(module), 0)

    def weights(self, step: int) -> None:
        """Leave the weights before a step, or take them over."""
        if self._teacher is not None:
            self._learn(self._teacher / f"weights{step}", step)
            return
        with open(self._folder / f"weights{step}", "wb") as file:
            for parameter in parameters_of(self._live):
                file.write(tensor_bytes(parameter))

    def _learn(self, taught: Path, step: int) -> None:
        import torch

        parameters = parameters_of(self._live)
        if taught.stat().st_size != sum(p.numel() * p.element_size() for p in parameters):
            raise RuntimeError(_OTHER_MODEL)
        with open(taught, "rb") as file, torch.no_grad():
            for parameter in parameters:
                content = bytearray(file.read(parameter.numel() * parameter.element_size()))
                if content:
                    values = torch.frombuffer(content, dtype=parameter.dtype)
                    parameter.copy_(values.reshape(parameter.shape))
        self._perturb(parameters, step)

    def _perturb(self, parameters: Iterable[Any], step: int) -> None:
        if scale := self._take.perturb_ratio:
            perturb(parameters, scale=scale, seed=self._take.perturb_seed + step)

    def gradients(self, step: int) -> None:
        """Leave the gradients or take them over, so that the optimizer alone is compared.

        With several optimizers in a step, the gradients of the later ones do not exist yet.
        """
        if not self._take.keeps and not self._take.feeds:
            return
        if len(self._live.optimizers.known) > 1:
            self.gradients_taught = False
            return
        name, parameters = f"taught{step}", parameters_of(self._live)
        if self._take.keeps:
            dense = [None if _is_odd(p.grad) else p.grad.detach().cpu() for p in parameters]
            (self._folder / name).write_bytes(pickle.dumps(dense))
        elif self._teacher is not None and (self._teacher / name).exists():
            kept = pickle.loads((self._teacher / name).read_bytes())
            for parameter, gradient in zip(parameters, kept, strict=False):
                if gradient is not None and not _is_odd(parameter.grad):
                    if gradient.shape != parameter.grad.shape:
                        raise RuntimeError(_OTHER_MODEL)
                    parameter.grad.detach().copy_(gradient)
            self.gradients_taught = self._live.updates.replaced = True


def _is_odd(gradient: Any) -> bool:
    import torch

    return gradient is None or gradient.layout != torch.strided


# ---- batches and generators


def generators() -> dict[str, Any]:
    """Return the states of the generators that a script draws from without naming one."""
    import torch

    states: dict[str, Any] = {"torch": [torch.get_rng_state()], "python": random.getstate()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["torch"] += torch.cuda.get_rng_state_all()
    if (numpy := read_numpy(loads=True)) is not None:
        states["numpy"] = numpy
    return states


def set_generators(states: dict[str, Any]) -> None:
    """Restore the generators to the states that `generators` returned."""
    import torch

    torch.set_rng_state(states["torch"][0])
    if len(states["torch"]) > 1:
        torch.cuda.set_rng_state_all(states["torch"][1:])
    random.setstate(states["python"])
    if "numpy" in states and "numpy" in sys.modules:
        restore_numpy(states["numpy"])


class BatchRecorder:
    """Keep the first batches in a folder, as many as fit; one that cannot be pickled ends it."""

    def __init__(self, folder: RankFolder) -> None:
        self._folder = folder
        self._left_bytes = _MOST_BYTES
        self._count = 0

    def keep(self, batch: Any) -> None:
        """Keep a batch that was just made."""
        if self._left_bytes <= 0:
            return
        try:
            content = pickle.dumps((batch, generators()))
        except Exception:  # the script's classes may raise anything: keep no more
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
        advancers: functions that are asked for the next batch, only the first of them; this
            class puts its own before the levers'.
        reseed: draw other numbers after each batch, by this seed, than the script as it is.

    Attributes:
        own: the batch that was really made.
        lacks: the kept batches have run out.
        count: batches so far.
    """

    def __init__(self, folder: RankFolder, advancers: list[Any], *, reseed: int | None) -> None:
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
        """Feed the next batch that is asked for; batches that it is made from stay as they are."""
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
        """Restore the generators to where they were when the batch was made, or reseed them."""
        if self.lacks or not self._states:
            return
        set_generators(self._states)
        if self._reseed is not None:
            reseed(self._reseed, self.count)


def reseed(seed: int, index: int) -> None:
    """Seed torch's generator with a number derived from `seed` and `index`."""
    import torch

    torch.manual_seed(seed * 1_000_003 + index)
