"""What is known about one root module, and which of its calls are worth compiling."""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import ref

from hasten.modules import own_hooks, weights_of
from hasten.root_calls.calls import leaves_among, loosen, nodes_behind
from hasten.root_calls.fit import uninitialized
from hasten.root_calls.values import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.root_calls.graph import Graph

    Asked = tuple[Any, Any, Any]


_OFTEN_RATIO = 0.25
_AT_ONCE_RATIO = 0.5
_MOST_GRAPHS_COUNT = 5
_MOST_MISSED_COUNT = 3
_MOST_RETIRED_COUNT = 2
_LEAST_RECENT_COUNT = 8


class Root:
    """The compiled forms of one root module; never the module itself."""

    def __init__(self, patience_count: int) -> None:
        self.call_count = 0  # training calls so far
        self.recent: deque[Any] = deque(maxlen=max(_LEAST_RECENT_COUNT, 2 * patience_count))
        self.graphs: dict[Any, Graph] = {}  # by the kind of call
        self.built: Counter[int] = Counter()  # by the number of threads that they are for
        self.outputs = Outputs(self.asked_for_gradient)
        self.trains = False  # whether some weight required a gradient at the latest call
        self.hook_serial = -1  # torch's count of hooks when the module was last looked at
        self.why_plain = ""  # why it has to stay as it is
        self.given_up = False  # it stays as it is for good
        self.error: Exception | None = None  # the reason, until it has been reported
        self._weights: list[ref[Any]] = []
        self._methods: list[tuple[Any, str]] = []
        self._state_kinds: dict[Any, int] = {}
        self._retired_count = 0
        self._often_ratio = _OFTEN_RATIO if patience_count else _AT_ONCE_RATIO

    def state_kind(self, module: Any) -> int:
        """Return a number for which weights train now, their memory layout, and the module's code.

        Compiled code depends on all three, and torch need not notice: it does not look at weights
        again if the dicts of their modules are unchanged
        (https://github.com/pytorch/pytorch/issues/139476), nor at the methods of a class.
        """
        import torch

        weights = [weight for held in self._weights if (weight := held()) is not None]
        if not weights or len(weights) < len(self._weights):
            weights = [] if uninitialized(module) else list(weights_of(module))
            weights = [weight for weight in weights if weight.layout is torch.strided]
            self._weights = list(map(ref, weights))
            self._methods = _methods(module)
        self.trains = any(weight.requires_grad for weight in weights)
        found = (
            tuple([(weight.requires_grad, weight.stride()) for weight in weights]),
            tuple([vars(kind).get(name) for kind, name in self._methods]),
        )
        return self._state_kinds.setdefault(found, len(self._state_kinds))

    def graph_for(self, key: Any) -> tuple[Any, Graph | None]:
        """Return the key under which the graph for a kind of call is stored, and the graph."""
        graph = self.graphs.get(key)
        if graph is not None:
            return key, graph
        loose = loosen(key)
        return loose, self.graphs.get(loose)

    def wanted(self, key: Any) -> Any:
        """Return what is worth compiling for this call: its kind, its loose kind, or None.

        A kind that makes up more than a quarter of the calls gets a graph of its own. Where none
        does, shapes change all the time, and one graph serves them all. The rest is odd: the
        last, smaller batch of a pass over the data runs as it always did.
        """
        if self.built[key[0]] >= _MOST_GRAPHS_COUNT:
            return None
        counts = Counter(self.recent)
        often = self._often_ratio * len(self.recent)
        if counts[key] > often:
            return key
        return loosen(key) if max(counts.values()) <= often else None

    def run(self, name: Any, graph: Graph, asked: Asked) -> Any:
        """Call the module through a graph; one that no longer applies to it is discarded."""
        result = graph.run(*asked)
        if graph.missed_count:
            self._weights.clear()  # others may have replaced them
        if graph.missed_count >= _MOST_MISSED_COUNT:
            del self.graphs[name]
            self._retired_count += 1
            if self._retired_count > _MOST_RETIRED_COUNT:
                self.why_plain = "the model changes between its calls in what its code depends on"
        return result

    def give_up(self, error: Exception | None) -> None:
        """Leave the module as it is, from now on."""
        self.given_up, self.error = True, error
        self.graphs.clear()

    def look_back(self) -> None:
        """See whether the backward passes since the last call skipped some weights."""
        if self.outputs.leave_weights():
            self.why_plain = (
                "the script trains some outputs of the model alone, and compiled code fills the"
                " gradients of weights behind the others with zeros"
            )

    def asked_for_gradient(self, gradients: Any) -> None:
        """See how the script differentiates: autograd calls this in the backward passes."""
        import torch

        core: Any = torch._C
        keeps = getattr(core._autograd, "_get_current_graph_task_keep_graph", lambda: False)
        if torch.is_grad_enabled():
            self.why_plain = "compiled code has no gradients of gradients, and the script asks"
        elif keeps() and any(gradient is not None and gradient.is_cuda for gradient in gradients):
            self.why_plain = "the script goes twice through one graph on a CUDA device"


