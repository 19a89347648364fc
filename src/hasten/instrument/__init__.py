"""Stage 3. Seams into torch, inside the process that trains: what is seen and what is steered."""

from hasten.instrument.watch import Watch

__all__ = ["Watch"]
