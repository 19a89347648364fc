"""What is where in the user's files: calls, names and the scopes that they belong to.

Nothing is run. A name is resolved through the imports of its file, unless the file or the
function binds it to something else as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from hasten.report.edits.project import absolute_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hasten.report.edits.project import Project, SourceFile

_SPACE = (
    cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine, cst.Newline,
    cst.Comment, cst.Comma,
)  # fmt: skip
_Defined = cst.FunctionDef | cst.ClassDef


@dataclass(eq=False, kw_only=True)
class SourceScope:
    """The body of a file, a class or a function.

    Attributes:
        name: dotted, such as `Trainer.fit`; "" for the file itself.
        bound: names that are assigned here, or are parameters.
        looped: those of them that are the target of a `for` loop.
    """

    source: SourceFile
    name: str
    node: cst.CSTNode
    outer: SourceScope | None = None
    bound: set[str] = field(default_factory=set)
    looped: set[str] = field(default_factory=set)
    parameters: tuple[str, ...] = ()

    @property
    def owner(self) -> SourceScope | None:
        """The class that this is a method of."""
        outer = self.outer
        return outer if outer is not None and isinstance(outer.node, cst.ClassDef) else None

    def binding(self, name: str) -> SourceScope | None:
        """Return the scope that binds a name used here; class scopes are hidden from inner ones."""
        scope: SourceScope | None = self
        while scope is not None:
            if name in scope.bound and (scope is self or not isinstance(scope.node, cst.ClassDef)):
                return scope
            scope = scope.outer
        return None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Site:
    """A node of interest, and the scope it is in."""

    scope: SourceScope
    node: cst.CSTNode

    @property
    def source(self) -> SourceFile:
        """The file."""
        return self.scope.source

    @property
    def call(self) -> cst.Call:
        """The node as the call that it is."""
        return cast("cst.Call", self.node)

    @property
    def receiver(self) -> cst.BaseExpression:
        """What the method belongs to that is called."""
        return cast("cst.Attribute", self.call.func).value


def dotted(node: cst.CSTNode | None) -> str:
    """Return the text of a plain name or attribute such as `self.model`, else nothing."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr.value}"
    return ""


class Chart:
    """The contents of one file; valid as long as the file's tree is unchanged.

    Attributes:
        imported: what names mean by all imports in the file, including those in functions.
        known: the same for plain top-level imports only, which every line can rely on.
    """

    def __init__(self, source: SourceFile) -> None:
        self.tree = source.tree
        self.calls: list[Site] = []
        self.assignments: list[Site] = []
        self.returns: list[Site] = []
        self.loops: list[Site] = []
        self.functions: list[SourceScope] = []
        self.imported: dict[str, str] = {}
        self.known: dict[str, str] = {}
        self.parents: dict[int, cst.CSTNode] = {}
        self.scope = SourceScope(source=source, name="", node=source.tree)
        self._positions: Mapping[cst.CSTNode, object] | None = None
        self._walk(source.tree, self.scope)

    def line(self, node: cst.CSTNode) -> int:
        """Return the line on which a node begins."""
        if self._positions is None:  # it takes longer than all the rest
            wrapper = MetadataWrapper(self.tree, unsafe_skip_copy=True)
            self._positions = wrapper.resolve(PositionProvider)
        return int(self._positions[node].start.line)  # type: ignore[attr-defined]

    def _walk(self, node: cst.CSTNode, scope: SourceScope) -> None:
        self._note(node, scope)
        for child in _children(node):
            self.parents[id(child)] = node
            self._walk(child, self._opened(child, scope) if isinstance(child, _Defined) else scope)

    def _opened(self, node: cst.CSTNode, scope: SourceScope) -> SourceScope:
        defined = cast("_Defined", node)
        name = f"{scope.name}.{defined.name.value}".lstrip(".")
        parameters: tuple[str, ...] = ()
        if isinstance(defined, cst.FunctionDef):
            told = defined.params
            parameters = tuple(
                p.name.value for p in (*told.posonly_params, *told.params, *told.kwonly_params)
            )
        inner = SourceScope(
            source=scope.source, name=name, node=node, outer=scope, bound=set(parameters),
            parameters=parameters,
        )  # fmt: skip
        self.functions.append(inner)
        return inner

    def _note(self, node: cst.CSTNode, scope: SourceScope) -> None:
        if isinstance(node, cst.Call):
            self.calls.append(Site(scope=scope, node=node))
        elif isinstance(node, cst.Return) and node.value is not None:
            self.returns.append(Site(scope=scope, node=node))
        elif isinstance(node, cst.For | cst.CompFor):
            self.loops.append(Site(scope=scope, node=node))
        elif isinstance(node, cst.Import | cst.ImportFrom):
            self._note_import(node, scope.source)
        elif isinstance(node, cst.Assign | cst.AnnAssign) and node.value is not None:
            self.assignments.append(Site(scope=scope, node=node))
        for target in targets(node):
            scope.bound.update(_written(target))
            if isinstance(node, cst.For):
                scope.looped.update(_written(target))

    def _note_import(self, node: cst.Import | cst.ImportFrom, source: SourceFile) -> None:
        names = _imported_names(node, source)
        self.imported.update(names)
        if self.parents.get(id(self.parents[id(node)])) is self.tree:
            self.known.update(names)


