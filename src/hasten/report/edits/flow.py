"""Which names of the project mean the same thing: the model, an optimizer, a loader.

Names are joined if a value passes from one to the other unchanged: by an assignment, as an
argument of one of the project's functions, as its result, as an attribute of `self`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import libcst as cst

from hasten.report.edits.survey import Site, dotted, targets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.report.edits.survey import SourceScope, Survey

    Key = tuple[object, str]

# Methods of a module that return the module.
_ITSELF = frozenset({
    "to", "cuda", "cpu", "float", "double", "half", "bfloat16", "train", "eval",
    "requires_grad_", "apply", "share_memory",
})  # fmt: skip


class Flow:
    """The names of a survey, joined."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._heads: dict[Key, Key] = {}
        for site in survey.assignments:
            for target in targets(site.node):
                self._bind(target, cast("cst.Assign", site.node).value, site.scope)
        for site in survey.returns:
            assert isinstance(site.node, cst.Return)  # noqa: S101
            self._link_value((site.scope, "return"), site.node.value, site.scope)
        for site in survey.calls:
            self._pass(site)

    def key(self, expression: cst.CSTNode | None, scope: SourceScope) -> Key | None:
        """Return the key of an expression, if it is a name or an attribute of `self`."""
        text = dotted(expression)
        head, _, rest = text.partition(".")
        if not head:
            return None
        if head == "self" and rest and "." not in rest:
            return (scope.owner or scope, text)
        if rest:
            return None
        return (scope.binding(head) or self._survey.files[scope.source], head)

    def head(self, key: Key) -> Key:
        """Return the representative of all keys joined with this one."""
        while (above := self._heads.get(key, key)) != key:
            key = above
        return key

    def same(self, expression: cst.CSTNode | None, scope: SourceScope, key: Key) -> bool:
        """Return whether an expression means the same thing as `key`."""
        own = self.key(expression, scope)
        return own is not None and self.head(own) == self.head(key)

    def result(self, site: Site) -> Key:
        """Return the representative of the value of a call itself."""
        return self.head((site.node, ""))

    def _join(self, one: Key | None, other: Key | None) -> None:
        if one is not None and other is not None and self.head(one) != self.head(other):
            self._heads[self.head(one)] = self.head(other)

    def _bind(self, target: cst.CSTNode, value: cst.CSTNode | None, scope: SourceScope) -> None:
        if not isinstance(target, cst.Tuple | cst.List):
            self._link_value(self.key(target, scope), value, scope)
            return
        names = [element.value for element in target.elements]
        if isinstance(value, cst.Tuple | cst.List) and len(value.elements) == len(names):
            for name, element in zip(names, value.elements, strict=True):
                self._link_value(self.key(name, scope), element.value, scope)
        elif isinstance(value, cst.Call):
            made = self._survey.function(Site(scope=scope, node=value))
            if made is not None:
                for index, name in enumerate(names):
                    self._join(self.key(name, scope), (made, f"return {index}"))

    def _link_value(self, key: Key | None, value: cst.CSTNode | None, scope: SourceScope) -> None:
        """Join a name with the source of its value."""
        if isinstance(value, cst.Tuple) and key is not None and key[1] == "return":
            for index, element in enumerate(value.elements):
                self._link_value((key[0], f"return {index}"), element.value, scope)
            return
        self._join(key, self.key(value, scope))
        if not isinstance(value, cst.Call):
            return
        self._join(key, (value, ""))
        made = self._survey.function(Site(scope=scope, node=value))
        if made is not None:
            self._join(key, (made, "return"))
        func = value.func
        if isinstance(func, cst.Attribute) and func.attr.value in _ITSELF:
            self._link_value(key, func.value, scope)
        elif dotted(func) == "iter" and value.args:
            self._link_value(key, value.args[0].value, scope)

    def _pass(self, site: Site) -> None:
        """Join the arguments of a call of the project's own functions with their parameters."""
        called = self._survey.function(site)
        if called is None:
            return
        skipped = 0
        if isinstance(called.node, cst.ClassDef):
            made = [f for f in self._survey.functions if f.outer is called]
            called = next((f for f in made if f.name.endswith(".__init__")), None)
            if called is None:
                return
        if called.owner is not None and called.parameters[:1] == ("self",):
            skipped = 1
        for name, value in _passed(site.call, called.parameters[skipped:]):
            if name in called.parameters:
                self._link_value((called, name), value, site.scope)


def _passed(call: cst.Call, parameters: tuple[str, ...]) -> Iterator[tuple[str, cst.CSTNode]]:
    """Yield the parameter and the value of each argument, as far as they are known."""
    waiting = iter(parameters)
    for argument in call.args:
        if argument.star:
            return
        name = argument.keyword.value if argument.keyword else next(waiting, "")
        yield name, argument.value
