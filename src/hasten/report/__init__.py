"""Stage 7. Say it: text, HTML, Markdown, JSON, events, edits and the plan file."""
