"""allocator: jemalloc or tcmalloc instead of the C library's allocator.

Helps: steps that allocate and free thousands of tensors, or tensors of megabytes: both libraries
    keep freed memory, per thread, instead of returning it to the kernel.
Hurts: memory; the resident set stays at its peak. Programs that the script starts get the library,
    too.
Maths: exact. Only where the bytes live changes.
Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.lever import STEP, Lever, expect_preloaded, in_shell, one_of, preload
from hasten.records import Effect, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hasten.lever import ScriptContext, Training

_FILES = {
    "jemalloc": ("libjemalloc.so*",),
    "tcmalloc": ("libtcmalloc_minimal.so*", "libtcmalloc.so*"),
}
# Freed pages are kept for good, and reused at once. No thread of jemalloc's
# own: it would not survive the fork of a loader worker. tcmalloc must not report big tensors.
_TUNED = {
    "jemalloc": {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,metadata_thp:auto"},
    "tcmalloc": {
        "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": str(1 << 60),
        "TCMALLOC_RELEASE_RATE": "0",
    },
}


def _folders(env: Mapping[str, str]) -> Iterator[Path]:
    """Yield library folders: this Python's, the environment's, the usual ones."""
    for prefix in (env.get("CONDA_PREFIX"), sys.prefix, sys.base_prefix):
        if prefix:
            yield Path(prefix) / "lib"
    yield from map(Path, filter(None, env.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    multiarch = getattr(sys.implementation, "_multiarch", "")
    yield from (Path(f) / multiarch for f in ("/usr/lib", "/lib"))
    yield from map(Path, ("/usr/local/lib", "/usr/lib64", "/usr/lib", "/lib64", "/lib"))


def find(name: str, env: Mapping[str, str]) -> str | None:
    """Return the path of a library on this machine; it is read, never loaded."""
    folders = list(_folders(env))
    for pattern in _FILES[name]:
        for folder in folders:
            for path in sorted(folder.glob(pattern)):
                if path.is_file() and path.suffix != ".py":  # a script of gdb's may lie beside it
                    return str(path)
    return None


def _preloaded(context: ScriptContext) -> str:
    paths = context.traits.preloaded.replace(":", " ").split()
    return next((os.path.basename(path) for path in paths if "malloc" in path), "")


def settings(context: ScriptContext) -> tuple[str, ...]:
    """Return the libraries that are installed here, where the user has chosen none."""
    if _preloaded(context):
        return ()
    return tuple(name for name in _FILES if find(name, os.environ))


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try."""
    if own := _preloaded(context):
        return f"the script runs under {own} already"
    return "neither jemalloc nor tcmalloc is installed (apt install libjemalloc2)"


def env(env: Mapping[str, str], setting: str) -> Mapping[str, str]:
    """Preload the library after what the user preloads; if it is gone, tell the child."""
    path = find(setting, env)
    return {**(_TUNED[setting] if path else {}), **preload(env, setting, path)}


def _snippet(setting: str) -> str:
    """Return what `env` sets, for a shell; a place to fill in where the library is gone."""
    path = find(setting, os.environ) or f"/path/to/lib{setting}.so"
    return in_shell(preload(_TUNED[setting], setting, path))


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Check that the library was preloaded; there is nothing left to do.

    Raises:
        LookupError: the library was there when the plan was made but is gone now.
    """
    expect_preloaded(setting)
    return lambda: None


LEVER = Lever(
    name="allocator",
    phases=STEP,
    effect=Effect.EXACT,
    scope=Scope.LAUNCH,
    kind=str,
    validate=one_of(*_FILES),
    settings=settings,
    gain_ratio=3.0,
    why_not=why_not,
    snippet=_snippet,
    promising=lambda _: False,
    provides=lambda setting, traits: replace(traits, preloaded=setting),
    env=env,
    apply=apply,
)
