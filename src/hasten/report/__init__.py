"""Stage 7. Say it: text, HTML, Markdown, JSON, edits and the plan file."""
