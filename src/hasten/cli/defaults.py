"""Default options from the `[tool.hasten]` table in the project's pyproject.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.errors import UsageError, choice, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import click

PROJECT = "pyproject.toml"


def read_defaults(group: click.Group, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the defaults for each command; an option applies to every command that has it.

    Args:
        group: the commands with their options.
        folder: the working folder; the nearest pyproject.toml there or above it counts.

    Raises:
        UsageError: the table cannot be read, or has a key that is not an option of hasten.
    """
    places = (at / PROJECT for at in (folder, *folder.parents))
    path = next((place for place in places if place.is_file()), None)
    table = {} if path is None else _table(path)
    known: set[str] = set()
    defaults: dict[str, dict[str, Any]] = {verb: {} for verb in group.commands}
    for verb, command in group.commands.items():
        for parameter in command.params:
            named = {one.removeprefix("--") for one in parameter.opts if one.startswith("--")}
            known |= named
            for key in named & table.keys():
                is_one = getattr(parameter, "multiple", False) and isinstance(table[key], str)
                defaults[verb][str(parameter.name)] = [table[key]] if is_one else table[key]
    if unknown := [key for key in table if key not in known]:
        raise UsageError(
            f"[tool.hasten] in {path} has an unknown option: {shown(unknown[0])}.",
            remedy=choice(unknown[0], sorted(known)),
        )
    return defaults


def _table(path: Path) -> Mapping[str, Any]:
    """Return the table; empty if a file that does not name us cannot be read.

    Raises:
        UsageError: the file has the table and is not valid TOML.
    """
    import tomllib

    try:
        text = path.read_text("utf-8")
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError):
        return {}
    except tomllib.TOMLDecodeError as error:
        if "[tool.hasten]" not in text:
            return {}
        problem = f"{path} is not valid TOML, so [tool.hasten] cannot be read: {error}."
        raise UsageError(problem, remedy="Mend the file, or remove the table.") from error
    table = content.get("tool", {}).get("hasten", {})
    return table if isinstance(table, dict) else {}
