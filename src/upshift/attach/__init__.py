"""Stage 3. Seams into torch, inside the process that trains: what is seen and what is steered."""

from upshift.attach.ledger import PHASES, Ledger
from upshift.attach.watch import Watch

__all__ = ["PHASES", "Ledger", "Watch"]
