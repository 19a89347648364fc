"""Whether torch.compile can work in this process."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from hasten.records import CompilerTraits

_OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
# The newest Python that each torch can compile under, as its release notes say.
_NEWEST_PYTHON = (((2, 10), (3, 14)), ((2, 6), (3, 13)), ((0, 0), (3, 12)))


def read_compiler(torch_version: str) -> CompilerTraits:
    """Return what torch.compile finds here, and what prevents it."""
    return CompilerTraits(
        is_used=_has_compiled(),
        cxx=_cxx(),
        has_triton=find_spec("triton") is not None,
        refused=_refused(torch_version),
    )


def _has_compiled() -> bool:
    """Return whether torch.compile has made a graph in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    stats = getattr(dynamo, "counters", {}).get("stats", {})
    return bool(stats.get("unique_graphs"))


def _cxx() -> str:
    asked = shlex.split(os.environ.get("CXX", ""))[:1]
    return next((name for name in asked or ("g++", "clang++") if shutil.which(name)), "")


def _refused(torch_version: str) -> str:
    """Say why nothing can be compiled; empty where it can."""
    for name in _OFF:
        if os.environ.get(name) == "1":
            return f"{name} switches torch.compile off"
    version = tuple(int(part) for part in torch_version.split(".")[:2])
    newest = next(python for oldest, python in _NEWEST_PYTHON if version >= oldest)
    own = sys.version_info[:2]
    if own > newest or (sysconfig.get_config_var("Py_GIL_DISABLED") == 1 and own < (3, 14)):
        return f"torch {torch_version} cannot compile under Python {own[0]}.{own[1]}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of Python are not installed (Python.h)"
    return ""
