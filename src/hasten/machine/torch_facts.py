"""The program that `probe_torch` runs in the user's Python: standard library and torch only.

It is handed over as text, so that no file of hasten's can shadow a module of the user's.
"""

import contextlib
import ctypes
import importlib
import json
import os
import re
import signal
import sys
from typing import Any

_PDEATHSIG = 1
# A library exports one of the calls; numpy's OpenBLAS adds a prefix and a suffix.
_LIBRARIES = (
    ("openmp", "libgomp", re.compile(r"libgomp[.-]"), ("omp_get_max_threads",)),
    ("openmp", "libiomp5", re.compile(r"libiomp5"), ("omp_get_max_threads",)),
    ("openmp", "libomp", re.compile(r"libomp[.-]"), ("omp_get_max_threads",)),
    ("blas", "mkl", re.compile(r"libmkl_(rt|core)"), ("MKL_Get_Max_Threads",)),
    ("blas", "openblas", re.compile(r"lib\w*openblas"), tuple(
        f"{prefix}openblas_get_num_threads{suffix}"
        for prefix in ("", "scipy_") for suffix in ("", "64_")
    )),
    ("blas", "blis", re.compile(r"libblis"), ("bli_thread_get_num_threads",)),
)  # fmt: skip


def mapped_files() -> "list[str]":
    """Return the files that are mapped into this process; none where the kernel does not say."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            lines = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    except OSError:
        return []
    return sorted({words[5] for words in lines if len(words) == 6 and words[5][0] == "/"})


def threads(path: str, calls: "tuple[str, ...]") -> "int | None":
    """Ask a loaded library how many threads it would use."""
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return None
    for call in calls:
        if hasattr(library, call):
            return int(getattr(library, call)())
    return None


def runtimes(files: "list[str]", *, has_mkl: bool) -> "list[dict[str, object]]":
    """Return the OpenMP and BLAS libraries among `files`."""
    found: list[dict[str, object]] = []
    for path in files:
        base = os.path.basename(path)
        for kind, name, pattern, calls in _LIBRARIES:
            if pattern.match(base):
                count = threads(path, calls)
                found.append({"kind": kind, "name": name, "path": path, "thread_count": count})
    inside = [path for path in files if os.path.basename(path).startswith("libtorch_cpu.")]
    if has_mkl and inside and not any(one["name"] == "mkl" for one in found):
        # The x86 wheels link MKL into torch itself: it is in use but has no separate file.
        found.append({"kind": "blas", "name": "mkl", "path": inside[0], "thread_count": None})
    return found


def accelerators(torch: "Any") -> "list[str]":
    """Return the names of the devices that torch can use; a broken driver has none."""
    found = []
    loaded = getattr(torch, torch._C._get_privateuse1_backend_name(), None)
    for backend in (torch.cuda, getattr(torch, "xpu", None), loaded):
        if backend is not None:
            with contextlib.suppress(Exception):
                count = backend.device_count()
                found += [backend.get_device_name(index) for index in range(count)]
    if torch.backends.mps.is_available():
        found.append("Apple MPS")
    return found


def accelerator(torch: "Any") -> "str | None":
    """Return the kind of device that torch would use; a broken driver has none."""
    with contextlib.suppress(Exception):
        api = getattr(torch, "accelerator", None)  # since torch 2.6
        if api is None:
            return "cuda" if torch.cuda.is_available() else None
        return str(api.current_accelerator().type) if api.is_available() else None
    return None


def accelerator_use(torch: "Any", kind: "str | None") -> "dict[str, object]":
    """Return how full and how busy the device is that torch would use; what is unknown is missing.

    CUDA tells only where the package nvidia-ml-py is installed. `mem_get_info` would make a context
    there, in memory that somebody else's job may be about to take.
    """
    found: dict[str, object] = {}
    backend: Any = getattr(torch, kind or "", None)
    with contextlib.suppress(Exception):
        found["accelerator_busy_ratio"] = backend.utilization() / 100.0
    with contextlib.suppress(Exception):
        if kind != "cuda":
            free_bytes, all_bytes = backend.mem_get_info()
        else:
            all_bytes = backend.get_device_properties(0).total_memory
            free_bytes = all_bytes - backend.device_memory_used(0)
        if " MIG " not in backend.get_device_name(0):  # of a slice, NVML knows only the whole
            found |= {"accelerator_free_bytes": free_bytes, "accelerator_bytes": all_bytes}
    return found


def main(mark: str) -> None:
    """Print the facts as one marked line of JSON."""
    with contextlib.suppress(AttributeError):  # importing torch takes seconds: end with the parent
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    torch: Any = importlib.import_module("torch")
    thread_count = torch.get_num_threads()
    interop_thread_count = torch.get_num_interop_threads()
    # Most scripts use numpy, which brings its own BLAS; a broken one is not our concern.
    with contextlib.suppress(Exception):
        importlib.import_module("numpy")
    kind = accelerator(torch)
    facts = {
        "version": str(torch.__version__),
        "thread_count": thread_count,
        "interop_thread_count": interop_thread_count,
        "cuda": torch.version.cuda,
        "accelerator": kind,
        "accelerators": accelerators(torch),
        "runtimes": runtimes(mapped_files(), has_mkl=torch.backends.mkl.is_available()),
        **accelerator_use(torch, kind),
    }
    print(mark + json.dumps(facts))  # noqa: T201 - stdout is how it answers


if __name__ == "__main__":
    main(sys.argv[1])
