"""What is known of the items of a loader, whoever makes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hasten.loader.proofs import Permit


@dataclass(slots=True)
class ItemFacts:
    """What is known of the items of a loader.

    Attributes:
        permit: what may be done with them.
        draws: they draw random numbers; None while nobody knows.
        keeps: workers may stay from pass to pass, as far as has been seen.
    """

    permit: Permit = field(default_factory=Permit)
    draws: bool | None = None
    keeps: bool = True

    @property
    def may_stay(self) -> bool:
        """Workers may go on to the next pass."""
        return self.keeps and self.permit.is_unchanged
