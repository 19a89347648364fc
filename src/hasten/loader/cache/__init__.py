"""Samples that are made once: where they are kept, and when they may be."""
