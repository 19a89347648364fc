"""What the tests on a real Slurm share."""

collect_ignore = ["train.py"]  # a script to run, not to import
