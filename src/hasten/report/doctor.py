"""What `hasten doctor` says about a machine, in words."""

from __future__ import annotations

import textwrap
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.text import Text

from hasten.units import counted, percent, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from hasten.records import Budget, Machine, Runtime

_WIDTH = 80
_INDENT = 10
_UNKNOWN = "unknown"


def render(machine: Machine) -> RenderableType:
    """Return the machine as text of at most 80 columns, without boxes or symbols."""
    # Text, not str: a path or CPU name may contain something that rich takes for markup.
    text = Text()
    text.append(_headline(machine.budget), style="bold")
    text.append("\n\n")
    for label, value in rows(machine):
        text.append(f"{label:<{_INDENT}}", style="bold")
        lines = (_wrapped(line, indent=_INDENT) for line in value.splitlines())
        text.append("\n".join(lines).lstrip() + "\n")
    text.append("\n")
    if not machine.caveats:
        text.append("Nothing wrong found.")
        return text
    text.append(f"{_count(len(machine.caveats), 'caveat')}:", style="bold")
    for caveat in machine.caveats:
        text.append(f"\n  {caveat.name}\n", style="yellow")
        text.append(_wrapped(caveat.problem, indent=4) + "\n")
        text.append(_wrapped(caveat.remedy, indent=4))
    return text


def _headline(budget: Budget) -> str:
    if budget.limited_by == "unknown":
        return "How many cores this job gets is unknown; hasten plans with 1."
    quota = budget.quota_cores_ratio
    reason = {
        "cores": "all that the machine has",
        "affinity": f"the affinity mask holds {_count(budget.affinity_count, 'CPU')}",
        "quota": f"the cgroup quota is {quota:g}" if quota is not None else "the cgroup quota",
        "slurm": f"Slurm gave this task {_count(budget.slurm_count, 'CPU')}",
    }.get(budget.limited_by, budget.limited_by)
    return f"This job gets {_count(budget.core_count, 'core')}: {reason}."


def rows(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield what is known about a machine, as pairs of a name and a value of one line or more."""
    yield "limits", _limits(machine.budget)
    yield "cpu", _cpu(machine)
    yield "memory", _memory(machine)
    yield (
        "system",
        _listed(
            machine.system or _UNKNOWN,
            machine.python_version and f"hasten runs on Python {machine.python_version}",
        ),
    )
    yield "torch", _torch(machine)
    if machine.torch and machine.torch.runtimes:
        yield "runtimes", "\n".join(map(_runtime, machine.torch.runtimes))
    yield "pressure", _pressure(machine)


def _limits(budget: Budget) -> str:
    touched = budget.affinity_core_count
    mask = _count(budget.affinity_count, "CPU")
    return _listed(
        f"affinity {mask}" + (f" on {_count(touched, 'core')}" if touched else ""),
        _known(budget.quota_cores_ratio, "cgroup quota {:g} cores") or "no cgroup quota found",
        _known(budget.slurm_count, "Slurm {} CPUs") or "no Slurm",
    )


def _cpu(machine: Machine) -> str:
    cpu = machine.cpu
    return _listed(
        cpu.model or "",
        "" if cpu.socket_count is None else _count(cpu.socket_count, "socket"),
        _count(cpu.core_count, "core"),
        _count(cpu.thread_count, "thread"),
        " ".join(cpu.instruction_sets),
    )


def _memory(machine: Machine) -> str:
    memory = machine.memory
    return _listed(
        _known(memory.total_bytes, "{}", size),
        _known(memory.available_bytes, "{} left for this job", size),
        _known(memory.limit_bytes, "cgroup limit {}", size),
        _known(memory.shm_bytes, "/dev/shm {}", size),
        _known(memory.shm_free_bytes, "{} of it free", size),
    )


def _torch(machine: Machine) -> str:
    torch = machine.torch
    if torch is None:
        return _UNKNOWN
    return _listed(
        torch.version,
        _count(torch.thread_count, "thread"),
        _count(torch.interop_thread_count, "inter-op thread"),
        f"CUDA {torch.cuda}" if torch.cuda else "",
        ", ".join(torch.accelerators) or "no accelerator",
    )


def _runtime(runtime: Runtime) -> str:
    threads = "" if runtime.thread_count is None else f", {_count(runtime.thread_count, 'thread')}"
    # The last two parts of the path tell whose copy it is; a caveat shows the whole path.
    place = "/".join(PurePath(runtime.path).parts[-2:])
    return f"{runtime.name} ({runtime.kind}{threads}) in {place}"


def _pressure(machine: Machine) -> str:
    pressure = machine.pressure
    return _listed(
        _known(pressure.cpu_some_ratio, "waiting for a CPU {}", percent),
        _known(pressure.throttled_ratio, "throttled {}", percent),
        _known(pressure.steal_ratio, "stolen {}", percent),
        _known(pressure.load_ratio, "load per CPU {:.2f}"),
    )


def _wrapped(value: str, *, indent: int) -> str:
    # rich's own wrapping would pad every line of an indented block to the full width.
    margin = " " * indent
    return textwrap.fill(
        value, _WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )


def _listed(*parts: str) -> str:
    return "; ".join(part for part in parts if part) or _UNKNOWN


def _known(value: float | None, words: str, unit: Callable[[float], str] | None = None) -> str:
    """Return `words` with the value filled in; empty if the value is unknown."""
    if value is None:
        return ""
    return words.format(unit(value) if unit else value)


def _count(count: int | None, noun: str) -> str:
    """Return a count with its noun.

    >>> _count(1, "core"), _count(4, "core"), _count(None, "core")
    ('1 core', '4 cores', 'cores unknown')
    """
    if count is None:
        return f"{noun}s unknown"
    return counted(count, noun)
