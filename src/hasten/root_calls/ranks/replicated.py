"""A model of which each rank has a copy: every rank runs the whole script.

All ranks make the same root calls with the same batches. Each computes its share; the outputs are
gathered, so that all have those of the whole batch, and the same loss. On the way back each rank
takes the gradients of its own outputs, and those of weights are added over the ranks.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from hasten.modules import weights_of
from hasten.root_calls.ranks.batch import cut, split
from hasten.root_calls.ranks.exchange import LostRankError
from hasten.root_calls.ranks.gradient_sums import GradientSums
from hasten.root_calls.ranks.held_signals import signals_held
from hasten.root_calls.ranks.held_state import HeldState
from hasten.root_calls.ranks.helper import gradients
from hasten.root_calls.ranks.meeting import CALL, MeetingExchange, checksum
from hasten.root_calls.ranks.served import RankOutputs
from hasten.root_calls.ranks.weights import others_in
from hasten.root_calls.values import tensors_in, with_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hasten.root_calls.ranks.batch import Span
    from hasten.root_calls.ranks.meeting import Meeting
    from hasten.root_calls.ranks.messages import RootCall
    from hasten.root_calls.ranks.share import Share

_CALLS_PER_CHECK_COUNT = 50


class ReplicatedModel:
    """A model that every rank has, and that the script keeps the same on all."""

    def __init__(self, root_call: RootCall, share: Share, meeting: Meeting) -> None:
        self.held = HeldState(root_call.module)
        self.room_bytes = sys.maxsize
        self.why_lost = ""
        self._share = share
        self._meeting = meeting
        self._exchange = MeetingExchange(meeting, root_call.module)
        self._weights = list(weights_of(root_call.module))
        self._others = others_in(root_call.module)
        self._before: list[Any] = []
        self._call_count = 0

    def answer(self, root_call: RootCall, generator: Any) -> RankOutputs:
        """Make a root call: compute a share, and gather those of all ranks.

        Raises:
            LostRankError: a share could not be computed; it is raised on all ranks.
        """
        self._before = [other.detach().clone() for other in self._others]
        if self.held.has_other_training:
            self.held.accept()
        alike = self._alike(root_call, generator)
        spans = split(root_call.size, self._meeting.rank_count)
        own, computed = self._compute(root_call, spans[self._meeting.rank])
        outputs = tensors_in(own)
        rows, needed = self._meeting.gather(CALL, alike, outputs)
        tensors = [tensor for row in rows for tensor in row]
        if any(needed):
            flags = needed * len(rows)
            tensors = list(_function().apply(computed, tensors, flags, *computed.sources))
        each = len(outputs)
        return RankOutputs(own, [tensors[start::each] for start in range(each)], spans)

    def _alike(self, root_call: RootCall, generator: Any) -> dict[str, Any]:
        """Return what has to be the same on all ranks, or they compute something else."""
        count = self._call_count
        self._call_count += 1
        known = {"inputs": checksum(root_call.tensors), "random states": checksum([generator])}
        if count % _CALLS_PER_CHECK_COUNT == 0 or count & (count - 1) == 0:
            known["weights"] = checksum([*self._weights, *self._before])
        return known

    def _compute(self, root_call: RootCall, span: Span) -> tuple[Any, _ComputedShare]:
        with_grad = root_call.surroundings.with_grad
        sources = [weight for weight in self._weights if with_grad and weight.requires_grad]
        pieces = list(sources)

        def piece(tensor: Any) -> Any:
            part = cut(tensor, span)
            if with_grad and tensor.requires_grad:
                part = part.detach().requires_grad_()
                sources.append(tensor)
                pieces.append(part)
            return part

        args, kwargs = with_tensors((root_call.args, root_call.kwargs), piece)
        try:
            with self._share.of(span, self._exchange):
                own = root_call.call(args, kwargs)
        except LostRankError:  # all have heard of it
            raise
        except Exception as error:
            self._meeting.fail(error)
        return own, _ComputedShare(self._meeting, tensors_in(own), sources, pieces)

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Return a context that raises on every rank where one of them raises in it."""
        try:
            yield
        except Exception as error:
            self._meeting.fail(error)
        self._meeting.meet("agree", {})

    def restore_buffers(self) -> None:
        """Put the buffers back to what they were before the latest call, which has failed."""
        for other, before in zip(self._others, self._before, strict=False):
            other.data.copy_(before)

    def close(self, why: str) -> None:
        """Make no more calls."""
        self.why_lost = why


