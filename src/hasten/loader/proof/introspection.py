"""Resolve introspection in the code of items: `getattr`, `isinstance` and the like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader.proof import attributes, objects
from hasten.loader.proof.source import is_user_class
from hasten.loader.proof.values import Value, either, live, new, unknown

if TYPE_CHECKING:
    from hasten.loader.proof.frame import Frame


def asked(body: Frame, name: str, args: list[Value], node: Any) -> Value | None:
    """Answer `getattr`, `hasattr`, `isinstance`, `callable` and `type` of live objects."""
    owners = args[0].objects if args else None
    if name == "callable" and owners:
        found = {callable(one) for one in owners}
        return live(found.pop()) if len(found) == 1 else new(flat=True)
    if name == "type" and len(args) == 1 and owners:
        return live(*{type(one) for one in owners})
    if name == "isinstance" and len(args) == 2:
        return _is_instance(owners, args[1].only)
    return _attribute(body, name, args, node) if name in ("getattr", "hasattr") else None


def _attribute(body: Frame, name: str, args: list[Value], node: Any) -> Value | None:
    """Answer `getattr` and `hasattr`."""
    if len(args) < 2:
        return None
    owners, given = args[0].objects, args[1].only
    if type(given) is not str:
        return None if name == "hasattr" else body.gap("getattr() of a name that varies", node)
    if owners is None:
        return attributes.attribute(body, args[0], given, node) if name == "getattr" else None
    body.reads.attributes.add(given)
    having = [one for one in owners if objects.has_attribute(one, given)]
    if name == "hasattr":
        same = len(having) in (0, len(owners))
        return live(bool(having)) if same else new(flat=True)
    found_all = [attributes.attribute(body, live(one), given, node) for one in having]
    if len(having) < len(owners):
        found_all.append(args[2] if len(args) > 2 else unknown())
    return either(*found_all)


def _is_instance(owners: tuple[Any, ...] | None, given: Any) -> Value:
    known = owners is not None and isinstance(given, (type, tuple))
    if not known or any(is_user_class(type(one)) for one in _all_of(given)):
        return new(flat=True)
    found = {isinstance(one, given) for one in owners or ()}
    return live(found.pop()) if len(found) == 1 else new(flat=True)


def _all_of(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)
