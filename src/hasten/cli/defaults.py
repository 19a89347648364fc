"""Defaults of options from the `[tool.hasten]` table of the project's pyproject.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.errors import UsageError, choice, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import click

PROJECT = "pyproject.toml"


def read_defaults(group: click.Group, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the defaults of each command; an option applies to every command that has it.

    Args:
        group: the commands with their options.
        folder: where the user stands; the nearest pyproject.toml above it counts.

    Raises:
        UsageError: the table names no option of hasten.
    """
    path = next(
        (at / PROJECT for at in (folder, *folder.parents) if (at / PROJECT).is_file()), None
    )
    table = _table(path) if path is not None else {}
    known = {
        option.removeprefix("--"): (verb, parameter.name)
        for verb, command in group.commands.items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }
    defaults: dict[str, dict[str, Any]] = {}
    for key, value in table.items():
        if key not in known:
            raise UsageError(
                f"[tool.hasten] in {path} has {shown(key)}, which is no option.",
                remedy=choice(key, known),
            )
        for verb, command in group.commands.items():
            for parameter in command.params:
                if f"--{key}" in parameter.opts and parameter.name is not None:
                    defaults.setdefault(verb, {})[parameter.name] = value
    return defaults


def _table(path: Path) -> Mapping[str, Any]:
    """Return the table; nothing where the file is not for us to judge."""
    import tomllib

    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}
    table = content.get("tool", {}).get("hasten", {})
    return table if isinstance(table, dict) else {}
