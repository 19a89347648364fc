"""Stage 7. Say it: text, JSON, and the plan file."""
