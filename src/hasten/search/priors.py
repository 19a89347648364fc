"""What levers did to other scripts: committed records, as far as a search needs them.

`priors.toml` is made by `python benchmarks/priors.py` from the records beside it, and names for
each lever the benchmarks that it comes from.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from math import exp, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE = "priors.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What a lever did to the scripts for which there is a record of it.

    Attributes:
        script_count: scripts on which it was tried.
        helped_count: those of them that it made faster.
        log_gain: median log of the speed-up of the phases that it acts on, where it helped.
        log_spread: standard deviation of these logs from script to script; 0 for one script.
    """

    script_count: int
    helped_count: int
    log_gain: float = 0.0
    log_spread: float = 0.0

    def gain_log(self, share_ratio: float) -> float:
        """Return the log speed-up of a step in which its phases take a given share.

        >>> prior = Prior(script_count=1, helped_count=1, log_gain=log(2))
        >>> f"{exp(prior.gain_log(0.5)):.3f}"
        '1.333'
        """
        return -log(1.0 - share_ratio * (1.0 - exp(-self.log_gain)))

    @property
    def weight_count(self) -> float:
        """The number of scripts behind the gain; less where they disagree.

        >>> Prior(script_count=4, helped_count=4, log_gain=0.2, log_spread=0.2).weight_count
        2.0
        """
        if not self.log_gain:
            return 0.0
        return self.helped_count / (1.0 + (self.log_spread / self.log_gain) ** 2)


def read_priors() -> Mapping[str, Prior]:
    """Return the committed record of each lever that has one."""
    document = tomllib.loads(files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))
    return {
        name: Prior(**{key: value for key, value in entry.items() if key != "from"})
        for name, entry in document["lever"].items()
    }