class _ComputedShare:
    """The share of a call that this rank has computed, for the way back.

    Attributes:
        sources: weights, and the inputs of the whole batch, that get gradients.
    """

    def __init__(
        self, meeting: Meeting, outputs: list[Any], sources: list[Any], pieces: list[Any]
    ) -> None:
        import torch

        self.sources = sources
        self._meeting = meeting
        self._outputs = outputs
        self._pieces = pieces  # of the sources: a weight is its own, an input is cut
        # A weight may be frozen before the way back; torch gives it its gradient all the same.
        edge = torch.autograd.graph.get_gradient_edge
        self._edges = list(map(edge, pieces)) if any(o.requires_grad for o in outputs) else []

    def gradients(self, given: Sequence[Any]) -> list[Any]:
        """Return the gradients of the sources, of the whole batch, None where there is none.

        Args:
            given: the gradients of the outputs of all ranks, by rank.
        """
        start = self._meeting.rank * len(self._outputs)
        is_cut = self._are_cut()
        leaves = {n: piece for n, piece in enumerate(self._pieces) if not is_cut[n]}
        sums = GradientSums(self._meeting, leaves, len(is_cut))
        try:
            with sums.filling():
                found = self._own(given[start : start + len(self._outputs)])
            sums.complete(found)
        except Exception as error:
            sums.complete(())
            if isinstance(error, LostRankError):
                raise
            self._meeting.fail(error)
        values = checksum([one for one in given if one is not None])
        which = "".join("-+"[one is not None] for one in given)
        alike = {"gradients": which, "losses": values}
        self._meeting.meet("go back through a model", alike)
        return self._joined(found, sums)

    def _own(self, given: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of this rank's share."""
        import torch

        keeps: Any = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
        pairs = [
            (output, gradient)
            for output, gradient in zip(self._outputs, given, strict=True)
            if output.requires_grad and gradient is not None
        ]
        if not pairs:
            return [None] * len(self._pieces)
        outputs, wanted = zip(*pairs, strict=True)
        return gradients(outputs, wanted, self._edges, keeps_graph=bool(keeps()))

    def _are_cut(self) -> list[bool]:
        return [a.shape != b.shape for a, b in zip(self.sources, self._pieces, strict=True)]

    def _joined(self, found: Sequence[Any], sums: GradientSums) -> list[Any]:
        """Return the gradients of the whole batch: added over the ranks, or side by side."""
        import torch

        totals, reached = sums.total()
        beside = [n for n in range(len(found)) if n not in totals]
        parts = [
            torch.zeros_like(self._pieces[n]) if found[n] is None else found[n] for n in beside
        ]
        rows, _ = self._meeting.gather("give gradients of inputs", {}, parts) if parts else ([], [])
        totals.update(zip(beside, map(torch.cat, zip(*rows, strict=True)), strict=True))
        return [totals[n] if is_there else None for n, is_there in enumerate(reached)]


@cache
def _function() -> Any:
    import torch
    from torch.autograd.function import once_differentiable

    class Gathered(torch.autograd.Function):
        """The outputs of all ranks; their gradients lead back through this rank's share."""

        @staticmethod
        def forward(ctx: Any, share: Any, tensors: Any, differentiable: Any, *sources: Any) -> Any:
            ctx.share = share
            ctx.set_materialize_grads(False)
            pairs = zip(tensors, differentiable, strict=True)
            ctx.mark_non_differentiable(*(tensor for tensor, is_one in pairs if not is_one))
            return tuple(tensors)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Any) -> Any:
            with signals_held():
                return None, None, None, *ctx.share.gradients(grads)

    return Gathered
