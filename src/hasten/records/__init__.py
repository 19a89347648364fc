"""The nouns: every value that passes from one stage to the next.

Read this folder first. All records are frozen, keyword-only (except `Plan`) and without behaviour
beyond their invariants. Durations are seconds (`_s`) or nanoseconds (`_ns`), sizes are bytes
(`_bytes`), speed-ups above 1 mean better. Unknown is None.
"""

from hasten.records.enums import *
from hasten.records.finding import *
from hasten.records.machine import *
from hasten.records.measurements import *
from hasten.records.plan import *
from hasten.records.traits import *
from hasten.records.tuning import *
