"""A TOML file as data: whatever it contains, it is read quickly or refused in one sentence."""

from __future__ import annotations

import errno
import os
import re
import select
import tomllib
from typing import TYPE_CHECKING, Any

from hasten.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_MOST_BYTES = 1 << 18  # a command may have many arguments
_PATIENCE_S = 3.0
_DEEPEST_COUNT = 8
_LARGEST = 2**63  # what TOML promises
# tomllib takes quadratic time in the number of parts of a dotted key: `a.a.a.a = 1`.
_LONG_KEY = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}"""
)
_REMEDY = "Name another --plan, or run `hasten tune` again to write a new one."


def load(path: Path) -> dict[str, Any]:
    """Read a file that has the size and structure of a plan.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not TOML.
        PlanError: it is TOML, but no plan looks like that.
    """
    data = _beginning(path)
    if len(data) > _MOST_BYTES:
        raise PlanError(f"{path} is larger than {_MOST_BYTES >> 10} KiB.", remedy=_REMEDY)
    text = data.decode("utf-8")
    try:
        content = {} if (deep := bool(_LONG_KEY.search(text))) else tomllib.loads(text)
    except RecursionError:
        deep = True
    if deep or _depth_count(content) > _DEEPEST_COUNT:
        raise PlanError(f"{path} is nested too deeply.", remedy=_REMEDY)
    if any(not -_LARGEST <= number < _LARGEST for number in _integers(content)):
        raise PlanError(f"A number in {path} has more than 64 bits.", remedy=_REMEDY)
    return content


def _beginning(path: Path) -> bytes:
    """Return as much of a file as matters, without hanging on a pipe that has no writer."""
    data = b""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        while len(data) <= _MOST_BYTES:
            try:
                part = os.read(descriptor, _MOST_BYTES + 1 - len(data))
            except BlockingIOError:
                if select.select([descriptor], [], [], _PATIENCE_S)[0]:
                    continue
                raise OSError(errno.ETIMEDOUT, "nothing comes from there") from None
            if not part:
                break
            data += part
    finally:
        os.close(descriptor)
    return data


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _depth_count(content: dict[str, Any]) -> int:
    """Return the nesting depth, counted only as far as it matters."""
    level: list[Any] = [content]
    count = 0
    while level and count <= _DEEPEST_COUNT:
        level = [part for value in level for part in _parts(value)]
        count += 1
    return count


def _integers(content: dict[str, Any]) -> Iterator[int]:
    ahead: list[Any] = [content]
    while ahead:
        value = ahead.pop()
        ahead += _parts(value)
        if isinstance(value, int):
            yield value
