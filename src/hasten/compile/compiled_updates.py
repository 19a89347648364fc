"""An optimizer's own update of one weight, compiled once for weights of any size."""

from __future__ import annotations

import time
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hasten.compile.quiet import quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.compile.graph import Compiler
    from hasten.lever import Training

LARGE_COUNT = 1 << 20
"""Elements from which on a weight is updated by compiled code: with its states it fills a cache."""

_MOST_BUILDS_COUNT = 8
_GRADIENTS = 1


class Updates:
    """Answer the calls of torch's single-tensor updates, such as `_single_tensor_adadelta`.

    Such a function runs over a list of weights, and with each of its operations once over the
    memory of a weight. Compiled, it runs over that memory once. States, options and the optimizer
    itself stay what they are.

    Args:
        training: told of the time that compiling takes, and of what cannot be compiled.
        compiler: turns a graph into something that can be called.
    """

    def __init__(self, training: Training, compiler: Compiler) -> None:
        self._training = training
        self._compiler = compiler
        self._built: dict[Any, Update] = {}
        self._given_up = False

    def answer(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Update the weights: the large ones by compiled code, the others as ever."""
        large = [] if self._given_up else _large(args, kwargs)
        done = self._run(original, args, kwargs, large) if large else 0
        compiled = set(large[:done])
        rest = [i for i in range(len(args[0])) if i not in compiled]
        if rest:
            original(*([part[i] for i in rest] if part else part for part in args), **kwargs)

    def _run(
        self, original: Callable[..., None], args: Any, kwargs: Any, large: Sequence[int]
    ) -> int:
        """Update weights one by one, and return how many were; the one after them was not."""
        import torch

        rate = torch.tensor(kwargs["lr"], dtype=torch.float64)
        options = tuple(sorted((name, kwargs[name]) for name in kwargs if name != "lr"))
        has_state = tuple(map(bool, args))
        for done, index in enumerate(large):
            tensors = [part[index] for part in args if part]
            key = (original, torch.get_num_threads(), tensors[0].dtype, has_state, options)
            try:
                update = self._built.get(key) or self._build(key, tensors, rate, kwargs)
                update.run(tensors, rate)
            except Exception as error:
                self._given_up = True
                self._built.clear()
                self._training.excuse(error)
                return done
        return len(large)

    def _build(self, key: Any, tensors: Sequence[Any], rate: Any, kwargs: Any) -> Update:
        if len(self._built) >= _MOST_BUILDS_COUNT:
            raise RuntimeError("the optimizer's options change too often to be compiled")
        started_s = time.perf_counter()
        try:
            copies = [tensor.clone() for tensor in tensors]
            self._built[key] = update = Update(self._compiler)
            # Told that it may be captured, torch's own code asks no tensor for its value.
            told = {**kwargs, "lr": rate, "capturable": True}
            original, _, _, has_state, _ = key
            update.build(original, has_state, copies, told)
        finally:
            self._training.compiled(time.perf_counter() - started_s)
        return update


class Update:
    """The update of one weight of any size, under fixed options.

    torch's own conditions on compiled code take longer to check than a small weight to update.
    Here they hold by construction: `Updates` has one of these for each set of options, and passes
    flat tensors of one dtype. The learning rate is a tensor, so it may change.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._code: Callable[..., Any] | None = None
        self._given: tuple[Any, ...] = ()
        self._takes: list[Callable[[Sequence[Any], Any], Any]] = []

    def build(
        self, original: Callable[..., None], has_state: Sequence[bool], tensors: Any, told: Any
    ) -> None:
        """Compile for tensors like these, which are written to.

        Args:
            original: torch's function.
            has_state: for each of its lists whether there is anything in it.
            tensors: what is in these, of one weight.
            told: its keywords.
        """
        import torch

        flat = _flattened(tensors)
        left = iter(flat)
        lists = [[next(left)] if there else [] for there in has_state]
        run = torch.compile(_update(original), backend=self._compile, fullgraph=True, dynamic=True)
        with quiet():
            run(*lists, **told)
        self._takes = [_source(given, flat, told["lr"]) for given in self._given]
        self._given = ()  # as large as the weight and its states

    def _compile(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        compiled = self._compiler(graph, inputs)

        def run(*given: Any) -> Any:
            self._code, self._given = compiled, given
            return compiled(*given)

        return run

    def run(self, tensors: Sequence[Any], rate: Any) -> None:
        """Update one weight: its gradient, its states."""
        from torch.autograd.graph import increment_version

        assert self._code is not None  # noqa: S101  # built
        flat = _flattened(tensors)
        self._code(*[take(flat, rate) for take in self._takes])
        for place, tensor in enumerate(tensors):
            if place != _GRADIENTS and tensor.dim():
                increment_version(tensor)  # it was written to behind autograd's back


def _source(given: Any, flat: Sequence[Any], rate: Any) -> Callable[[Sequence[Any], Any], Any]:
    """Return where an argument of compiled code comes from at the next call."""
    import torch

    place = next((i for i, tensor in enumerate(flat) if tensor is given), None)
    if place is not None:
        return lambda flat, rate: flat[place]
    if given is rate:
        return lambda flat, rate: rate
    if type(given) is int and given == flat[0].numel():
        return lambda flat, rate: flat[0].numel()
    if isinstance(given, float) or (isinstance(given, torch.Tensor) and not given.dim()):
        return lambda flat, rate: given  # an option
    raise RuntimeError(f"compiled code takes an argument of unknown origin: {type(given).__name__}")


def _update(original: Callable[..., None]) -> Callable[..., None]:
    """Return a function to compile, with a code object of its own: torch keeps code by that."""
    import torch

    def update(*args: Any, **kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            raise RuntimeError("torch.compile is switched off")
        original(*args, **kwargs)

    return FunctionType(
        update.__code__.replace(co_name="compiled_update"), globals(), closure=update.__closure__
    )


def _flattened(tensors: Sequence[Any]) -> list[Any]:
    """Return tensors of the same memory in its order; a number, such as a step, as it is.

    Views would do, but compiled code is bound to the shapes of what a view looks at.
    """
    return [
        tensor.new_empty(0).set_(
            tensor.untyped_storage(), tensor.storage_offset(), (tensor.numel(),), (1,)
        )
        if tensor.dim()
        else tensor
        for tensor in tensors
    ]


def _large(args: Any, kwargs: Any) -> list[int]:
    """Return the places of the weights that compiled code may update as torch would."""
    import torch

    plain = (
        type(kwargs.get("lr")) in (int, float)
        and not any(map(kwargs.get, ("capturable", "differentiable", "has_complex")))
        and not torch.is_grad_enabled()
        and all(isinstance(part, list) and len(part) in (0, len(args[0])) for part in args)
    )
    if not plain:
        return []
    found = [
        i
        for i, weight in enumerate(args[0])
        if weight.numel() >= LARGE_COUNT and _is_alike([part[i] for part in args if part])
    ]
    return sorted(found, key=lambda i: -args[0][i].numel())  # by the first one it is compiled


def _is_alike(tensors: Sequence[Any]) -> bool:
    """Return whether a weight, its gradient and its states lie alike, without gaps or overlaps."""
    import torch

    weight = tensors[0]
    return all(
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and (
            not tensor.dim()
            or (
                tensor.shape == weight.shape
                and tensor.stride() == weight.stride()
                and tensor.dtype == weight.dtype
            )
        )
        for tensor in tensors
    ) and (weight.dtype in (torch.float32, torch.float64) and _is_whole(weight))


def _is_whole(weight: Any) -> bool:
    """Return whether a weight's elements fill one stretch of memory, each place once."""
    pairs = sorted(zip(weight.stride(), weight.shape, strict=True))
    reached = 1
    for stride, size in pairs:
        if size != 1 and stride != reached:
            return False
        reached *= size
    return True
