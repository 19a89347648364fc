"""Stage 4. Which of two plans is faster, and how sure that is."""

from hasten.compare.confirm import Confirmation, confirm, settle, span
from hasten.compare.e_process import confidence_sequence, grid, log_e, log_e_path
from hasten.compare.interval import hodges_lehmann, inverse, signed_rank_interval
from hasten.compare.launches import launches_margin
from hasten.compare.noise import confirming_pairs, measure_noise, plan_pairs, resolution, spread
from hasten.compare.race import (
    DROP_LEAST_COUNT,
    Measure,
    Race,
    Rule,
    compare,
    judge,
    race,
    rule_for,
)

__all__ = [
    "DROP_LEAST_COUNT",
    "Confirmation",
    "Measure",
    "Race",
    "Rule",
    "compare",
    "confidence_sequence",
    "confirm",
    "confirming_pairs",
    "grid",
    "hodges_lehmann",
    "inverse",
    "judge",
    "launches_margin",
    "log_e",
    "log_e_path",
    "measure_noise",
    "plan_pairs",
    "race",
    "resolution",
    "rule_for",
    "settle",
    "signed_rank_interval",
    "span",
    "spread",
]
