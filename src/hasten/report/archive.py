"""The last tuning for each plan file, kept in the user's cache so it can be shown again."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import msgspec

from hasten.errors import UsageError
from hasten.records import Tuning
from hasten.records.codec import revive
from hasten.report.files import write_atomically

SCHEMA = 2


def folder() -> Path:
    """Return the folder of kept tunings: under `$XDG_CACHE_HOME`, or else `~/.cache`.

    Raises:
        UsageError: there is no home folder either, as for a nameless user in a container.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path must be ignored.
    if Path(home).is_absolute():
        return Path(home, "hasten", "tunings")
    try:
        return Path.home() / ".cache" / "hasten" / "tunings"
    except RuntimeError:  # no HOME, and no line in /etc/passwd
        raise UsageError(
            "There is no home folder to keep a tuning in.",
            remedy="Set XDG_CACHE_HOME to a folder that you may write.",
        ) from None


def remember(tuning: Tuning, plan_path: Path) -> Path:
    """Keep a tuning, keyed by the path of its plan file; return the file it is kept in.

    Raises:
        UsageError: the cache cannot be written, or there is no place for one.
    """
    place = _place(plan_path)
    content = {
        "schema": SCHEMA,
        "plan_path": str(plan_path.absolute()),
        "tuning": msgspec.to_builtins(tuning, enc_hook=dict),
    }
    # json rather than msgspec, because infinities survive a round trip.
    write_atomically(place, json.dumps(content))
    return place


def recall(path: Path) -> tuple[Tuning, Path]:
    """Return a kept tuning and the whole path of its plan file.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    place = _place(path)
    if not os.path.exists(place):  # `Path.exists` raises where a folder may not be entered
        remedy = "Run `hasten tune` first, or name the plan file that it wrote."
        if path.suffix == ".toml" and os.path.exists(path):  # written by hand, or moved here
            remedy = "`hasten run` applies it all the same; `hasten tune` makes a report."
        raise UsageError(f"No tuning is kept for {path}.", remedy=remedy)
    try:
        content = json.loads(place.read_text("utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']!r}")
        return revive(Tuning, content["tuning"]), Path(content["plan_path"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        remedy = "Run `hasten tune` again."
        raise UsageError(f"{place} holds no tuning that can be read.", remedy=remedy) from error


def _place(plan_path: Path) -> Path:
    # The file itself, however it is named: through a link, or with `..` in its path.
    name = hashlib.sha256(os.fsencode(os.path.realpath(plan_path))).hexdigest()[:16]
    return folder() / f"{name}.json"
