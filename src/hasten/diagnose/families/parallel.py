"""What torch's data parallelism costs on top of the model: copies, searches, exchanges."""

from __future__ import annotations

from statistics import fmean

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import quiet_share
from hasten.diagnose.shares import is_worth_telling
from hasten.records import Finding
from hasten.units import percent, size


def _data_parallel(case: Case) -> Finding | None:
    """Find `DataParallel` on several devices, by the time of its copies."""
    count = case.found.get("parallel.device_count", 0)
    share = quiet_share(case, case.found.get("parallel.moving_s", ()))
    if count < 2 or not is_worth_telling(share):
        return None
    return Finding(
        share=share,
        message=(
            f"DataParallel copies the model to {count} devices and gathers its outputs in every "
            f"step: {percent(share.mid_ratio)} of it, by one Python process for all of them."
        ),
        remedy="Start one process for each device: torchrun and DistributedDataParallel.",
    )


def _unused_parameters_search(case: Case) -> Finding | None:
    """Find searches for parameters without a gradient although every parameter has one."""
    unused_count = case.found.get("parallel.unused_count")
    if not case.found.get("parallel.searches") or unused_count is None or unused_count:
        return None
    share = quiet_share(case, case.found.get("parallel.search_s", ()))
    if not is_worth_telling(share):
        return None
    return Finding(
        share=share,
        message=(
            f"DistributedDataParallel searches the graph for unused parameters in every step, "
            f"{percent(share.mid_ratio)} of it; in the steps that were watched all were used."
        ),
        remedy=(
            "Pass find_unused_parameters=False, if no branch of the model ever leaves "
            "parameters out."
        ),
    )


def _sync_every_microstep(case: Case) -> Finding | None:
    """Find gradients that are exchanged more than once per optimizer step."""
    syncs = case.found.get("parallel.syncs", ())
    if case.found.get("parallel.rank_count", 1) < 2 or not syncs or min(syncs) < 2:
        return None
    exchange_s = case.found.get("parallel.exchange_s", 0.0)
    share = quiet_share(case, [(count - 1) * exchange_s for count in syncs])
    if not is_worth_telling(share):
        return None
    again = size(case.found.get("parallel.exchange_bytes", 0) * (fmean(syncs) - 1))
    return Finding(
        share=share,
        message=(
            f"The ranks exchange their gradients {fmean(syncs):.3g} times for each step of the "
            f"optimizer: {again} more than once would take, {percent(share.mid_ratio)} of a step."
        ),
        remedy=("Run forward and backward of all but the last micro-step under model.no_sync()."),
    )


SYMPTOMS = (
    Symptom(name="data-parallel", find=_data_parallel),
    Symptom(name="unused-parameters-search", find=_unused_parameters_search),
    Symptom(name="sync-every-microstep", find=_sync_every_microstep),
)
