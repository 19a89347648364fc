"""Accelerators: not used, waited for, fed by slow copies, or many at once."""

from __future__ import annotations

from functools import partial
from statistics import fmean

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import calls_a_step, exposed_share, places_of, quiet_share
from hasten.diagnose.shares import is_worth_telling
from hasten.records import Finding, Phase
from hasten.units import percent, size

_COMPUTED = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER)
_WAIT_REMEDIES = {
    "synchronize": "Leave out synchronize(), and time the device with events or over many steps.",
    "empty_cache": "Leave out empty_cache(): torch uses the memory that it keeps again.",
}


def _accelerator_unused(case: Case) -> Finding | None:
    """Find models on the CPU although torch could use an accelerator."""
    torch = case.machine.torch
    if torch is None or torch.accelerator is None or case.traits.model.device != "cpu":
        return None
    spent_s = [
        sum(step.phase_ns.get(phase, 0) for phase in _COMPUTED) * 1e-9 for step in case.steps
    ]
    share = case.share(spent_s)
    if not is_worth_telling(share):
        return None
    count = len(torch.accelerators)
    names = ", ".join(dict.fromkeys(torch.accelerators)) or torch.accelerator
    idle = f"{names} has" if count < 2 else f"{count} of {names} have"
    return Finding(
        share=share,
        message=f"The model is on the CPU, which computes for {percent(share.mid_ratio)} of a "
        f"step, and {idle} nothing to do.",
        remedy=f'Move the model and each batch to it: .to("{torch.accelerator}").',
    )


def _synchronize_in_loop(case: Case) -> Finding | None:
    """Find synchronize() and empty_cache() in the loop, by the time that the device then idles."""
    told = {name: case.found.get(f"waits.{name}_s", ()) for name in _WAIT_REMEDIES}
    share = exposed_share(case, told["empty_cache"], told["synchronize"])
    if not is_worth_telling(share):
        return None
    names = sorted((name for name in told if any(told[name])), key=lambda name: -sum(told[name]))
    count = case.found.get("waits.calls_count", 0.0)
    return Finding(
        share=share,
        message=f"The loop calls {' and '.join(names)} ({calls_a_step(count)}), and the "
        "accelerator then has nothing to do until the loop comes to its next work: "
        f"{percent(share.mid_ratio)} of a step.",
        remedy=_WAIT_REMEDIES[names[0]],
        places=places_of(case.found.get("waits.places", ())),
    )


def _copies(case: Case, kind: str, *, message: str, remedy: str) -> Finding | None:
    """Return the finding for one kind of copy, if it costs the loop time."""
    told = case.found.get(f"copies.{kind}")
    if not told:
        return None
    seconds = told["step_s"]
    on_host = kind == "pinning"
    share = exposed_share(case, seconds, [0.0] * len(seconds)) if on_host else case.share(seconds)
    if not is_worth_telling(share):
        return None
    return Finding(
        share=share,
        message=message.format(size=size(int(told["step_bytes"])), share=percent(share.mid_ratio)),
        remedy=remedy,
        places=places_of(told["lines"]),
    )


_pinned_memory_missing = partial(
    _copies,
    kind="pageable",
    message="Copies of {size} a step to the accelerator start in memory that is not pinned: "
    "the copies alone take {share} of a step.",
    remedy="Give the DataLoader pin_memory=True and copy with non_blocking=True.",
)
_blocking_copies = partial(
    _copies,
    kind="blocking",
    message="The loop waits for copies of {size} a step to the accelerator, although their "
    "memory is pinned: {share} of a step.",
    remedy="Copy with non_blocking=True.",
)
_pinned_memory_useless = partial(
    _copies,
    kind="pinning",
    message="The loop pins {size} a step by hand, which takes {share} of it.",
    remedy="Leave out .pin_memory(), and give the DataLoader pin_memory=True.",
)


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
    Symptom(name="accelerator-unused", find=_accelerator_unused),
    Symptom(name="synchronize-in-loop", find=_synchronize_in_loop),
    Symptom(name="pinned-memory-missing", find=_pinned_memory_missing),
    Symptom(name="blocking-copies", find=_blocking_copies),
    Symptom(name="pinned-memory-useless", find=_pinned_memory_useless),
    Symptom(name="data-parallel", find=_data_parallel),
    Symptom(name="unused-parameters-search", find=_unused_parameters_search),
    Symptom(name="sync-every-microstep", find=_sync_every_microstep),
)
