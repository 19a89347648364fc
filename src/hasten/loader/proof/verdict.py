"""What is proven about a loader, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hasten.records.enums import Assumption

ASSUMPTION = Assumption.DATASET_UNCHANGED
"""What a user grants in place of a proof."""


class ProofReason(Enum):
    """Why batches made elsewhere are the script's own."""

    PURE = "its items have no effects outside of the batch"
    OWNED = "nothing else holds what its items read"
    UNWRITTEN = "the script never stores into what its items read"


@dataclass(frozen=True, slots=True)
class MissingReason:
    """A reason that could not be shown.

    Attributes:
        reason: which one.
        what: what rules it out, as a clause.
        where: `file:line` in the script or a library; empty where there is no line.
    """

    reason: ProofReason
    what: str
    where: str = ""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.what}{place}"


@dataclass(frozen=True, slots=True)
class LoaderProof:
    """What is known about the code and the data behind a loader.

    Attributes:
        gaps: the reasons that are missing; none where the proof is complete.
        draws: whether items may draw from the global random generators.
    """

    gaps: tuple[MissingReason, ...] = ()
    draws: bool = False

    @property
    def is_pure(self) -> bool:
        """Whether making an item changes nothing outside it."""
        return all(gap.reason is not ProofReason.PURE for gap in self.gaps)

    @property
    def is_whole(self) -> bool:
        """Whether all three reasons hold."""
        return not self.gaps

    @property
    def message(self) -> str:
        """Say in a clause what is missing; empty where nothing is."""
        return str(self.gaps[0]) if self.gaps else ""
