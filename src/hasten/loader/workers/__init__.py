"""Processes that make batches ahead, and whether their batches may be believed."""
