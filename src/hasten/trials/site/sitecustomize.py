"""Enter through the environment: Python imports this module at start-up, before the script.

The folder of this file is first on PYTHONPATH in processes that hasten starts. It leaves
sys.path again, then the user's own sitecustomize runs, and then hasten waits for torch.
System programs may run under an older Python than hasten needs: there it does nothing.

A module imported here would shadow one with the same name beside the script, so this file
imports only what Python loads at start-up. `importlib.util` would add a dozen others.
"""

import os
import sys
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import PathFinder


def _leave_path():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    return here


def _run_users_own():
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class _Hasten:
    """Find the package hasten, and nothing else, where this file came from."""

    def __init__(self, root):
        self._root = root

    def find_spec(self, name, path=None, target=None):
        if name != "hasten":
            return None
        return PathFinder.find_spec(name, [self._root])


def _helper_process():
    """True in the helpers of multiprocessing that never train."""
    line = " ".join(getattr(sys, "orig_argv", sys.argv))
    return "resource_tracker import main" in line or "forkserver import main" in line


def _come_in(here):
    if sys.version_info < (3, 11):  # noqa: UP036  # any Python that the script starts reads this
        return
    if os.environ.get("HASTEN_CHILD"):
        root = os.path.dirname(os.path.dirname(os.path.dirname(here)))
        sys.meta_path.insert(0, _Hasten(root))  # before another hasten in the script's environment
        if not _helper_process():
            from hasten.trials import own_imports

            own_imports.keep_apart(root)
            from hasten import child

            child.prepare(os.environ["HASTEN_CHILD"])


_here = _leave_path()
try:
    _run_users_own()
finally:
    _come_in(_here)
