"""The user's own files: the script being started, and what it imports from its folder.

They are read, never run: names and paths alone decide which file an import means.
"""

from __future__ import annotations

import ast
import codecs
import os
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libcst as cst

from hasten.errors import UsageError
from hasten.records import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hasten.records import Workload

    Change = Callable[[cst.CSTNode], object]

_FOREIGN = frozenset({"site-packages", "dist-packages", ".venv", "venv", "node_modules"})
_NO_END = "\\ No newline at end of file"
_PASTE = "Run `hasten report`, which shows the lines to write by hand."


class SourceFile:
    """One file, as it is and as it will be.

    Attributes:
        name: its module name as seen from the script's folder; "" for the script itself.
        added: the lines put in after its imports.
    """

    def __init__(self, path: Path, name: str, content: bytes) -> None:
        self.path = path
        self.name = name
        self.tree = cst.parse_module(content)
        self.before = self.tree.code
        self._mark = "\ufeff" if content.startswith(codecs.BOM_UTF8) else ""
        self.added: set[str] = set()

    @property
    def is_package(self) -> bool:
        """Whether this is a package's `__init__.py`, whose relative imports start in its folder."""
        return self.path.name == "__init__.py"

    def apply(self, changes: Mapping[int, Change]) -> None:
        """Change nodes of the tree, given by identity, innermost first."""
        changed = self.tree.visit(_Replacing(changes))
        assert isinstance(changed, cst.Module)  # noqa: S101  # a module stays one
        # Parsed again, because no node may occur in a tree twice, and inserted pieces might.
        self.tree = cst.parse_module(changed.bytes)

    def line_before(self, line: int) -> int:
        """Return the user's line that became this one, or the next one if this line is new."""
        old, new = _lines(self.before), _lines(self.tree.code)
        for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if k <= line - 1 < m:
                return min(i + (line - 1 - k), j - 1) + 1 if tag != "insert" else i + 1
        return line

    def diff(self, name: str) -> str:
        """Return the changes as a diff for `patch -p1`.

        Bytes in an encoding other than UTF-8 appear in it as surrogates, as in file names.
        """
        old, new = _lines(self._mark + self.before), _lines(self._mark + self.tree.code)
        # `patch` reads a name with spaces whole only if a tab follows.
        end = "\t" if any(map(str.isspace, name)) else ""
        marked = unified_diff(old, new, f"a/{name}{end}", f"b/{name}{end}")
        ended = (li if li.endswith("\n") else f"{li}\n{_NO_END}\n" for li in marked)
        encoding = self.tree.encoding.removesuffix("-sig")
        return "".join(ended).encode(encoding, "surrogateescape").decode("utf-8", "surrogateescape")


class _Replacing(cst.CSTTransformer):
    """Changes nodes given by their identity."""

    def __init__(self, changes: Mapping[int, Change]) -> None:
        super().__init__()
        self._changes = changes

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> Any:
        change = self._changes.get(id(original_node))
        return updated_node if change is None else change(updated_node)


