"""omp_wait_policy: how long OpenMP threads spin between two operations before they sleep.

Helps: `short` where others need the cores: loader workers, a CPU quota (the runtime looks at the
    affinity mask alone, and spinning uses up the quota), busy neighbours. A thread whose core is
    taken holds up the others, and where they spin for it, the kernel sees no reason to hurry.
    `active` where nobody needs them, and Python takes longer between operations than the runtime
    spins by default. `passive`, for runtimes other than libgomp, is as `short` without spinning.
Hurts: `short` costs a wake-up after each longer wait, so its gain goes with the busy neighbours;
    `passive` costs one after each operation; `active` keeps every core busy all the time.
Maths: exact. The same threads compute the same parts.
Source: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.errors import PlanError
from hasten.kernel_files import text
from hasten.lever import COMPUTE_AND_DATA, Lever, in_shell, one_of
from hasten.records import Effect, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hasten.lever import ScriptContext, Training

# libgomp reads the first; Intel's and LLVM's runtimes need the second to sleep at once.
_VARIABLES = {
    "passive": {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"},
    "active": {"OMP_WAIT_POLICY": "active", "KMP_BLOCKTIME": "infinite"},
    "short": {"GOMP_SPINCOUNT": "1000"},  # libgomp's own where it knows that cores are shared
}
_DECIDING = {
    "libgomp": ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"),
    "libiomp5": ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_LIBRARY"),
    "libomp": ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_LIBRARY"),
}
_RUNTIME = re.compile(r"/(libgomp|libiomp5|libomp)[.-]")
_MAPS = Path("/proc/self/maps")
_BUSY_RATIO = 0.10
_ALONE = "torch uses 1 thread: none waits for another"
_UNSHARED = "the operations are too small for torch to share them: no thread waits for another"


def _deciding(runtimes: Iterable[str]) -> list[str]:
    """Return the variables that some of these runtimes read; all variables if none is known."""
    known = [_DECIDING[name] for name in runtimes if name in _DECIDING] or _DECIDING.values()
    return list(dict.fromkeys(name for names in known for name in names))


def _runtimes(context: ScriptContext) -> list[str]:
    found = [one.name for one in context.machine.torch.runtimes] if context.machine.torch else []
    return [*found, "libiomp5"] if "iomp5" in context.traits.preloaded else found


def _own(context: ScriptContext) -> list[str]:
    found = context.traits.openmp_variables
    return [name for name in _deciding(_runtimes(context)) if name in found]


def _sleeping(context: ScriptContext) -> str:
    """Return the policy under which threads soon sleep, which depends on the runtime."""
    known = [name for name in _runtimes(context) if name in _DECIDING]
    return "short" if known == ["libgomp"] else "passive"


def _lacks_openmp(context: ScriptContext) -> bool:
    runtimes = context.machine.torch.runtimes if context.machine.torch else ()
    return bool(runtimes) and all(runtime.kind != "openmp" for runtime in runtimes)


def _shares_cores(context: ScriptContext) -> bool:
    """Return whether a spinning thread takes its core from somebody in this job or another."""
    budget, traits = context.machine.budget, context.traits
    running = (traits.thread_count or 0) + traits.worker_count
    seen = budget.affinity_count or context.machine.cpu.thread_count
    quota = budget.quota_cores_ratio
    return (
        running > budget.core_count
        or (quota is not None and seen is not None and quota < seen)
        or (context.machine.pressure.cpu_some_ratio or 0.0) >= _BUSY_RATIO
    )


def settings(context: ScriptContext) -> tuple[str, ...]:
    """Return the policy that soon sleeps; where the cores are not shared, after active."""
    if why_not(context):
        return ()
    sleeping = _sleeping(context)
    return (sleeping,) if _shares_cores(context) else ("active", sleeping)


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    if context.traits.thread_count is None:
        return "the threads of the script are not known"
    if context.traits.thread_count == 1:
        return _ALONE
    if off_cpu := context.off_cpu():
        return off_cpu
    if context.traits.has_team is False:
        return _UNSHARED
    if own := _own(context):
        return f"the environment of the script sets {' and '.join(own)}"
    return "torch runs without OpenMP here" if _lacks_openmp(context) else ""


def promising(context: ScriptContext) -> bool:
    """Return whether more threads than cores run under a quota that OpenMP cannot see."""
    budget = context.machine.budget
    over = (context.traits.thread_count or 0) > budget.core_count
    return over and budget.limited_by == "quota"


def env(env: Mapping[str, str], setting: str) -> Mapping[str, str]:
    """Set the policy, where the user has not set one; each variable of the user stays."""
    if env.get("OMP_WAIT_POLICY"):
        return env
    return {**env, **{k: v for k, v in _VARIABLES[setting].items() if not env.get(k)}}


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Check that the policy is in effect; it can no longer be set.

    Raises:
        PlanError: the environment or the script has set another one, or the runtime has no such.
    """
    loaded = set(_RUNTIME.findall(text(_MAPS)))
    if setting == "short":
        if loaded and "libgomp" not in loaded:
            problem = f"{min(loaded)} does not know GOMP_SPINCOUNT."
            raise PlanError(problem, remedy="Set omp_wait_policy=passive.")
        if os.environ.get("GOMP_SPINCOUNT") == _VARIABLES["short"]["GOMP_SPINCOUNT"]:
            return lambda: None  # it overrules a policy, such as that of the runs of a proof
    policy = os.environ.get("OMP_WAIT_POLICY", setting)
    chosen = {**_VARIABLES[setting], "OMP_WAIT_POLICY": policy}
    found = {name: os.environ.get(name) for name in _deciding(loaded)}
    others = [name for name, value in found.items() if value and value != chosen.get(name)]
    if policy.lower() != setting or others:
        told = others[0] if others else f"OMP_WAIT_POLICY={policy}"
        raise PlanError(
            f"{told} decides how OpenMP waits.", remedy="Unset it so the lever decides."
        )
    return lambda: None


LEVER = Lever(
    name="omp_wait_policy",
    phases=COMPUTE_AND_DATA,
    effect=Effect.EXACT,
    scope=Scope.LAUNCH,
    kind=str,
    validate=one_of(*_VARIABLES),
    settings=settings,
    gain_ratio=3.0,
    shares_cpus=lambda _: True,
    eases_contention=lambda setting: setting == "short",
    why_not=why_not,
    snippet=lambda setting: in_shell(_VARIABLES[setting]),
    promising=promising,
    redundant_with=lambda _, traits: _ALONE if traits.thread_count == 1 else "",
    cures=frozenset({"contended-machine"}),
    env=env,
    apply=apply,
)
