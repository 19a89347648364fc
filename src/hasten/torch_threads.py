"""torch's number of threads, and what comes with it: MKL's own choice of threads.

Until somebody calls `torch.set_num_threads`, MKL takes fewer threads for small products. With the
first call it takes that many for each one, whatever their size, so the former count alone does not
bring the former speed back, nor always the former bits. Source: `at::set_num_threads`,
https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/ParallelOpenMP.cpp
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FUNCTIONS = ("MKL_Set_Num_Threads_Local", "MKL_Set_Dynamic")  # in lower case they are Fortran's
_OFF = {"false", "0", "no"}


@cache
def _libtorch() -> Any:
    """Return torch's library, by which its OpenMP and MKL can be asked; None where it has none."""
    import torch

    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


@cache
def _mkl() -> Any:
    """Return the library in which torch finds MKL; None where it has none that can be asked."""
    library = _libtorch()
    return library if all(hasattr(library, name) for name in _FUNCTIONS) else None


def in_team(act: Callable[[], object], count: int) -> None:
    """Call `act` in each of the OpenMP threads that share an operation of this one, if possible.

    An empty parallel region asks each of them. It goes through the runtime that torch is linked
    to, as another library may have brought its own; Intel's and LLVM's have the same entry.
    """
    region = getattr(_libtorch(), "GOMP_parallel", None)
    if region is not None:
        body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: (act(), None)[1])
        region.restype = None
        region.argtypes = [type(body), ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        region(body, None, count, 0)


def chooses_threads() -> bool:
    """Return whether MKL still chooses: nobody has set a number of threads in this thread."""
    mkl = _mkl()
    if mkl is None or os.environ.get("MKL_DYNAMIC", "").lower() in _OFF:
        return False
    count = mkl.MKL_Set_Num_Threads_Local(0)  # it returns the former one, 0 where there is none
    mkl.MKL_Set_Num_Threads_Local(count)
    return not count


def put_back(count: int, *, chooses: bool) -> None:
    """Set torch's number of threads, and let MKL choose again where it did."""
    import torch

    torch._C.set_num_threads(count)
    mkl = _mkl()
    if chooses and mkl is not None:
        mkl.MKL_Set_Num_Threads_Local(0)
        mkl.MKL_Set_Dynamic(1)


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads, and then as many as before, as if nobody had set a number.

    A lever that holds the number for the script is not asked.
    """
    import torch

    internals: Any = torch._C
    own, chooses = internals.get_num_threads(), chooses_threads()
    internals.set_num_threads(count)
    try:
        yield
    finally:
        put_back(own, chooses=chooses)
