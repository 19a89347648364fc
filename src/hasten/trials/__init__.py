"""Stage 2. Turn a plan into a process that harms nothing, and talk with it."""
