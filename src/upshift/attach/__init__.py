"""Stage 3. Seams into torch, inside the process that trains: what is seen and what is steered."""
