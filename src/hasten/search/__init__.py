"""Stage 5. What to try next: pure functions of what has been seen."""

from hasten.search.budget_limits import BudgetLimits, Price, Refusal, RefusalReason
from hasten.search.candidate import Candidate, bounds
from hasten.search.journal import Journal, SearchStarted
from hasten.search.priors import Prior, read_priors
from hasten.search.proposal import AcceptanceCriteria, Kind, Proposal, gained_ratio, last_about
from hasten.search.propose import guesses, incumbent, propose, refusals
from hasten.search.rows import rows

__all__ = [
    "AcceptanceCriteria",
    "BudgetLimits",
    "Candidate",
    "Journal",
    "Kind",
    "Price",
    "Prior",
    "Proposal",
    "Refusal",
    "RefusalReason",
    "SearchStarted",
    "bounds",
    "gained_ratio",
    "guesses",
    "incumbent",
    "last_about",
    "propose",
    "read_priors",
    "refusals",
    "rows",
]
