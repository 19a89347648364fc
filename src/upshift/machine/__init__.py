"""Stage 1. Read what this machine gives a job; write nothing."""
