"""Lists of names, written as a text."""

from __future__ import annotations


def words(*texts: str) -> frozenset[str]:
    """Return the words of some texts."""
    return frozenset(word for text in texts for word in text.split())
