"""Signals that wait until ranks have met: a handler of the script must not raise in between."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def signals_held() -> Iterator[None]:
    """Return a context at whose end the script's handlers run for signals that came within.

    Half an exchange is none, and an exception of a handler is no failure of a model. Signals that
    the script leaves to the system act at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread
        return
    came: list[int] = []

    def hold(number: int, _: Any) -> None:
        came.append(number)

    handlers = {n: found for n in signal.valid_signals() if callable(found := signal.getsignal(n))}
    for held in handlers:
        signal.signal(held, hold)
    try:
        yield
    finally:
        for held, handler in handlers.items():
            if signal.getsignal(held) is hold:
                signal.signal(held, handler)
        for number in came:
            signal.raise_signal(number)
