"""Stage 5. What to try next: pure functions of what has been seen."""

from upshift.search.journal import Begun, Journal
from upshift.search.knob import Knob, bounds
from upshift.search.priors import Prior, read_priors
from upshift.search.proposal import LEAST_RATIO, Kind, Proposal, Stakes
from upshift.search.propose import incumbent, propose, refusals
from upshift.search.rows import rows
from upshift.search.terms import Price, Reason, Refusal, Terms

__all__ = [
    "LEAST_RATIO",
    "Begun",
    "Journal",
    "Kind",
    "Knob",
    "Price",
    "Prior",
    "Proposal",
    "Reason",
    "Refusal",
    "Stakes",
    "Terms",
    "bounds",
    "incumbent",
    "propose",
    "read_priors",
    "refusals",
    "rows",
]
