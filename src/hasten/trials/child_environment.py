"""What a child is told, and the environment that it is started with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.lever import lookup
from hasten.protocol import Mode, Order
from hasten.trials import own_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hasten.records import Plan

SITE = Path(__file__).parent / "site"

SILENCED = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "COMET_AUTO_LOG_DISABLE": "1",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_TRACKING_URI": "file:./mlruns",
    "MLFLOW_REGISTRY_URI": "file:./mlruns",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "SWANLAB_MODE": "disabled",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "MPLBACKEND": "Agg",
}
"""Trackers and windows, switched off in trials by their own variables."""
_OF_A_SERVER = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID")
"""What only the tracker that the user has set up knows."""


def place(env: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what tells the machine of a real run apart from one that its script sends jobs to."""
    return {"cores": os.cpu_count(), "SLURM_JOB_ID": env.get("SLURM_JOB_ID")}


def environment(
    plan: Plan,
    *,
    mode: Mode,
    assumed: Iterable[str] = (),
    env: Mapping[str, str] = os.environ,
    **details: Any,
) -> dict[str, str]:
    """Return the environment of a child that works under `plan`: the user's own `env`, edited.

    Levers that act before the import of torch edit it, too. `details` are further fields of the
    order, such as `socket` and `seed`.
    """
    result = dict(env)
    for lever, setting in lookup(plan):
        result = dict(lever.env(result, setting))
    if mode is Mode.RUN:
        details["place"] = place(result)
    else:
        result |= SILENCED | {own_port.KEY: str(own_port.free_port())}
        for name in _OF_A_SERVER:
            result.pop(name, None)
    own = result.get("PYTHONPATH")
    result["PYTHONPATH"] = f"{SITE}{os.pathsep}{own}" if own else str(SITE)
    order = Order(mode=mode, plan=dict(plan.settings), assumed=tuple(sorted(assumed)), **details)
    result["HASTEN_CHILD"] = order.write()
    return result
