"""Stage 5. What to try next: pure functions of what has been seen."""

from hasten.search.journal import Begun, Journal
from hasten.search.knob import Knob, bounds
from hasten.search.priors import Prior, read_priors
from hasten.search.proposal import LEAST_RATIO, Kind, Proposal, Stakes
from hasten.search.propose import incumbent, propose, refusals
from hasten.search.rows import rows
from hasten.search.terms import Price, Reason, Refusal, Terms

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
