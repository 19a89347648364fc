"""Forks that the script does not make, of which no library should warn it."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETTING = "TOKENIZERS_PARALLELISM"


@contextlib.contextmanager
def quiet_forks() -> Iterator[None]:
    """Keep the tokenizers of `transformers` from warning in a fork, as the variable set does.

    Where they have been used, they turn to one thread in a fork, with or without it: their other
    threads are gone. `os.environ` stays as it is, and in the fork the variable stays set.
    """
    if "tokenizers" not in sys.modules or _SETTING in os.environ:
        yield
        return
    pid = os.getpid()
    os.putenv(_SETTING, "false")
    try:
        yield
    finally:
        if os.getpid() == pid:
            os.unsetenv(_SETTING)
