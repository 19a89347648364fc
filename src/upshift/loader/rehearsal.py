"""In a trial, what pays from the second pass on is shown as it will be then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upshift.loader.indices import Stream

_MOST_S = 4.0
_MOST_BATCHES = 64


class Rehearsal:
    """The first batches of a pass, made ready beforehand, which then come again and again.

    A trial sees seconds of a training that takes hours: with a cache it would see only the pass
    that fills it. So the samples of some batches are kept before any step is timed, and the
    rest of the trial draws its batches from these. The order of samples in a trial is nobody's
    concern; a real run and a proof have no rehearsal.

    Args:
        source: something whose `warm(indices)` keeps samples ahead of use.
        stream: the indices of the pass.
    """

    def __init__(self, source: Any, stream: Stream) -> None:
        self._window: list[Any] = []
        self._place = 0
        until_s = time.monotonic() + _MOST_S
        while len(self._window) < _MOST_BATCHES and time.monotonic() < until_s:
            indices = stream.take(now=True)
            if indices is None:
                break
            if not source.warm(indices):
                stream.put_back(indices)
                break
            self._window.append(indices)

    def take(self, stream: Stream, *, now: bool) -> Any:
        """Return the indices of the next batch in place of the stream's own."""
        place, self._place = self._place, self._place + 1
        if place < len(self._window):
            return self._window[place]
        own = stream.take(now=now)
        if own is None or not self._window:
            self._place = place
            return own
        return self._window[place % len(self._window)]
