"""Arguments of a call, changed without touching the code around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from hasten.report.edits.survey import Site, dotted, names_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.report.edits.survey import Survey


def code(node: cst.CSTNode) -> str:
    """Return the text of a node."""
    return cst.Module(body=()).code_for_node(node)


def argument(call: cst.Call, name: str, *, index: int | None = None) -> cst.Arg | None:
    """Return the argument that a call passes for a parameter, by name or by position."""
    for place, arg in enumerate(call.args):
        if arg.star == "*":
            index = None
        elif arg.keyword is not None:
            if arg.keyword.value == name:
                return arg
        elif place == index and not arg.star:
            return arg
    return None


def with_argument(call: cst.Call, name: str, value: str, *, index: int | None = None) -> cst.Call:
    """Return a call with an argument changed if present, or else added at the end.

    >>> call = cst.parse_expression("Adam(params,  1e-3,)")
    >>> code(with_argument(call, "fused", "True"))
    'Adam(params,  1e-3, fused=True,)'
    """
    found = argument(call, name, index=index)
    if found is not None:
        changed = found.with_changes(value=cst.parse_expression(value))
        return call.with_changes(args=[changed if a is found else a for a in call.args])
    return call.with_changes(args=_added(call, name, value))


def _added(call: cst.Call, name: str, value: str) -> list[cst.Arg]:
    """Return the arguments with one more, formatted like those before it."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(value=cst.parse_expression(value), keyword=cst.Name(name), equal=equal)
    args = list(call.args)
    if not args:
        return [new]
    last = args[-1]
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
        # It used the parentheses of the call.
        bare = last.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        last = last.with_changes(value=bare)
    new = new.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    comma = cst.Comma(whitespace_after=_between(args, call.whitespace_before_args))
    closed = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
    return [*args[:-1], closed, new]


def _between(
    parts: Sequence[cst.Arg | cst.BaseDictElement], lead: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """Return what to put between two parts: a space, or a newline if each has its own line.

    That shows between the first two, or for a single one in what leads to it.
    """
    comma = parts[0].comma
    space = comma.whitespace_after if len(parts) > 1 and isinstance(comma, cst.Comma) else lead
    if isinstance(space, cst.ParenthesizedWhitespace):  # without its comment
        return space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    return cst.SimpleWhitespace(" ")


def spread_names(call: cst.Call) -> list[str]:
    """Return what a call unpacks with `**`; "" for anything but a plain name."""
    return [dotted(arg.value) for arg in call.args if arg.star == "**"]


def home(survey: Survey, site: Site, name: str, *, index: int | None = None) -> Site | None:
    """Return the node that has or gets an argument: the call, or the dict that it spreads.

    None means that its arguments come from elsewhere.
    """
    if any(arg.star == "*" for arg in site.call.args):
        return None
    if argument(site.call, name, index=index) is not None or not spread_names(site.call):
        return site
    return spread_literal(survey, site)


def put(node: Any, name: str, value: str, *, index: int | None = None) -> Any:
    """Return a call or a dict with an argument changed if present, or else added at the end."""
    if isinstance(node, cst.Dict):
        return _with_entry(node, name, value)
    return with_argument(node, name, value, index=index)


def spread_literal(survey: Survey, site: Site) -> Site | None:
    """Return the dict literal that a call unpacks with `**`, if it is used for nothing else.

    A dict that is also changed, passed on or read must not be edited.
    """
    names = spread_names(site.call)
    if len(names) != 1 or not names[0] or "." in names[0]:
        return None
    owner = site.scope.binding(names[0])
    if owner is None:
        return None
    made = [
        a
        for a in survey.assignments
        if a.scope is owner and isinstance(a.node, cst.Assign) and _names_one(a.node, names[0])
    ]
    if len(made) != 1 or not isinstance(made[0].node, cst.Assign):
        return None
    value = made[0].node.value
    full = survey.full_name(site.call.func, site.scope)
    spread = [
        s
        for s in survey.calls
        if names[0] in spread_names(s.call) and s.scope.binding(names[0]) is owner
    ]
    alike = all(survey.full_name(s.call.func, s.scope) == full for s in spread)
    if not isinstance(value, cst.Dict) or not alike:
        return None
    used_count = sum(dotted(one).partition(".")[0] == names[0] for one in names_in(owner.node))
    return Site(scope=owner, node=value) if used_count == len(spread) + 1 else None


def _with_entry(node: cst.Dict, name: str, value: str) -> cst.Dict:
    elements = list(node.elements)
    for place, element in enumerate(elements):
        if isinstance(element, cst.DictElement) and _text(element.key) == name:
            elements[place] = element.with_changes(value=cst.parse_expression(value))
            return node.with_changes(elements=elements)
    new = cst.DictElement(key=cst.parse_expression(f'"{name}"'), value=cst.parse_expression(value))
    if elements:
        new = new.with_changes(comma=elements[-1].comma)
        space = _between(elements, node.lbrace.whitespace_after)
        elements[-1] = elements[-1].with_changes(comma=cst.Comma(whitespace_after=space))
    return node.with_changes(elements=[*elements, new])


def value(node: cst.CSTNode, name: str, *, index: int | None = None) -> cst.BaseExpression | None:
    """Return what a call or a dict gives for a name, or a call by position."""
    if isinstance(node, cst.Call):
        found = argument(node, name, index=index)
        return None if found is None else found.value
    elements = node.elements if isinstance(node, cst.Dict) else ()
    entries = (e for e in elements if isinstance(e, cst.DictElement) and _text(e.key) == name)
    return next((element.value for element in entries), None)


def _text(node: cst.BaseExpression) -> object:
    return node.evaluated_value if isinstance(node, cst.SimpleString) else None


def _names_one(node: cst.Assign, name: str) -> bool:
    return len(node.targets) == 1 and dotted(node.targets[0].target) == name
