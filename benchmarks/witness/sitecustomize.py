"""A witness of the engine's own proofs, written down as each is made.

With this folder on PYTHONPATH and a file named by `WITNESS_OUT`, each proof that `hasten run`
asks for adds a line of JSON there: its time, what may be done, and why not.
"""

import json
import os
import runpy
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path

# lets torchvision's build on PyPI be imported beside a torch without CUDA
OPERATORS = Path(__file__).parents[2] / "tests" / "torchvision_ops" / "sitecustomize.py"
_MODULE = "hasten.loader.proofs"


class _AfterProofs:
    """Stands around `prove` once the engine has it."""

    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), _stand_around(module))[0]
        return spec


def _stand_around(module):
    prove = module.prove

    def proven(loader):
        begin = time.process_time()
        found = prove(loader)
        seen = {
            "seconds": time.process_time() - begin,
            "pure": found.is_pure,
            "whole": found.is_whole,
            "draws": found.draws,
            "gaps": [[gap.reason.name, gap.what, gap.where] for gap in found.gaps],
        }
        with open(os.environ["WITNESS_OUT"], "a") as file:
            file.write(json.dumps(seen) + "\n")
        return found

    module.prove = proven


runpy.run_path(str(OPERATORS))
if os.environ.get("WITNESS_OUT"):
    sys.meta_path.insert(0, _AfterProofs())
