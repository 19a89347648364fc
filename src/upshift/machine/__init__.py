"""Stage 1. Read what this machine gives a job; write nothing."""

from upshift.machine.probe import probe_torch
from upshift.machine.survey import read

__all__ = ["probe_torch", "read"]
