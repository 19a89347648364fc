"""laggard, an accelerator for tests: memory of the host, copies and kernels that run late.

    python laggard.py           # builds the library, prints its path

Where this folder is on the PYTHONPATH, torch finds the device by its entry point and registers it
at the end of its import, for any script: `torch.device("laggard")`, with two devices. How late it
is comes from the environment, or from `configure`:

    LAGGARD_KERNEL_US     microseconds of each kernel; 0 runs it at the call
    LAGGARD_COPY_US       of each copy between host and device
    LAGGARD_US_PER_MIB    the same for each MiB of it
    LAGGARD_MEMORY_BYTES  of each device; 4 GiB without
    LAGGARD_LIFE_COUNT    kernels until the device is lost; 0 for none

All processes where LAGGARD_SHARED has the same value share the memory of the devices.
"""

import atexit
import ctypes
import fcntl
import hashlib
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).with_suffix(".cpp")
COUNTS = (
    "late_kernels", "prompt_kernels", "late_copies", "prompt_copies", "host_waits", "busy_ns",
)  # fmt: skip
_MEMORY_BYTES = 1 << 32
_core = None


def torch_folder() -> Path:
    """Return where torch is installed, without importing it."""
    return Path(find_spec("torch").origin).parent


def library() -> Path:
    """Return where the library of this source and this torch is, or will be."""
    version = (torch_folder() / "version.py").read_bytes()
    key = hashlib.sha256(SOURCE.read_bytes() + version).hexdigest()[:16]
    return SOURCE.parents[3] / "build" / f"laggard-{key}.so"


def build() -> Path:
    """Build the library where it is missing; half a minute.

    Raises:
        subprocess.CalledProcessError: the compiler refuses it, and says why.
        FileNotFoundError: there is no g++.
    """
    made, torch = library(), torch_folder()
    made.parent.mkdir(exist_ok=True)
    with open(made.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            partial = made.with_suffix(".partial")
            include, lib = torch / "include", torch / "lib"
            subprocess.run(
                ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=1",
                 f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", str(SOURCE),
                 f"-L{lib}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{lib}",
                 "-o", str(partial)],
                check=True,
            )  # fmt: skip
            partial.replace(made)
    return made


def configure(
    *, kernel_us: int = 0, copy_us: int = 0, us_per_mib: int = 0,
    memory_bytes: int = _MEMORY_BYTES, life_count: int = 0,
) -> None:  # fmt: skip
    """Say how late it is from now on."""
    given = (kernel_us, copy_us, us_per_mib, memory_bytes, life_count)
    _core.laggard_set(*map(ctypes.c_int64, given))


def counts() -> dict[str, int]:
    """Return how often what has happened so far, by the names of `COUNTS`."""
    found = (ctypes.c_int64 * len(COUNTS))()
    _core.laggard_counts(found)
    return dict(zip(COUNTS, found, strict=True))


def register() -> None:
    """Load the library and make the device known; torch calls it at the end of its import."""
    global _core
    import torch

    path = str(library())
    torch.ops.load_library(path)
    _core = ctypes.CDLL(path)
    read_environment()
    torch.utils.rename_privateuse1_backend("laggard")
    torch._register_device_module("laggard", _module(torch))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    atexit.register(_core.laggard_finish)


def read_environment() -> None:
    """Be as late as the environment says."""
    names = ("KERNEL_US", "COPY_US", "US_PER_MIB", "MEMORY_BYTES", "LIFE_COUNT")
    given = {name: os.environ.get(f"LAGGARD_{name}") for name in names}
    configure(**{name.lower(): int(value) for name, value in given.items() if value})


def _module(torch) -> ModuleType:
    """Return what stands as `torch.laggard`."""
    module = ModuleType("torch.laggard")
    module.is_available = lambda: True
    module.is_initialized = lambda: bool(_core.laggard_is_used())
    module._is_in_bad_fork = lambda: bool(_core.laggard_is_forked())
    module.device_count = lambda: 2
    module.get_device_name = lambda device=None: "laggard"
    module.current_device = torch.accelerator.current_device_index
    module.set_device = torch.accelerator.set_device_index
    module.max_memory_allocated = torch.accelerator.max_memory_allocated
    module.memory_allocated = torch.accelerator.memory_allocated
    module.memory_reserved = torch.accelerator.memory_reserved
    module.mem_get_info = lambda device=None: torch.accelerator.get_memory_info(device)
    module.synchronize = torch.accelerator.synchronize
    module.empty_cache = torch.accelerator.empty_cache
    module.manual_seed_all = module.manual_seed = lambda seed: None
    module.get_rng_state = lambda device=None: torch.get_rng_state()
    module.set_rng_state = lambda state, device=None: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    for name in ("Stream", "Event"):  # as strings: code that names streams is taken to use some
        setattr(module, name, getattr(torch, name))
    module.current_stream = torch.accelerator.current_stream
    return module


if __name__ == "__main__":
    print(build())
