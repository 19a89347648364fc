"""Follow the tables of `datasets`, whose rows are made anew each time from files nobody writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader.proof import kinds
from hasten.loader.proof.frame import Given
from hasten.loader.proof.values import Value, new
from hasten.loader.proof.word_list import words

if TYPE_CHECKING:
    import ast

    from hasten.loader.proof.frame import Frame

_PLAIN = words(
    "Value ClassLabel Sequence List LargeList Array2D Array3D Array4D Array5D Translation "
    "TranslationVariableLanguages"
)


def row(body: Frame, table: Any, node: ast.AST | None) -> Value:
    """Return what a row of a table may be, or several, or a column."""
    refused = _refused(table.features)
    if refused:
        return body.gap(f"it reads columns of {refused}", node)
    how, told = table._format_type, kinds.format_of(table)
    if how == "custom":
        made = body.follower.live(body, told["transform"], Given([new(kind=dict)], {}, node))
        return new(shares=body.reads.keeps([made]), kind=dict)
    if how not in (None, "torch", "numpy") or str(told.get("device") or "cpu") != "cpu":
        return body.gap(f"it reads {kinds.shown(table)} in the format {how}", node)
    return new(shares=how == "numpy")  # which may be a view of the file


def call(body: Frame, table: Any, name: str, given: Given) -> Value:
    """Follow a call of a method of a table."""
    if name in ("__getitem__", "__getitems__"):  # as a `Subset` does
        return row(body, table, given.node)
    return body.gap(f"it calls .{name}() of {kinds.shown(table)}", given.node)


def _refused(feature: Any) -> str:
    """Return the kind of a column whose values keep a file or a decoder; empty if there is none."""
    if isinstance(feature, dict):
        return next(filter(None, map(_refused, feature.values())), "")
    if isinstance(feature, (list, tuple)):
        return next(filter(None, map(_refused, feature)), "")
    name = type(feature).__name__
    if name == "Image":
        return ""
    inner = getattr(feature, "feature", None)
    return name if name not in _PLAIN else _refused(inner) if inner is not None else ""
