"""The code of a model: of its classes, and of the functions that they name."""

from __future__ import annotations

import sys
from dis import get_instructions
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Space = Mapping[str, Any]

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "IMPORT_NAME")
_TORCH = ("torch", "torchvision")
_OUTWARD = frozenset({
    "print", "pprint", "open", "save", "savez", "savetxt", "savefig", "imsave", "imwrite", "tofile",
    "write", "writelines", "write_text", "write_bytes", "add_scalar", "add_image", "add_histogram",
    "debug", "info", "warning", "error", "exception", "add_scalars", "dump", "log_metric",
    "writerow", "writerows", "log_dict", "wandb", "mlflow",
})  # fmt: skip


def model_parts(module: Any) -> Iterator[tuple[str, Space]]:
    """Yield the attributes of each submodule, and those of its classes with the class's name.

    Torch's own classes are left out.
    """
    for part in module.modules():
        yield "", dict(vars(part))
        for kind in type(part).__mro__:
            if kind is not object and not kind.__module__.startswith(("torch.nn.", "torchvision.")):
                yield kind.__name__, dict(vars(kind))


def model_code(module: Any) -> Iterator[tuple[CodeType, Space]]:
    """Yield each piece of code, whether it has run or not, and the variables that it sees."""
    known: set[int] = set()
    waiting = [
        found for _, values in model_parts(module) for value in values.values()
        for found in _functions(value)
    ]  # fmt: skip
    while waiting:
        code, space = waiting.pop()
        if id(code) in known:
            continue
        known.add(id(code))
        yield code, space
        waiting += [(part, space) for part in code.co_consts if isinstance(part, CodeType)]
        for _, value in named_in(code, space):
            if getattr(value, "__module__", None) is None or _home(value) not in _TORCH:
                waiting += _functions(value)


def named_in(code: CodeType, space: Space) -> Iterator[tuple[str, Any]]:
    """Yield the variables of code, with what it may take from those that are modules."""
    names = set(code.co_names)
    for name in {one.argval for one in get_instructions(code) if one.opname in _LOADS}:
        value = space[name] if name in space else sys.modules.get(name)
        yield name, value
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] != "torch":
            inside = vars(value)
            yield from ((name, inside[other]) for other in names if other in inside)


def writes_out(module: Any) -> str:
    """Say where code of a model prints or writes a file; empty if nowhere."""
    for code, _ in model_code(module):
        if found := _OUTWARD & set(code.co_names):
            return f"{code.co_name} names {min(found)}"
    return ""


def _home(value: Any) -> str:
    return str(value.__module__).partition(".")[0]


def _functions(value: Any) -> Iterator[tuple[CodeType, Space]]:
    """Yield the code behind a value, and what it sees: its globals and what it closes over."""
    inside = (getattr(value, name, None) for name in ("__func__", "fget", "__wrapped__"))
    for one in (value, *inside):
        if type(one) is FunctionType:
            closed = zip(one.__code__.co_freevars, one.__closure__ or (), strict=False)
            cells = {name: cell.cell_contents for name, cell in closed if _is_filled(cell)}
            yield one.__code__, {**one.__globals__, **cells}


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
