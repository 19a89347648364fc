"""One recorded run of the script: the first steps with pinned seeds, then the end."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from upshift.errors import ScriptFailed
from upshift.launch.channel import Listener, make_scratch
from upshift.launch.blocks import patience_s as more_patience_s
from upshift.launch.order import environment
from upshift.launch.process import Isolation, Process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from upshift.records import Plan, Workload

_SEED = 20_240_229


@contextmanager
def recorded(
    workload: Workload,
    plan: Plan,
    *,
    step_count: int,
    forced_count: int,
    teacher: Path | None = None,
    isolation: Isolation,
    patience_s: float,
    floor_seed: int | None = None,
) -> Iterator[tuple[Mapping[str, Any], Path]]:
    """Run the first steps of the script under `plan`; yield what was recorded and where.

    Args:
        workload: the user's command.
        plan: levers to pull.
        step_count: steps to record.
        forced_count: how many of them start from the weights of `teacher`.
        teacher: a folder of weights; None leaves such weights behind.
        isolation: how its writes are kept away from the user's files.
        patience_s: how long the whole run may take.
        floor_seed: change the last bit of each initial weight, by this seed.

    Raises:
        ScriptFailed: the run ended, or took too long, before it had anything to say.
    """
    scratch = make_scratch()
    listener = Listener(scratch / "s")
    tensors = scratch / "tensors"
    tensors.mkdir()
    env = _pinned(
        plan, socket=str(scratch / "s"), steps=step_count, forced=forced_count,
        folder=str(tensors), teach=teacher is None,
        teacher=None if teacher is None else str(teacher),
        perturb=None if floor_seed is None else {"scale": 2.0**-23, "seed": floor_seed},
    )  # fmt: skip
    try:
        process = Process.start(
            workload.command, env=env, cwd=workload.cwd, scratch=scratch, isolation=isolation
        )
    except BaseException:
        listener.close()
        raise
    try:
        until = time.monotonic() + patience_s + more_patience_s(plan)
        found = listener.adopt("verified", until=until, alive=lambda: process.wait(0) is None)
        if found is None:
            raise ScriptFailed(
                "A run for the proof ended or hung before its steps were recorded.",
                remedy="See the output of the script.",
                output=process.errors() or process.output(),
            )
        channel, message = found
        yield message, tensors
        channel.close()
    finally:
        listener.close()
        process.kill()


def _pinned(plan: Plan, **details: Any) -> dict[str, str]:
    env = environment(plan, mode="verify", seed=_SEED, **details)
    env["PYTHONHASHSEED"] = str(_SEED)
    # Two runs share the cores; threads that spin while they wait would starve each other.
    env.setdefault("OMP_WAIT_POLICY", "passive")
    return env
