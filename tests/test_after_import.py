"""What waits for a module keeps out of the way of imports."""

import sys
from importlib.machinery import ModuleSpec

from hasten.after_import import after_import


class Finder:
    """Find an empty module, or import another one where it is looked for."""

    def __init__(self, name: str, *, instead: str = "") -> None:
        self.name = name
        self.instead = instead

    def find_spec(self, name, path=None, target=None):
        if name == self.name and self.instead:
            __import__(self.instead)
        return ModuleSpec(name, self) if name == self.name and not self.instead else None

    def create_module(self, spec):
        return None

    def exec_module(self, module) -> None:
        return


def test_an_import_within_the_search_for_another_module_skips_no_finder(monkeypatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    seen = []
    sys.meta_path[:0] = [
        Finder("made_outer", instead="made_inner"),
        Finder("made_inner"),
        Finder("made_outer"),
    ]
    for _ in range(3):
        after_import("made_inner", lambda: seen.append("made_inner"))
    import made_outer  # noqa: F401

    assert seen == ["made_inner"] * 3
