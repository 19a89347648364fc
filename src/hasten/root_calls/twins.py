"""The compiled twins of the root modules, in a table next to them."""

from __future__ import annotations

import importlib
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.modules import own_hooks, weights_of
from hasten.root_calls.calls import loosen, signature
from hasten.root_calls.fit import plain_surroundings, unfit, uninitialized
from hasten.root_calls.graph import Graph, explained
from hasten.root_calls.model_code import other_draws, other_generators
from hasten.root_calls.own_code import mention, second_derivatives
from hasten.root_calls.root import Root
from hasten.root_calls.snapshot import Snapshot, states, went_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hasten.lever import Training
    from hasten.root_calls.graph import Compiler
    from hasten.root_calls.root import Asked


PATIENCE_COUNT = 12
_ASKS = ("is_compiling", "is_dynamo_compiling", "grad_fn", "next_functions", "make_dot")
_OTHER_DRAWS = "the model draws otherwise than by torch, or asks a clock, a cache or a variable"


class Twins:
    """Answer root calls with compiled code, where that gives what plain torch gives.

    A module is watched first, over `patience_count` training calls. Then each kind of call
    (shapes, types, structure) that is frequent is compiled as one graph without breaks. Whatever
    is not certain to be the same runs as plain torch: evaluation, odd batches, modules with hooks.
    """

    def __init__(
        self, training: Training, compiler: Compiler, *, patience_count: int = PATIENCE_COUNT
    ) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._training = training
        self._compiler = compiler
        self._patience_count = 0 if training.at_once else patience_count
        self._roots: Any = WeakIdKeyDictionary()  # modules may be equal
        self._plain = plain_surroundings()
        self._donation = ExitStack()

    def attach(self) -> Callable[[], None]:
        """Start answering; calling the result stops it, and forgets all that was compiled."""
        undo = self._training.on_call(self.call, innermost=True)

        def detach() -> None:
            undo()
            self._roots.clear()
            self._donation.close()

        return detach

    def call(self, module: Any, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Make a root call."""
        import torch

        if not (module.training and torch.is_grad_enabled() and self._plain()):
            return call(args, kwargs)
        root = self._roots.get(module)
        if root is None:
            root = self._roots[module] = Root(self._patience_count)
        root.call_count += 1
        key = None if root.given_up else signature((args, kwargs))
        if key is None:
            self._excuse_late(root)
            return call(args, kwargs)
        key = (torch.get_num_threads(), _autocast(), root.state_kind(module), key)
        root.recent.append(key)
        root.look_back()
        graph, wanted, kind = None, None, loosen(key)
        if root.call_count > self._patience_count:
            self._look(root, module)
            name, graph = root.graph_for(key)
            wanted = None if graph and not root.why_plain else self._wanted(root, key, module)
        asked = module, args, kwargs
        if wanted is not None:
            reached = root.outputs.reached.get(kind)
            graph = Graph(self._compiler, changing=wanted is not key, reached=reached)
            result = self._build(root, wanted, asked, call, graph)
        elif graph is not None and not root.given_up:
            result = root.run(name, graph, asked)
        else:
            plain = self._plainly(root, call, args, kwargs)
            return self._follow(root, kind, plain, plain=True)
        return self._follow(root, kind, result, plain=False)

    def _follow(self, root: Root, kind: Any, result: Any, *, plain: bool) -> Any:
        with own_hooks():
            return root.outputs.follow(kind, result, plain=plain)

    def _plainly(self, root: Root, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        before = None if root.given_up or root.why_plain else states()
        result = call(args, kwargs)
        if before is not None and went_on(before):
            root.why_plain = f"{_OTHER_DRAWS}: they went on in a call"
        return result

    def _wanted(self, root: Root, key: Any, module: Any) -> Any:
        if root.why_plain:
            root.give_up(RuntimeError(root.why_plain))
        elif next(weights_of(module), None) is None:
            root.give_up(None)
        elif root.hook_serial >= 0 and root.trains:  # a lazy module has not been looked at
            return root.wanted(key)
        return None

    def _look(self, root: Root, module: Any) -> None:
        """Look at the module, and again whenever the script has registered a hook."""
        from torch.utils.hooks import RemovableHandle

        serial = RemovableHandle.next_id
        if root.hook_serial != serial and not uninitialized(module):
            root.hook_serial = serial
            drawn = _drawn(other_generators(module))
            root.why_plain = root.why_plain or unfit(module) or drawn

    def _build(
        self,
        root: Root,
        name: Any,
        asked: Asked,
        call: Callable[[Any, Any], Any],
        graph: Graph,
    ) -> Any:
        """Compile; if that fails, the same call is made with plain torch, from the same state."""
        module, args, kwargs = asked
        if where := second_derivatives():
            root.give_up(RuntimeError(f"compiled code has no gradients of gradients, and {where}"))
            return call(args, kwargs)
        if where := mention(_ASKS):
            root.give_up(RuntimeError(f"compiled code can be told from the script's: {where}"))
            return call(args, kwargs)
        self._do_not_donate()
        root.built[name[0]] += 1
        before, started_s = Snapshot(module), time.perf_counter()
        try:
            with unmarked(module):
                result = graph.build(module, args, kwargs, partial(_why_drawn, module))
        except Exception as error:
            before.restore()
            root.give_up(explained(getattr(error, "inner_exception", error)))
            return call(args, kwargs)
        finally:
            self._training.compiled(time.perf_counter() - started_s)
        root.graphs[name] = graph
        return result

    def _excuse_late(self, root: Root) -> None:
        """Say why a module stays as it is, once other modules have had time to be compiled."""
        if root.error is None or root.call_count <= 2 * self._patience_count + 4:
            return
        error, root.error = root.error, None
        if not any(other.graphs for other in self._roots.values()):
            self._training.excuse(error)

    def _do_not_donate(self) -> None:
        """Let a backward pass be repeated (`retain_graph=True`), as plain torch does.

        Compiled code otherwise reuses the memory of what was saved for it. Torch asks for this
        setting when it compiles, and again in each backward pass.
        """
        settings: Any = importlib.import_module("torch._functorch.config")
        if hasattr(settings, "donated_buffer") and settings.donated_buffer:
            self._donation.enter_context(settings.patch(donated_buffer=False))


def _drawn(where: str) -> str:
    return f"{_OTHER_DRAWS}: {where}" if where else ""


def _why_drawn(module: Any, traced: Any) -> str:
    """Say why code that was traced is not to be compiled; a class has much that no call runs."""
    return _drawn(other_draws(module, traced))


def _autocast() -> tuple[Any, ...]:
    import torch

    return tuple(
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        for device in ("cpu", "cuda")
    )


_MARKS = ("_dynamo", "_torchdynamo")


@contextmanager
def unmarked(module: Any) -> Iterator[None]:
    """Remove what the compiler notes on parameters and modules, as it would be saved with them."""
    holders = [*module.modules(), *weights_of(module), *module.buffers()]
    before = [set(vars(holder)) for holder in holders]
    try:
        yield
    finally:
        for holder, names in zip(holders, before, strict=True):
            for name in set(vars(holder)) - names:
                if name.startswith(_MARKS):
                    del vars(holder)[name]