def _lines(text: str) -> list[str]:
    """Split at newlines only, as `patch` does: a form feed does not end a line."""
    return list(StringIO(text, newline="\n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The files that an edit may affect; the first is the one being started.

    Attributes:
        folder: where the workload is started; paths in the diff are relative to it if possible.
        unread: sentences about files that could not be read.
    """

    folder: Path
    sources: tuple[SourceFile, ...]
    unread: tuple[str, ...] = ()

    @property
    def entry(self) -> SourceFile:
        """The script."""
        return self.sources[0]

    @property
    def root(self) -> Path:
        """The folder in which the diff is to be applied."""
        root = self.folder
        while not all(source.path.is_relative_to(root) for source in self.sources):
            root = root.parent
        return root

    def named(self, name: str) -> SourceFile | None:
        """Return the file of a module by its dotted name."""
        return next((source for source in self.sources[1:] if source.name == name), None)

    def place(self, source: SourceFile, line: int) -> str:
        """Return `file:line` in the user's own file for a line of the tree."""
        return f"{source.path.relative_to(self.root)}:{source.line_before(line)}"

    def diff(self) -> str:
        """Return what was changed in all files."""
        root = self.root
        return "".join(s.diff(s.path.relative_to(root).as_posix()) for s in self.sources)


def read_project(workload: Workload) -> Project:
    """Read the script of a workload and the modules of its folder that it imports.

    Raises:
        UsageError: the workload is not a Python file, or its script cannot be read.
    """
    folder = Path(workload.cwd).resolve()  # `patch` takes no `..`
    entry = _entry(workload, folder)
    home = folder if workload.entry is Entry.MODULE else entry.parent
    found, unread = [_read(entry, "")], []
    package = ".".join(entry.parent.relative_to(home).parts) if entry.is_relative_to(home) else ""
    waiting = [*_imports(found[0], home, package)]
    seen = {entry}
    while waiting:
        path, name = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            source = _read(path, name)
        except UsageError as error:
            unread.append(error.problem)
            continue
        found.append(source)
        package = name if source.is_package else name.rpartition(".")[0]
        waiting += _imports(source, home, package)
    return Project(folder=folder, sources=tuple(found), unread=tuple(unread))


def _entry(workload: Workload, folder: Path) -> Path:
    word = workload.argv[0]
    if workload.entry is Entry.MODULE:
        stem = folder.joinpath(*word.split("."))
        places = [stem.with_name(f"{stem.name}.py"), stem / "__main__.py"]
    elif workload.entry is Entry.COMMAND:
        places = [folder / argument for argument in workload.argv if argument.endswith(".py")]
    else:
        places = [folder / word]
    # `Path.is_file` raises where a folder may not be entered.
    found = next((p for p in places if p.suffix == ".py" and os.path.isfile(p)), None)
    if found is None:
        raise UsageError(f"Cannot edit {word}: it is no Python file in {folder}.", remedy=_PASTE)
    return found.resolve()


def _read(path: Path, name: str) -> SourceFile:
    try:
        return SourceFile(path, name, path.read_bytes())
    except cst.ParserSyntaxError as error:
        problem = f"Cannot edit {path}: line {error.raw_line} is not Python that can be read."
        raise UsageError(problem, remedy="Mend that line.") from error
    except (OSError, ValueError, LookupError, RecursionError) as error:
        problem = f"Cannot edit {path}: it cannot be read ({type(error).__name__})."
        raise UsageError(problem, remedy="Make it readable, as UTF-8 or as it declares.") from error


def _imports(source: SourceFile, home: Path, package: str) -> Iterator[tuple[Path, str]]:
    """Yield the path and name of each module in the folder that a file imports."""
    try:
        tree = ast.parse(source.before)
    except (SyntaxError, ValueError, RecursionError):  # written for another Python version
        return
    for node in ast.walk(tree):
        for name in _names(node, package):
            path = _find(name, home)
            if path is not None:
                yield path, name


def _names(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            parts = alias.name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    elif isinstance(node, ast.ImportFrom):
        base = absolute_name(node.module or "", node.level, package)
        yield base
        yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def absolute_name(name: str, level: int, package: str) -> str:
    """Return the absolute dotted name for a relative one.

    >>> absolute_name("data", 1, "shop.models"), absolute_name("", 2, "shop.models")
    ('shop.models.data', 'shop')
    """
    if not level:
        return name
    parts = package.split(".") if package else []
    kept = parts[: len(parts) - level + 1]
    return ".".join([*kept, *([name] if name else [])])


def _find(name: str, home: Path) -> Path | None:
    """Return the file of a module that lies in the user's own folder."""
    if not name:
        return None
    stem = home.joinpath(*name.split("."))
    for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
        if os.path.isfile(path) and not _FOREIGN & set(path.parts):
            return Path(path.absolute())
    return None
