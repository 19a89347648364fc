"""One compiled form of a root module, for one kind of call."""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import re
import shutil
import warnings
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hasten.lever import COMPILED_KEY, TORCHS_CACHE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Compiler = Callable[[Any, Any], Callable[..., Any]]

_PROBES = "hasten-probes"
_MOST_DAMAGED_COUNT = 4
_CHECKPOINT, _ASSERTION = "tag_activation_checkpoint", "_assert_async"
_TRACED_UNDER = {
    "skip_tensor_guards_with_matching_dict_tags": False,  # else it misses weights that changed
    "use_numpy_random_stream": True,  # else it draws from torch's generator in NumPy's place
}

_REFUSALS = 3
"""The version of `refuse_draws`; what an earlier one let through is recompiled."""
_IN_ORDER = (2, 13)
"""The release since which torch's compiler keeps draws in the script's order."""


def _root(module: Any, args: Any, kwargs: Any) -> Any:
    return module.forward(*args, **kwargs)


class Graph:
    """The module as one graph; if torch's own guards on it fail, plain torch runs.

    The module is an argument, never kept: a graph dies with the module, not the other way round.

    Args:
        compiler: turns an FX graph and its inputs into something that can be called.
        changing: compile for changing shapes.
        reached: the ids of the weights behind what plain torch gives; None if they are unknown.
    """

    def __init__(
        self, compiler: Compiler, *, changing: bool, reached: frozenset[int] | None = None
    ) -> None:
        import torch

        self.missed_count = 0  # latest runs in a row to which the compiled code did not apply
        self._runs = runs = [0]
        asks: list[Callable[[Any], str]] = []  # while it is being built
        self._asks = asks

        def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
            _refuse(graph)
            if why := asks[0](_traced()):
                raise RuntimeError(why)
            if reached is not None and _behind(graph, inputs) - reached:
                raise RuntimeError("the model keeps what it has computed beside what it returns")
            compiled = compiler(graph, inputs)

            def counted(*inputs: Any) -> Any:
                runs[0] += 1
                return compiled(*inputs)

            return counted

        dynamo: Any = importlib.import_module("torch._dynamo")
        # Torch stores compiled code by code object: with one of its own, a graph has one entry to
        # check, and shares no recompilation limit with others.
        own = FunctionType(_root.__code__.replace(co_name="root"), globals())
        self._build = torch.compile(own, backend=backend, fullgraph=True, dynamic=changing)
        self._run = dynamo.run(self._build)

    def build(
        self, module: Any, args: Any, kwargs: Any, asks: Callable[[Any], str] = lambda _: ""
    ) -> Any:
        """Compile, and return what this first call gives.

        Args:
            module: the root module.
            args: what it is called with by place.
            kwargs: and by name.
            asks: is given the code that was traced, None if that is unknown, and says why it is
                not to be compiled; empty if it may be.
        """
        settings: Any = importlib.import_module("torch._dynamo.config")
        chosen = {name: value for name, value in _TRACED_UNDER.items() if hasattr(settings, name)}
        with warnings.catch_warnings(), settings.patch(chosen):
            warnings.simplefilter("ignore")
            self._asks.append(asks)
            try:
                return self._build(module, args, kwargs)
            finally:
                self._asks.clear()

    def run(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Call without compiling anything."""
        before = self._runs[0]
        result = self._run(module, args, kwargs)
        self.missed_count = 0 if self._runs[0] > before else self.missed_count + 1
        return result


def explained(error: Exception) -> Exception:
    """Return an error whose first line has the first sentence of torch's later explanation."""
    first, _, rest = str(error).strip().partition("\n")
    reason = re.search(r"^\s*Explanation: (.+?\.`?(?= [A-Z]|$)|.+)", rest, re.MULTILINE)
    return RuntimeError(f"{first}: {reason[1].rstrip('.')}") if reason else error


def _traced() -> Any:
    """Return the code that torch's compiler has traced; None if this torch does not say."""
    import torch

    traced: Any = getattr(torch._guards.TracingContext.try_get(), "traced_code", None)
    return frozenset(traced) if traced else None


def _refuse(graph: Any) -> None:
    names = {getattr(node.target, "__name__", "") for node in graph.graph.nodes}
    if _CHECKPOINT in names:
        raise RuntimeError("activations are checkpointed")
    if _ASSERTION in names:
        raise RuntimeError("the model asserts something about values")


def _behind(graph: Any, inputs: Any) -> set[int]:
    nodes = list(graph.graph.nodes)
    places = (node for node in nodes if node.op == "placeholder")
    given = {node: id(value) for node, value in zip(places, inputs, strict=True)}
    waiting, known = [node for node in nodes if node.op == "output"], set[Any]()
    while waiting:
        new = {one for one in waiting.pop().all_input_nodes if _learns(one)} - known
        known |= new
        waiting += new
    return {given[node] for node in known if node in given}


def _learns(node: Any) -> bool:
    import torch

    numbers = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)  # sizes, where they change
    value = node.meta.get("example_value")
    several = value if isinstance(value, (list, tuple)) else (value,)
    return any(getattr(one, "requires_grad", not isinstance(one, numbers)) for one in several)


