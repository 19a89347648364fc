"""Default options from the `[tool.hasten]` table in the project's pyproject.toml."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hasten.errors import UsageError, choice, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import click

PROJECT = "pyproject.toml"
_PATHS = frozenset({"plan", "json", "html", "log-jsonl", "python"})


def read_defaults(group: click.Group, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the defaults for each command; an option applies to every command that has it.

    The nearest pyproject.toml in the folder or above it counts; relative paths begin there.

    Raises:
        UsageError: the table cannot be read, or has a key that is not an option of hasten.
    """
    places = (at / PROJECT for at in (folder, *folder.parents))
    path = next((place for place in places if os.path.isfile(place)), None)
    table = {} if path is None else _table(path)
    base = folder if path is None else path.parent
    known: set[str] = set()
    defaults: dict[str, dict[str, Any]] = {verb: {} for verb in group.commands}
    for verb, command in group.commands.items():
        for parameter in command.params:
            named = {one.removeprefix("--") for one in parameter.opts if one.startswith("--")}
            if parameter.name == "plan":  # `report` takes it as an argument
                named.add("plan")
            known |= named
            for key in named & table.keys():
                value = table[key] if base == folder else _placed(key, table[key], base)
                is_one = getattr(parameter, "multiple", False) and isinstance(value, str)
                defaults[verb][str(parameter.name)] = [value] if is_one else value
    if unknown := [key for key in table if key not in known]:
        raise UsageError(
            f"[tool.hasten] in {path} has an unknown option: {shown(unknown[0])}.",
            remedy=choice(unknown[0], sorted(known)),
        )
    return defaults


def _placed(key: str, value: Any, base: Path) -> Any:
    """Return a path as it is seen from elsewhere; `-` and a program's name are no paths."""
    is_name = value == "-" or (key == "python" and os.sep not in str(value))
    return value if key not in _PATHS or is_name else str(base / str(value))


def _table(path: Path) -> Mapping[str, Any]:
    """Return the table; empty if a file that does not name us cannot be read.

    Raises:
        UsageError: the file has the table and is not valid TOML.
    """
    import tomllib

    try:
        text = path.read_bytes()
        tool = tomllib.loads(text.decode("utf-8-sig")).get("tool")
    except OSError:
        return {}
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or nested too deeply
        if b"[tool.hasten]" not in text:
            return {}
        problem = f"{path} is not valid TOML, so [tool.hasten] cannot be read: {error}."
        raise UsageError(problem, remedy="Mend the file, or remove the table.") from error
    table = tool.get("hasten") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else {}
