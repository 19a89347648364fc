"""Findings: named, measured reasons for lost time. Pure functions of records.

Each file in `families/` ends with `SYMPTOMS`, the symptoms of one family. A symptom names the
pattern that it looks for and requires a measurement: what looks slow but costs nothing is not
reported.
"""

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.discover import diagnose, discover

__all__ = ["Case", "Symptom", "diagnose", "discover"]
