"""Which modules the optimizers train, by what names, and where a line about each belongs.

A line goes before the optimizer that is made for a module's weights. There the module is built and
moved, and the loop has not begun.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import libcst as cst

from hasten.report.edits.kinds.optimizers import made
from hasten.report.edits.survey import Site, binds, dotted, mentions, names_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.report.edits.flow import Flow, Key
    from hasten.report.edits.survey import SourceScope, Survey

_WEIGHTS = frozenset({"parameters", "named_parameters"})
_BLOCKS = (cst.Module, cst.IndentedBlock)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Model:
    """A module whose weights an optimizer gets.

    Attributes:
        name: how it is called there: `model`, `self.model`, `agent.net`.
        key: what stands for it in the flow of names, or for the object that it belongs to.
        beneath: the attributes that lead from there to it, such as `net`.
        optimizers: where its optimizers are made.
    """

    name: str
    key: Key
    beneath: tuple[str, ...]
    optimizers: list[Site] = field(default_factory=list)


def models(survey: Survey, flow: Flow) -> list[Model]:
    """Return the models that optimizers of torch train, as far as they have sure names."""
    found: dict[tuple[Key, tuple[str, ...]], Model] = {}
    for site in made(survey):
        for name in _roots(survey, flow, site):
            short = _short(name)
            key = flow.key(cst.parse_expression(short), site.scope) if name else None
            if key is not None:
                beneath = tuple(name[len(short) + 1 :].split(".")) if name != short else ()
                model = Model(name=name, key=key, beneath=beneath)
                found.setdefault((key, beneath), model).optimizers.append(site)
    return list(found.values())


def nameless(survey: Survey, flow: Flow) -> list[Site]:
    """Return the optimizers that train a module which has no sure name where they are made."""
    roots = [(site, _roots(survey, flow, site)) for site in made(survey)]
    return [site for site, names in roots if not names or "" in names]


def means(flow: Flow, node: cst.CSTNode, site: Site, model: Model) -> bool:
    """Return whether an expression beside a node means a model."""
    for name in reversed(model.beneath):
        if not isinstance(node, cst.Attribute) or node.attr.value != name:
            return False
        node = node.value
    return flow.same(node, site.scope, model.key)


def calls_of(survey: Survey, flow: Flow, model: Model) -> list[Site]:
    """Return where a model is called."""
    return [site for site in survey.calls if means(flow, site.call.func, site, model)]


def _roots(survey: Survey, flow: Flow, site: Site) -> list[str]:
    """Return whose weights an optimizer gets; "" stands for what has no sure name.

    They stand in its call, or else in what its arguments are made from within the same function,
    if those are of one module alone.
    """
    given = [name for call in _calls_in(site.node) if (name := _giver(call)) is not None]
    if not given:
        sources = _sources(survey, site)
        beside = [(s, _giver(s.call)) for s in survey.calls if s.scope is site.scope]
        given = [n for s, n in beside if n and _leads(survey, s, _short(n), sources)]
        if len({_short(name) for name in given}) != 1:
            return []
    return list(dict.fromkeys(_root(survey, flow, site, name) for name in given))


def _sources(survey: Survey, site: Site) -> frozenset[str]:
    """Return the names that the arguments of an optimizer are made from, within its function."""
    names = {_short(dotted(used)) for arg in site.call.args for used in names_in(arg.value)}
    while True:
        made_of = [
            used
            for one in survey.assignments
            if one.scope is site.scope and isinstance(one.node, cst.Assign | cst.AnnAssign)
            # `student, teacher = student.cuda(), teacher.cuda()` would bring the teacher.
            and one.node.value is not None and not isinstance(one.node.value, cst.Tuple)
            and binds(one.node, frozenset(names))
            for used in names_in(one.node.value)
        ]  # fmt: skip
        more = {_short(dotted(used)) for used in made_of} - names
        if not more:
            return frozenset(names)
        names |= more


def _leads(survey: Survey, site: Site, name: str, sources: frozenset[str]) -> bool:
    """Return whether weights that are asked for somewhere reach what an optimizer is made from.

    The module is one of the names, or a loop over its weights fills one of them.
    """
    if name in sources:
        return True
    loop = survey.statement(site.node)
    return isinstance(loop, cst.For) and any(
        mentions(loop, one) for one in sources if site.scope.binding(one.partition(".")[0])
    )


def _calls_in(node: cst.CSTNode) -> list[cst.Call]:
    own = [node] if isinstance(node, cst.Call) else []
    return own + [call for child in node.children for call in _calls_in(child)]


def _giver(call: cst.Call) -> str | None:
    """Return `model.head` for `model.head.parameters()`; "" for what is no plain name."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in _WEIGHTS:
        return None
    return dotted(func.value)


