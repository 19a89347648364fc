"""Stage 3. Seams into torch, inside the process that trains: what is seen and what is steered."""

from hasten.attach.ledger import PHASES, Ledger
from hasten.attach.watch import Watch

__all__ = ["PHASES", "Ledger", "Watch"]
