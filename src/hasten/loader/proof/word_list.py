"""Lists of names, written as strings."""

from __future__ import annotations


def words(*texts: str) -> frozenset[str]:
    """Return the words in some strings."""
    return frozenset(word for text in texts for word in text.split())
