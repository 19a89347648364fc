"""Let torchvision's build on PyPI be imported beside a torch without CUDA.

That build's library needs CUDA's; where it does not load, torchvision looks for two operators that
nobody has defined. They are defined here, without a kernel, when torchvision is first imported.
With this folder on PYTHONPATH, Python does so in every process (tests/conftest.py has it there).
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

OPERATORS = ("nms", "qnms")


class BeforeTorchvision:
    """Defines the operators when torchvision is looked for, and finds nothing itself."""

    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and PathFinder.find_spec("torch") is not None:
            _define(next(Path(spec.origin).parent.glob("_C*.so"), None))


def _define(library):
    import torch

    try:
        torch.ops.load_library(library)
    except (OSError, TypeError):
        definitions = torch.library.Library("torchvision", "DEF")
        for name in OPERATORS:
            definitions.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torch.library.torchvision_operators = definitions  # they go with the library


sys.meta_path.insert(0, BeforeTorchvision())
