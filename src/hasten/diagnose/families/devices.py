"""Accelerators that a script does not use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.shares import is_worth_telling
from hasten.records import Finding, Phase
from hasten.units import percent

if TYPE_CHECKING:
    from hasten.records import Torch

_COMPUTED = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER)


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
    return Finding(
        share=share,
        message=f"The model is on the CPU, which computes for {percent(share.mid_ratio)} of a "
        f"step, and {_idle(torch)}.",
        remedy=f'Move the model and each batch to it: .to("{torch.accelerator}").',
    )


def _idle(torch: Torch) -> str:
    names = ", ".join(dict.fromkeys(torch.accelerators)) or torch.accelerator
    count = len(torch.accelerators)
    return f"{names} has nothing to do" if count < 2 else f"{count} of {names} have nothing to do"


SYMPTOMS = (Symptom(name="accelerator-unused", find=_accelerator_unused),)