def _imported_names(node: cst.Import | cst.ImportFrom, source: SourceFile) -> dict[str, str]:
    """Return the names that an import binds, each with its full name."""
    names: dict[str, str] = {}
    if isinstance(node.names, cst.ImportStar):
        return names
    base = ""
    if isinstance(node, cst.ImportFrom):
        package = source.name if source.is_package else source.name.rpartition(".")[0]
        base = absolute_name(dotted(node.module), len(node.relative), package)
    for alias in node.names:
        name = dotted(alias.name)
        own = dotted(alias.asname.name) if alias.asname else ""
        if isinstance(node, cst.ImportFrom):
            names[own or name] = f"{base}.{name}".lstrip(".")
        else:
            head = name.partition(".")[0]
            names[own or head] = name if own else head
    return names


_CHARTS: WeakKeyDictionary[SourceFile, Chart] = WeakKeyDictionary()


def _chart(source: SourceFile) -> Chart:
    """Return the chart of a file, made anew only if its tree has changed."""
    chart = _CHARTS.get(source)
    if chart is None or chart.tree is not source.tree:
        chart = _CHARTS[source] = Chart(source)
    return chart


class Survey:
    """The nodes of all files of a project, as they are now, in the order of the text."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._charts = {source: _chart(source) for source in project.sources}
        charts = self._charts.values()
        self.calls = [site for chart in charts for site in chart.calls]
        self.assignments = [site for chart in charts for site in chart.assignments]
        self.returns = [site for chart in charts for site in chart.returns]
        self.loops = [site for chart in charts for site in chart.loops]
        self.functions = [scope for chart in charts for scope in chart.functions]
        self.files = {source: chart.scope for source, chart in self._charts.items()}
        self._means: dict[int, SourceScope | None] = {}

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the ancestors of a node, from the inside out."""
        inside = (c.parents for c in self._charts.values() if id(node) in c.parents)
        parents = next(inside, {})
        while (node := parents.get(id(node))) is not None:  # type: ignore[assignment]
            yield node

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the statement that a node belongs to, one whole line or compound."""
        line = (cst.SimpleStatementLine, cst.BaseCompoundStatement)
        return next(n for n in (node, *self.parents(node)) if isinstance(n, line))

    def places(self, sites: list[Site]) -> str:
        """Return where some nodes are in the user's files, in words."""
        lines = [(s.source, self._charts[s.source].line(s.node)) for s in sites]
        return " and ".join(dict.fromkeys(self.project.place(*line) for line in lines))

    def full_name(self, node: cst.CSTNode, scope: SourceScope) -> str:
        """Return what a name means by the imports: `torch.optim.AdamW` for `optim.AdamW`."""
        text = dotted(node)
        head, _, rest = text.partition(".")
        if not head or scope.binding(head) is not None:
            return ""
        base = self._follow(self._charts[scope.source].imported.get(head, ""))
        return f"{base}.{rest}" if base and rest else base

    def called(self, *names: str, last: frozenset[str] = frozenset()) -> list[Site]:
        """Return the calls of functions and classes with given full names.

        Args:
            names: whole names, or ends such as `torch.optim.` with `last`.
            last: the names that may follow, whatever private modules are in between.
        """
        found = []
        for site in self.calls:
            full = self.full_name(site.call.func, site.scope)
            head, _, tail = full.rpartition(".")
            if full in names or (tail in last and any(f"{head}.".startswith(n) for n in names)):
                found.append(site)
        return found

    def methods(self, name: str) -> list[Site]:
        """Return the calls of a method by its name, of whatever object."""
        calls = [(site, site.call.func) for site in self.calls]
        return [s for s, f in calls if isinstance(f, cst.Attribute) and f.attr.value == name]

    def local_name(self, source: SourceFile, full: str) -> str:
        """Return a name for an import that every line of a file can use; "" if there is none.

        An import in a function, a `try` or an `if` binds no name that other lines can rely on.
        """
        names = self._charts[source].known
        own = next((name for name, told in names.items() if told == full), "")
        return own if own not in self.files[source].bound else ""

    def function(self, site: Site) -> SourceScope | None:
        """Return the function, method or class of the project that a call means."""
        key = id(site.node)
        if key not in self._means:
            self._means[key] = self.named(site.call.func, site.scope)
        return self._means[key]

    def named(self, func: cst.CSTNode, scope: SourceScope) -> SourceScope | None:
        """Return the function, method or class of the project that a name means."""
        text = dotted(func)
        if not text:
            return None
        if text.startswith("self.") and scope.owner is not None:
            wanted = f"{scope.owner.name}.{text[5:]}"
            return self._defined(scope.source, wanted)
        if scope.binding(text.partition(".")[0]) is None:
            full = self.full_name(func, scope)
            module, _, name = full.rpartition(".")
            source = self.project.named(module)
            if source is not None:
                return self._defined(source, name)
        around: SourceScope | None = scope
        while around is not None:
            if isinstance(around.node, cst.FunctionDef):
                inner = self._defined(scope.source, f"{around.name}.{text}")
                if inner is not None:
                    return inner
            around = around.outer
        return self._defined(scope.source, text)

    def _defined(self, source: SourceFile, name: str) -> SourceScope | None:
        found = [f for f in self._charts[source].functions if f.name == name]
        return found[0] if len(found) == 1 else None

    def _follow(self, name: str) -> str:
        """Follow a name through project modules that merely re-export it."""
        for _ in range(4):
            module, _, last = name.rpartition(".")
            source = self.project.named(module)
            further = self._charts[source].imported.get(last, "") if source is not None else ""
            if not further:
                return name
            name = further
        return name


