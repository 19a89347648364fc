"""openmp_runtime: Intel's OpenMP library in place of the one that torch brings.

Helps: some models on Intel processors, and scripts that load several OpenMP libraries.
Hurts: others; neither library is faster in general. Programs that the script starts get it, too.
Maths: rounding. The library decides who adds what to a sum that threads share.
Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.lever import COMPUTE_AND_DATA, Lever, expect_preloaded, one_of, preload
from hasten.records import Effect, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.lever import ScriptContext, Training

_FILE = "libiomp5.so"


def find(env: Mapping[str, str]) -> str | None:
    """Return the path of the library where pip or conda put it for this Python."""
    prefixes = (env.get("CONDA_PREFIX"), sys.prefix, site.getuserbase())
    paths = [Path(prefix) / "lib" / _FILE for prefix in prefixes if prefix]
    found = (str(path) for path in paths if path.is_file())
    return next(found, None) if sys.platform == "linux" else None


def _in_use(context: ScriptContext) -> str:
    """Return the name of Intel's or LLVM's library where torch runs on it already."""
    runtimes = context.machine.torch.runtimes if context.machine.torch else ()
    names = [one.name for one in runtimes if one.name in ("libiomp5", "libomp")]
    if "iomp5" in str(context.traits.get("preloaded", "")):
        names.append("libiomp5")
    return names[0] if names else ""


def settings(context: ScriptContext) -> tuple[str, ...]:
    """Return the one setting there is, where the library is installed and not in use."""
    return ("libiomp5",) if not _in_use(context) and find(os.environ) else ()


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try."""
    if sys.platform != "linux":
        return "libraries are preloaded on Linux only"
    if own := _in_use(context):
        return f"torch runs on {own} already"
    return "intel-openmp is not installed for this Python (pip install intel-openmp)"


def env(env: Mapping[str, str], setting: str) -> Mapping[str, str]:
    """Preload the library after what the user preloads; where it is gone, say so to the child.

    Its threads spin for 200 ms after each operation, in which loader workers wait for a core;
    1 ms, as in torch's own launcher, still bridges the way to the next operation. A way of
    waiting that the user has chosen stays.
    """
    path = find(env)
    wait = {"KMP_BLOCKTIME": "1"} if path and "OMP_WAIT_POLICY" not in env else {}
    return {**wait, **preload(env, setting, path)}


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Have nothing left to do: the process was started with the library.

    Raises:
        LookupError: the library was there when the plan was made, and is not any more.
    """
    expect_preloaded(setting)
    return lambda: None


LEVER = Lever(
    name="openmp_runtime",
    phases=COMPUTE_AND_DATA,
    effect=Effect.ROUNDING,
    scope=Scope.LAUNCH,
    kind=str,
    validate=one_of("libiomp5"),
    settings=settings,
    gain_ratio=2.0,
    why_not=why_not,
    snippet=lambda _: (
        "LD_PRELOAD=$(python -c 'import sys; print(sys.prefix)')/lib/libiomp5.so KMP_BLOCKTIME=1"
        " python ...  # in the shell"
    ),
    promising=lambda _: False,
    env=env,
    apply=apply,
)
