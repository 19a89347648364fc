"""Which outputs of a module the script trains, and which weights lie behind each of them."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.compile.calls import made_by_autograd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST_KINDS_COUNT = 16
_MOST_WAITING_COUNT = 4


class Outputs:
    """What the backward passes of one root module ask of its outputs.

    Where nothing is asked of an output, plain torch leaves the gradients of the weights that lie
    behind it alone None, and optimizers pass them over. Compiled code fills them with zeros, and
    weight decay then moves these weights: https://github.com/pytorch/pytorch/issues/131794

    Args:
        notice: told of the gradients of outputs, before they go on.

    Attributes:
        reached: for each kind of call that plain torch has made, the weights behind what it gave.
    """

    def __init__(self, notice: Callable[[Any], None]) -> None:
        self._notice = notice
        self.reached: dict[Any, frozenset[int]] = {}
        self._behind: dict[Any, Sequence[frozenset[int]]] = {}
        self._waiting: deque[tuple[Sequence[frozenset[int]], set[int]]] = deque(
            maxlen=_MOST_WAITING_COUNT
        )

    def follow(self, kind: Any, result: Any, *, plain: bool) -> Any:
        """See what is asked of the outputs of a call, and return them.

        Args:
            kind: of the call.
            result: what it gave.
            plain: whether plain torch made it, so that autograd's graph shows the weights.
        """
        made = made_by_autograd(result)
        if plain and kind not in self.reached:
            self._learn(kind, made)
        behind, asked = self._behind.get(kind, ()), set[int]()
        places: dict[Any, list[tuple[int, int]]] = {}
        for place, tensor in enumerate(made):
            places.setdefault(tensor.grad_fn, []).append((place, tensor.output_nr))
        for node, own in places.items():
            node.register_prehook(partial(self._see, own, asked))
        if len(behind) == len(made):
            self._waiting.append((behind, asked))
        return result

    def _learn(self, kind: Any, made: Sequence[Any]) -> None:
        if len(self.reached) < _MOST_KINDS_COUNT:
            behind = [_leaves(tensor.grad_fn) for tensor in made]
            self.reached[kind] = frozenset().union(*behind)
            self._behind[kind] = behind if len(set(behind)) > 1 else ()

    def _see(self, own: Sequence[tuple[int, int]], asked: set[int], gradients: Any) -> None:
        asked.update(place for place, index in own if gradients[index] is not None)
        self._notice(gradients)

    def leave_weights(self) -> bool:
        """Return whether backward passes since the last question reached only some weights.

        It is asked between two calls: losses of several outputs may each have a pass of their own.
        """
        done = [(behind, asked) for behind, asked in self._waiting if asked]
        if done:
            self._waiting.clear()
        return any(
            frozenset().union(*behind) - frozenset().union(*(behind[place] for place in asked))
            for behind, asked in done
        )


def _leaves(node: Any) -> frozenset[int]:
    """Return who gets a gradient from a node of autograd's graph, by their ids."""
    waiting, known, found = [node], {node}, set()
    while waiting:
        one = waiting.pop()
        if (variable := getattr(one, "variable", None)) is not None:
            found.add(id(variable))
        new = {after for after, _ in one.next_functions if after is not None} - known
        known |= new
        waiting += new
    return frozenset(found)
