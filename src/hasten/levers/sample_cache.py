"""sample_cache: keep decoded samples in memory that all loader workers share.

Helps: datasets that decode, decompress or compute the same samples in every pass: folders of
    images, from the second pass on. Random transforms that follow still run each time.
Hurts: memory, up to the setting; the first pass, which stores the samples (half to two
    thirds of the speed on scripts with small pictures).
Maths: exact. A sample is kept where it draws nothing and is the same when made twice, up to its
    first random transform; of one that draws in code of the script's own, the JPEG and PNG files
    that Pillow opens are kept decoded. It is dropped when its files or the dataset change.
Source: https://arxiv.org/abs/2202.08679
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cgroup import available_bytes
from hasten.errors import PlanError
from hasten.lever import Lever
from hasten.loader import engine_for
from hasten.loader.cache.cached import Cache
from hasten.loader.worker_counts import unproven
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training
    from hasten.records import LoaderTraits

_FORM = re.compile(r"(\d+)(MiB|GiB)(?::(.+))?")
_UNIT_BYTES = {"MiB": 2**20, "GiB": 2**30}
_LEAST_BYTES = 256 * 2**20
_SMALLEST_BYTES = 2**20
_MOST_BYTES = 256 * 2**30
_PROMISING_RATIO = 0.1


def _spare_bytes(context: ScriptContext) -> int | None:
    """Return half of what the job can still take; None where that is unknown.

    The other half is for what a first step does not show yet: workers, checkpoints, the page
    cache. At most a quarter of a cgroup's limit is taken: beyond the limit the kernel kills.
    """
    memory = context.machine.memory
    if memory.available_bytes is None:
        return None
    spare = memory.available_bytes // 2
    return spare if memory.limit_bytes is None else min(spare, memory.limit_bytes // 4)


def _draws(loader: LoaderTraits) -> bool:
    """Return whether items draw random numbers, and nothing is known to precede the draws."""
    return bool(loader.draws) and not (loader.is_folder or loader.opens_pictures)


def settings(context: ScriptContext) -> tuple[str, ...]:
    """Return the budget that this machine can spare, as a power of two."""
    spare = _spare_bytes(context)
    if spare is None or why_not(context):
        return ()
    budget_bytes = min(_MOST_BYTES, 1 << (spare.bit_length() - 1))
    unit = "GiB" if budget_bytes >= _UNIT_BYTES["GiB"] else "MiB"
    return (f"{budget_bytes // _UNIT_BYTES[unit]}{unit}",)


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    loader = context.traits.loader
    if loader is None:
        return "the loop takes its batches from no DataLoader"
    if not loader.is_map_style:
        return "an iterable dataset has no samples that could be asked for twice"
    if why := loader.unkept or unproven(context):  # no assumption permits what the code forbids
        return why
    if _draws(loader):
        return "its items draw random numbers, and nobody can tell what precedes the draws"
    spare = _spare_bytes(context)
    if spare is None:
        return "how much memory is left is unknown here"
    return "too little memory is left to keep samples in" if spare < _LEAST_BYTES else ""


def promising(context: ScriptContext) -> bool:
    """Return whether the loop waits for data at all."""
    return (
        context.baseline is not None and context.baseline.share_ratio(Phase.DATA) > _PROMISING_RATIO
    )


def parse(setting: str) -> tuple[int, str | None]:
    """Return the budget in bytes, and the folder on disk to hold it in, if one is named.

    Raises:
        PlanError: the setting has another form.

    Example:
        >>> parse("2GiB"), parse("512MiB:/scratch")
        ((2147483648, None), (536870912, '/scratch'))
    """
    found = _FORM.fullmatch(setting)
    if found is None:
        raise PlanError(
            f"Cannot read the size of the sample cache in {setting!r}.",
            remedy=f"Write {validate(setting)}.",
        )
    return int(found[1]) * _UNIT_BYTES[found[2]], found[3]


def validate(setting: str) -> str:
    """Say what to write instead of a setting that cannot be read."""
    return "" if _FORM.fullmatch(setting) else "512MiB or 8GiB, or 8GiB:/folder to hold it on disk"


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Offer the cache to every loader; memory is taken as samples are kept.

    It is never more than half of what is left here: the plan may be from a larger machine.
    """
    budget_bytes, folder = parse(setting)
    left_bytes = available_bytes(Path("/")) if folder is None else None
    if left_bytes is not None:
        budget_bytes = max(_SMALLEST_BYTES, min(budget_bytes, left_bytes // 2))
    return engine_for(training).add(Cache(budget_bytes, spill_dir=folder).offer)


LEVER = Lever(
    name="sample_cache",
    phases=frozenset({Phase.DATA}),
    effect=Effect.EXACT,
    scope=Scope.PROCESS,
    kind=str,
    validate=validate,
    settings=settings,
    gain_ratio=50.0,
    cures=frozenset(
        {
            "per-sample-transforms",
            "random-access-store",
            "repeated-decode",
            "slow-decode",
            "slow-storage",
        }
    ),
    why_not=why_not,
    snippet=lambda setting: (
        f"decoded = [load(path) for path, _ in dataset.samples]  # if {setting.partition(':')[0]}"
        " hold them all"
    ),
    promising=promising,
    settle_count=4,
    warms_cache=True,
    apply=apply,
    run_only="the cache is shared by all workers, and drops what changes on disk",
)
