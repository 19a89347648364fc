"""Stage 5. What to try next: pure functions of what has been seen."""

from upshift.search.journal import Journal
from upshift.search.knob import Knob, bounds
from upshift.search.proposal import Kind, Proposal
from upshift.search.propose import incumbent, propose
from upshift.search.rows import rows

__all__ = ["Journal", "Kind", "Knob", "Proposal", "bounds", "incumbent", "propose", "rows"]
