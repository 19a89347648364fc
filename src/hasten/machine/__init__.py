"""Stage 1. Read what this machine gives a job; write nothing."""

from hasten.machine.probe import probe_torch
from hasten.machine.survey import read

__all__ = ["probe_torch", "read"]
