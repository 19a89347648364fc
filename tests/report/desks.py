"""A folder in which the edits of a plan are written, patched in and looked at."""

import subprocess
from dataclasses import replace
from textwrap import dedent

from hasten.records import Entry, ModelTraits, Plan, Traits
from hasten.report.edits import write_edits
from hasten.testing import fed

QUIET = fed(draws=False)
IMAGES = Traits(model=ModelTraits(has_conv2d=True, conv_input_dimension_count=4))


class Desk:
    """A folder with a script, and the diffs that are made for it."""

    def __init__(self, folder, workload):
        self.folder = folder
        self.workload = workload
        self.notes = ()
        self.diff = ""
        self.python = "3.13.1"

    def edit(self, source, traits=None, entry=Entry.SCRIPT, argv=("train.py",), env=None, **plan):
        """Return the script after the diff went through `patch -p1`."""
        (self.folder / "train.py").write_text(dedent(source).lstrip("\n"))
        return self.again(traits, entry, argv, env, **plan)

    def again(self, traits=None, entry=Entry.SCRIPT, argv=("train.py",), env=None, **plan):
        workload = replace(self.workload, entry=entry, argv=argv, cwd=str(self.folder))
        applied = Plan(tuple(sorted(plan.items())))
        before = {path: path.read_bytes() for path in self.folder.rglob("*.py")}
        made = write_edits(
            workload, applied, traits=traits or Traits(), env=env or {}, python_version=self.python
        )
        assert before == {path: path.read_bytes() for path in self.folder.rglob("*.py")}
        self.notes, self.diff = made.notes, made.diff
        if made.diff:
            subprocess.run(
                ["patch", "-p1", "--no-backup-if-mismatch", "--fuzz=0"], input=made.diff, text=True,
                cwd=self.folder, check=True, capture_output=True,
            )  # fmt: skip
        text = (self.folder / "train.py").read_bytes().decode()
        compile(text, "train.py", "exec")
        return text

    def said(self):
        return "\n".join(self.notes)


def changed(desk):
    """The lines that a diff takes away and adds."""
    kept = ("+++", "---", "@@")
    return [li for li in desk.diff.splitlines() if li[:1] in "+-" and not li.startswith(kept)]
