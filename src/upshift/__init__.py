"""Make an unmodified PyTorch training script faster, and prove it."""

__version__ = "0.1.0"
