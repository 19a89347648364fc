"""The nouns: every value that passes from one stage to the next.

Read this folder first. All records are frozen, keyword-only (except `Plan`) and without behaviour
beyond their invariants. Durations are seconds (`_s`) or nanoseconds (`_ns`), sizes are bytes
(`_bytes`), speed-ups above 1 mean better. Unknown is None.
"""

from hasten.records.enums import (
    Assumption,
    Effect,
    Entry,
    Outcome,
    Phase,
    Reason,
    Scope,
    Setting,
    Verdict,
)
from hasten.records.finding import CONTENDED, Diagnosis, Finding, HotLine, Place
from hasten.records.machine import Budget, Caveat, Cpu, Machine, Memory, Pressure, Runtime, Torch
from hasten.records.measurements import (
    LEAST_RATIO,
    Comparison,
    Interval,
    Noise,
    Pair,
    Profile,
    Step,
)
from hasten.records.plan import Plan, Workload
from hasten.records.traits import (
    CheckpointTraits,
    CollectorTraits,
    CompilerTraits,
    LoaderTraits,
    ModelTraits,
    OptimizerTraits,
    PrecisionTraits,
    ProductSpeed,
    Traits,
)
from hasten.records.tuning import (
    REPEATABLE,
    STRUCTURE,
    Cost,
    Gate,
    LeverReport,
    LossEnvelope,
    Passes,
    Profiling,
    Proof,
    Tuning,
)

__all__ = [
    "CONTENDED",
    "LEAST_RATIO",
    "REPEATABLE",
    "STRUCTURE",
    "Assumption",
    "Budget",
    "Caveat",
    "CheckpointTraits",
    "CollectorTraits",
    "Comparison",
    "CompilerTraits",
    "Cost",
    "Cpu",
    "Diagnosis",
    "Effect",
    "Entry",
    "Finding",
    "Gate",
    "HotLine",
    "Interval",
    "LeverReport",
    "LoaderTraits",
    "LossEnvelope",
    "Machine",
    "Memory",
    "ModelTraits",
    "Noise",
    "OptimizerTraits",
    "Outcome",
    "Pair",
    "Passes",
    "Phase",
    "Place",
    "Plan",
    "PrecisionTraits",
    "Pressure",
    "ProductSpeed",
    "Profile",
    "Profiling",
    "Proof",
    "Reason",
    "Runtime",
    "Scope",
    "Setting",
    "Step",
    "Torch",
    "Traits",
    "Tuning",
    "Verdict",
    "Workload",
]