def _own_cache() -> AbstractContextManager[Any]:
    """Take from torch's cache only what was checked, as cached code is not refused again."""
    try:
        compiler: Any = importlib.import_module("torch.compiler.config")
    except ImportError:  # before torch 2.6
        return nullcontext()
    if not hasattr(compiler, "cache_key_tag"):
        return nullcontext()
    patched: AbstractContextManager[Any] = compiler.patch(
        cache_key_tag=f"{compiler.cache_key_tag} hasten {_REFUSALS}"
    )
    return patched


def inductor(mode: str) -> Compiler:
    """Return torch's own compiler.

    Random numbers are drawn as by plain torch, and everything is compiled in this process and in
    this call, the backward pass too.
    """
    shelf = os.environ.get(COMPILED_KEY)
    if shelf:  # an optimizer that stepped has set torch's own variable
        os.environ[TORCHS_CACHE] = shelf

    def compile_graph(graph: Any, inputs: Any) -> Callable[..., Any]:
        if shelf:
            _keep_headers(shelf)
        settings: Any = importlib.import_module("torch._inductor.config")
        autograd: Any = importlib.import_module("torch._functorch.config")
        own = {"fallback_random": True, "compile_threads": 1}
        with ExitStack() as scope:
            scope.enter_context(settings.patch(own))
            scope.enter_context(_own_cache())
            if hasattr(autograd, "force_non_lazy_backward_lowering"):
                scope.enter_context(autograd.patch(force_non_lazy_backward_lowering=True))
            front: Any = importlib.import_module("torch._inductor.compile_fx")
            modes = importlib.import_module("torch._inductor").list_mode_options()
            chosen = {**modes.get(mode, {}), **own}
            if cxx := _other_cxx():
                chosen["cpp.cxx"] = (None, cxx)

            return _compiled(front, graph, inputs, chosen)

    return compile_graph


def _compiled(front: Any, graph: Any, inputs: Any, chosen: Any) -> Callable[..., Any]:
    """Load a graph from torch's cache, or compile it; a file that does not load is made again."""
    with cached_start() as miss:

        def compile_inner(graph: Any, inputs: Any, **told: Any) -> Any:
            miss()
            refuse_draws(graph)
            return front.compile_fx_inner(graph, inputs, **told)

        def compile_all() -> Callable[..., Any]:
            compiled: Callable[..., Any] = front.compile_fx(
                graph, inputs, inner_compile=compile_inner, config_patches=chosen
            )
            return compiled

        for _ in range(_MOST_DAMAGED_COUNT):
            try:
                return compile_all()
            except Exception as error:
                if not _remove_damaged(error):
                    raise
        return compile_all()


def _remove_damaged(error: BaseException) -> bool:
    """Remove the file of torch's cache that cannot be loaded; return whether there was one.

    A run that was killed leaves half of one. Torch compiles again only what it cannot unpickle.
    """
    place = os.path.realpath(importlib.import_module("torch._inductor.codecache").cache_dir())
    cause: BaseException | None = error
    while cause is not None:
        name = cause.path if isinstance(cause, ImportError) else None
        name = cause.filename if isinstance(cause, SyntaxError) else name
        path = os.path.realpath(name or place)
        if path.startswith(place + os.sep):
            with suppress(OSError):
                os.unlink(path)
                return True
        cause = getattr(cause, "inner_exception", None) or cause.__cause__ or cause.__context__
    return False


