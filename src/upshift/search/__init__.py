"""Stage 5. What to try next: pure functions of what has been seen."""
