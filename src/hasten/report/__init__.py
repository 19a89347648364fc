"""Stage 7. Say it: text, HTML, JSON, edits and the plan file."""
