"""What is known about a loader's items, whoever makes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hasten.loader.proofs import Permit


@dataclass(slots=True)
class ItemFacts:
    """What is known about a loader's items.

    Attributes:
        permit: what may be done with them.
        draws: whether they draw random numbers; None while unknown.
        keeps: whether workers may stay from pass to pass, judging by what has been seen.
    """

    permit: Permit = field(default_factory=Permit)
    draws: bool | None = None
    keeps: bool = True

    @property
    def may_stay(self) -> bool:
        """Whether workers may stay for the next pass."""
        return self.keeps and self.permit.is_unchanged