def _methods(module: Any) -> list[tuple[Any, str]]:
    """Return the functions in the classes of a module, and torch's own only if named `forward`."""
    kinds = {kind for part in module.modules() for kind in type(part).__mro__}
    return [
        (kind, name)
        for kind in kinds
        for name, value in vars(kind).items()
        if type(value) is FunctionType
        and (name == "forward" or not kind.__module__.startswith("torch."))
    ]


# ---- which outputs of a module the script trains, and which weights lie behind each of them

_MOST_KINDS_COUNT = 16
_MOST_WAITING_COUNT = 4


class Outputs:
    """Which outputs of one root module its backward passes use.

    If an output is not used, plain torch leaves the gradients of the weights that lie
    behind only it None, and optimizers skip them. Compiled code fills them with zeros, and
    weight decay then moves these weights: https://github.com/pytorch/pytorch/issues/131794
    """

    def __init__(self, notice: Callable[[Any], None]) -> None:
        self._notice = notice
        # For each kind of call that plain torch has made, the weights behind what it gave.
        self.reached: dict[Any, frozenset[int]] = {}
        self._behind: dict[Any, Sequence[frozenset[int]]] = {}
        self._waiting: deque[tuple[Sequence[frozenset[int]], set[int]]] = deque(
            maxlen=_MOST_WAITING_COUNT
        )

    def follow(self, kind: Any, result: Any, *, plain: bool) -> Any:
        """Watch which outputs of a call are used; the graph of a `plain` one shows the weights."""
        made = [tensor for tensor in tensors_in(result) if tensor.grad_fn is not None]
        if plain and kind not in self.reached:
            self._learn(kind, made)
        behind, asked = self._behind.get(kind, ()), set[int]()
        places: dict[Any, list[tuple[int, int]]] = {}
        for place, tensor in enumerate(made):
            places.setdefault(tensor.grad_fn, []).append((place, tensor.output_nr))
        with own_hooks():
            for node, own in places.items():
                node.register_prehook(partial(self._see, own, asked))
        if len(behind) == len(made):
            self._waiting.append((behind, asked))
        return result

    def _learn(self, kind: Any, made: Sequence[Any]) -> None:
        if len(self.reached) < _MOST_KINDS_COUNT:
            behind = [frozenset(map(id, leaves_among(nodes_behind([one])))) for one in made]
            self.reached[kind] = frozenset().union(*behind)
            self._behind[kind] = behind if len(set(behind)) > 1 else ()

    def _see(self, own: Sequence[tuple[int, int]], asked: set[int], gradients: Any) -> None:
        asked.update(place for place, index in own if gradients[index] is not None)
        self._notice(gradients)

    def leave_weights(self) -> bool:
        """Return whether backward passes since the last check reached only some weights.

        It is called between two calls: each of several losses may have its own backward pass.
        """
        done = [(behind, asked) for behind, asked in self._waiting if asked]
        if done:
            self._waiting.clear()
        return any(
            frozenset().union(*behind) - frozenset().union(*(behind[place] for place in asked))
            for behind, asked in done
        )
