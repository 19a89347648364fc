"""Files of torch's compiler cache: what a process need not do again because they are there."""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PROBES = "hasten-probes"


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
