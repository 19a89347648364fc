"""What the followers of particular kinds of code see of the call they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import ast
    from collections.abc import Mapping, Sequence

    from hasten.loader.proof.reads import Reads
    from hasten.loader.proof.values import Value


class Given(NamedTuple):
    """What a call is given, and where it stands.

    Attributes:
        args: positional arguments.
        named: keyword arguments.
        node: the code of the call.
    """

    args: list[Value]
    named: Mapping[str, Value]
    node: Any

    @property
    def values(self) -> list[Value]:
        """All arguments."""
        return [*self.args, *self.named.values()]

    def after(self, *first: Value) -> Given:
        """Return the same with arguments before the others, as a method has its object."""
        return self._replace(args=[*first, *self.args])


class CallFollower(Protocol):
    """Follows calls: `follower.Follower`."""

    reads: Reads
    in_worker: bool
    following: list[Any]

    def call(self, body: Frame, function: Any, given: Given) -> Value:
        """Follow a function that is written in Python."""

    def method(self, body: Frame, owner: Value, name: str, given: Given) -> Value:
        """Follow a method of an object of the script's."""

    def inner(self, callee: Value, given: Given) -> Value:
        """Follow a function or lambda that is defined in the code itself."""

    def live(self, body: Frame, one: Any, given: Given) -> Value:
        """Follow a call of a live object."""

    def value(self, body: Frame, callee: Value, given: Given) -> Value:
        """Follow a call of whatever a value may be."""


class Frame(Protocol):
    """One call of a function that is followed without being executed: `body.Body`."""

    follower: CallFollower
    reads: Reads
    path: str
    space: dict[str, Any]
    owner: type | None
    variables: dict[str, Value]
    returned: list[Value]
    first: str
    trails: list[dict[str, list[Value]]]

    def name(self, name: str) -> Value:
        """Return what a variable may be."""

    def enclosing(self) -> dict[str, Value]:
        """Return the variables that functions defined in this one may see."""

    def gap(self, what: str, node: ast.AST | None) -> Value:
        """Note something here that rules out purity."""

    def ask(self, value: Value, name: str, node: ast.AST | None) -> None:
        """Note that a name is looked up on a value whose class may not be known."""

    def value(self, node: ast.expr) -> Value:
        """Follow an expression."""

    def bind(self, name: str, value: Value, node: ast.AST | None = None) -> None:
        """Follow an assignment to a variable."""

    def assign(self, target: ast.expr, value: Value) -> None:
        """Follow an assignment to any kind of target."""

    def run(self, statements: Sequence[ast.stmt]) -> Value:
        """Follow statements; return what they may return."""