def _children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the children of a node; libcst's own `children` rebuilds the node to find them."""
    for name in vars(type(node))["__dataclass_fields__"]:
        value = getattr(node, name)
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, cst.CSTNode) and not isinstance(part, _SPACE):
                yield part


def names_in(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the names, plain or dotted, that occur in an expression."""
    if dotted(node):
        yield node
        return
    own = getattr(node, "attr" if isinstance(node, cst.Attribute) else "keyword", None)
    for child in _children(node):
        if child is not own:
            yield from names_in(child)


def binds(node: cst.CSTNode, names: frozenset[str]) -> bool:
    """Return whether any of some names, plain or dotted, is rebound within a node."""
    bound = [*targets(node)]
    if isinstance(node, cst.CompFor):
        bound.append(node.target)
    elif isinstance(node, cst.Param):
        bound.append(node.name)
    if any(not names.isdisjoint(_written(target)) for target in bound):
        return True
    return any(binds(child, names) for child in _children(node))


def mentions(node: cst.CSTNode, name: str) -> bool:
    """Return whether a name, plain or dotted, is used within a node."""
    return any(f"{dotted(used)}.".startswith(f"{name}.") for used in names_in(node))


def targets(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield what a statement binds."""
    if isinstance(node, cst.Assign):
        yield from (target.target for target in node.targets)
    elif isinstance(node, cst.AnnAssign | cst.AugAssign | cst.For | cst.NamedExpr):
        yield node.target
    elif isinstance(node, cst.WithItem) and node.asname is not None:
        yield node.asname.name  # that of an import is no binding of this kind


def _written(target: cst.CSTNode) -> Iterator[str]:
    """Yield the names that a target binds, including dotted ones."""
    if isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _written(element.value)
    else:
        yield dotted(target)