def _short(name: str) -> str:
    """Return `model` for `model.backbone`, and `self.model` under `self`."""
    parts = name.split(".")
    return ".".join(parts[:2] if parts[0] == "self" else parts[:1])


def _root(survey: Survey, flow: Flow, site: Site, name: str) -> str:
    """Return the module to which a giver of weights belongs, by a name that is sure; else ""."""
    short = _short(name)
    if not name or not _is_sure(survey, site, name):
        return ""
    key = flow.key(cst.parse_expression(short), site.scope)
    plain = key is not None and _is_plain_object(survey, flow, key)
    if name == short:
        return "" if plain else name
    called = any(flow.same(s.call.func, s.scope, key) for s in survey.calls if key is not None)
    return short if called and not plain else name


def _is_sure(survey: Survey, site: Site, name: str) -> bool:
    """Return whether a name means one module, and does so before the statement of an optimizer.

    The name in a `for` or a comprehension means another one each time, or none outside of it. The
    statement before a function on one line is outside of the function.
    """
    head = name.partition(".")[0]
    owner = site.scope.binding(head)
    statement = _statement(survey, site)
    if owner is not None and head in owner.looped:
        return False
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return False
    if isinstance(statement, cst.If) and _asks_about(statement, _short(name)):
        return False
    return not binds(statement, _names(name))


def _names(name: str) -> frozenset[str]:
    """Return a dotted name and all that it hangs on: `agent` and `agent.net`, but not `self`."""
    parts = name.split(".")
    first = 2 if parts[0] == "self" else 1
    return frozenset(".".join(parts[:count]) for count in range(first, len(parts) + 1))


def _is_plain_object(survey: Survey, flow: Flow, key: Key) -> bool:
    """Return whether a name stands for an object of a class that extends none of a library."""
    made = [survey.function(site) for site in survey.calls if flow.result(site) == flow.head(key)]
    return any(one is not None and _extends_nothing(survey, one) for one in made)


def _extends_nothing(survey: Survey, made: SourceScope) -> bool:
    if not isinstance(made.node, cst.ClassDef) or made.outer is None:
        return False
    for base in made.node.bases:
        parent = survey.named(base.value, made.outer)
        own = parent is not None and parent is not made and _extends_nothing(survey, parent)
        if not own and dotted(base.value) != "object":
            return False
    return True


def places(survey: Survey, model: Model, own: Sequence[Site]) -> list[Site]:
    """Return the statements before which a line about a model belongs: each makes an optimizer.

    A place that has one of the script's own calls of the kind needs none.
    """
    found = [Site(scope=s.scope, node=_statement(survey, s)) for s in model.optimizers]
    unique = {id(place.node): place for place in found}
    return [place for place in unique.values() if not _is_there(survey, own, place)]


def _is_there(survey: Survey, own: Sequence[Site], place: Site) -> bool:
    """Return whether one of some calls is made whenever a place is reached."""
    around = {id(block) for block in _branches(survey, place.node)}
    return any({id(block) for block in _branches(survey, s.node)} <= around for s in own)


def _branches(survey: Survey, node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the blocks around a node in its function that may be passed by."""
    found: list[cst.CSTNode] = []
    for inner, outer in pairwise([node, *survey.parents(node)]):
        if isinstance(outer, cst.FunctionDef | cst.ClassDef):
            break
        if isinstance(inner, cst.BaseSuite) and not isinstance(outer, cst.With):
            found.append(inner)
    return found


def _statement(survey: Survey, site: Site) -> cst.CSTNode:
    """Return the statement of an optimizer before which there can be another."""
    node = survey.statement(site.node)
    around = pairwise((node, *survey.parents(node)))
    return next(inner for inner, outer in around if isinstance(outer, _BLOCKS))


def _asks_about(node: cst.If, name: str) -> bool:
    """Return whether a test of an `if` looks at a name: in a branch it may be no model."""
    further = node.orelse
    return mentions(node.test, name) or (isinstance(further, cst.If) and _asks_about(further, name))
