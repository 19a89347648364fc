"""Stage 4. Which of two plans is faster, and how sure that is."""