def _keep_headers(shelf: str) -> None:
    """Have headers precompiled next to a trial's code, if nobody has done so yet.

    Torch keeps them in its own folder, whatever it is told, which is lost with each trial.
    """
    code: Any = importlib.import_module("torch._inductor.codecache")
    place = getattr(code, "_HEADER_DIR", "")
    if place and not os.path.isdir(place):
        code._HEADER_DIR = os.path.join(shelf, os.path.basename(place))
        code._HEADER_LOCK_DIR = os.path.join(code._HEADER_DIR, "locks")


def _other_cxx() -> str | None:
    """Return a C++ compiler that torch would not look for, if its own choice is missing."""
    if "CXX" in os.environ or shutil.which("g++"):
        return None
    return shutil.which("clang++")


# ---- torch's compiler cache: what a process need not do again because its files are there


@contextmanager
def cached_start() -> Iterator[Callable[[], None]]:
    """Have a graph that is in torch's cache loaded, without asking the C++ compiler again.

    Inside, torch believes what it found out about the vector instructions of this machine in an
    earlier process, and headers are not precompiled before there is something to compile: before
    the function is called that this yields.
    """
    code: Any = importlib.import_module("torch._inductor.codecache")
    precompile = getattr(code, "_precompile_header", None)

    def miss() -> None:
        if precompile is not None:
            code._precompile_header = precompile

    if precompile is not None:
        code._precompile_header = lambda header, *_, **__: header
    try:
        with _remembered_probes(code.cache_dir()):
            yield miss
    finally:
        miss()


@contextmanager
def _remembered_probes(place: str) -> Iterator[None]:
    """Have each probe of an instruction set that succeeded noted, and not made again.

    Such a probe starts a process that loads a library, for each set that the CPU says it has.
    """
    try:
        sets: Any = importlib.import_module("torch._inductor.cpu_vec_isa")
        probe: Callable[[Any, str], bool] = sets.VecISA.check_build
        fingerprint: Callable[[str], str] = sets._get_isa_dry_compile_fingerprint
    except (ImportError, AttributeError):  # another torch
        yield
        return

    def check_build(self: Any, code: str) -> bool:
        known = (str(self), code, fingerprint(self.build_arch_flags()), sets.__file__)
        key = hashlib.sha256(repr((*known, platform.node())).encode()).hexdigest()
        note = os.path.join(place, _PROBES, key)
        if os.path.exists(note):
            return True
        works = probe(self, code)
        if works:
            with suppress(OSError):
                os.makedirs(os.path.dirname(note), exist_ok=True)
                open(note, "w").close()
        return works

    sets.VecISA.check_build = check_build
    try:
        yield
    finally:
        sets.VecISA.check_build = probe


# ---- where compiled code would draw random numbers other than plain torch's


def refuse_draws(graph: Any) -> None:
    """Look at a graph of torch's own operations before it is compiled.

    Raises:
        RuntimeError: its draws could come in another order or too late, or fill other places in
            memory.
    """
    import torch

    drawn = [node for node in graph.graph.nodes if _draws(node)]
    if any(_draws_in_place(node) for node in drawn):
        raise RuntimeError("torch's compiler may read what the model draws before it is drawn")
    if len(drawn) > 1 and tuple(map(int, torch.__version__.split(".")[:2])) < _IN_ORDER:
        raise RuntimeError("this torch may draw the model's random numbers in another order")
    images = any(_dimension_count(node) in (4, 5) for node in drawn)
    if images and any(node.op == "placeholder" and _is_last(node) for node in graph.graph.nodes):
        raise RuntimeError("the model draws for feature maps that have their channels last")


def _draws(node: Any) -> bool:
    import torch

    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _draws_in_place(node: Any) -> bool:
    """Return whether a draw fills memory that was made before, as feature dropout does.

    Torch 2.13 fuses what reads such memory with what makes it, and draws after both.
    """
    name = str(node.target).removeprefix("aten.")
    return name.startswith("bernoulli") and name not in ("bernoulli.default", "bernoulli.out")


def _value(node: Any) -> Any:
    value = node.meta.get("val")
    return value[0] if isinstance(value, (list, tuple)) and value else value


def _dimension_count(node: Any) -> int:
    import torch

    value = _value(node)
    return value.dim() if isinstance(value, torch.Tensor) else 0


def _is_last(node: Any) -> bool:
    if _dimension_count(node) not in (4, 5):
        return False
    shape, strides = _value(node).shape, _value(node).stride()
    # Tested this way, changing sizes stay symbolic: they are known to be neither 0 nor 1.
    return shape[1] != 1 and strides[1] == 1 and any(size != 1 for size in shape[2:])
