"""Stage 1. Read what this machine gives a job; write nothing."""

from hasten.machine.probe import TorchProbe, probe_torch
from hasten.machine.survey import read, with_torch

__all__ = ["TorchProbe", "probe_torch", "read", "with_torch"]
