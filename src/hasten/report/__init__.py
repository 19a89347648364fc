"""Stage 7. Say it: text, HTML, JSON, events, edits and the plan file."""
