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
    """What a lever did to the scripts on which somebody kept a record of it.

    Attributes:
        script_count: scripts on which it was tried.
        helped_count: those of them that it made faster.
        step_log_gain: median log of the speed-up of a whole step where it helped, None where
            no record is of whole steps.
        phase_log_gain: the same of the phases that it acts on alone.
        log_spread: standard deviation of these logs from script to script; 0 for one script.
    """

    script_count: int
    helped_count: int
    step_log_gain: float | None = None
    phase_log_gain: float | None = None
    log_spread: float = 0.0

    def gain_log(self, share_ratio: float) -> float:
        """Return the log of the speed-up of a step, of which its phases take a share.

        >>> prior = Prior(script_count=1, helped_count=1, phase_log_gain=log(2))
        >>> f"{exp(prior.gain_log(0.5)):.3f}"
        '1.333'
        """
        found = []
        if self.step_log_gain is not None:
            found.append(self.step_log_gain)
        if self.phase_log_gain is not None:
            found.append(-log(1.0 - share_ratio * (1.0 - exp(-self.phase_log_gain))))
        return sum(found) / len(found) if found else 0.0

    @property
    def weight_count(self) -> float:
        """Scripts that the gain stands on; less where they disagree.

        >>> Prior(script_count=4, helped_count=4, step_log_gain=0.2, log_spread=0.2).weight_count
        2.0
        """
        gains = [g for g in (self.step_log_gain, self.phase_log_gain) if g]
        if not gains:
            return 0.0
        return self.helped_count / (1.0 + (self.log_spread / max(gains)) ** 2)


def read_priors() -> Mapping[str, Prior]:
    """Return the committed record of each lever that has one."""
    document = tomllib.loads(files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))
    return {
        name: Prior(
            script_count=entry["script_count"],
            helped_count=entry["helped_count"],
            step_log_gain=entry.get("step_log_gain"),
            phase_log_gain=entry.get("phase_log_gain"),
            log_spread=entry["log_spread"],
        )
        for name, entry in document["lever"].items()
    }
