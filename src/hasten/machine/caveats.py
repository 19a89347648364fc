"""What is wrong with a machine, as named caveats computed from the facts alone.

A healthy machine has none. Each check has the name of its caveat, looks at one thing, and returns
the problem and its remedy; None where it is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.kernel_files import whole
from hasten.records import Caveat
from hasten.units import counted, percent, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.records import Machine

    Told = tuple[str, str]

# If tasks wait for this share of the time, or the hypervisor takes it, timings begin to drift.
_BUSY_RATIO, _STEAL_RATIO = 0.10, 0.02
# A few throttled periods are due to start-up; one in a hundred is a pattern.
_THROTTLED_RATIO = 0.01
_LEFT_RATIO = 0.10
# Of the memory of an accelerator; a desktop and the driver take less.
OTHERS_RATIO = 0.25
NVIDIA_DRIVER_FILE = "proc/driver/nvidia/version"
# With one of the words, these hide all accelerators from a job that is not to use any.
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_HIDDEN = ("", "-1", "none", "void")
# What a container asks its runtime for; where others hand GPUs in it says "void", too.
_ASKING = "NVIDIA_VISIBLE_DEVICES"
_DOCKER_SHM_BYTES, _SMALL_SHM_BYTES = 64 * 2**20, 2**30


def find(
    machine: Machine,
    env: Mapping[str, str],
    *,
    torch_asked: bool = True,
    ends_as_one: bool = False,
) -> tuple[Caveat, ...]:
    """Return every caveat about `machine`, the budget's first.

    Args:
        machine: the facts.
        env: the environment that the script will start with.
        torch_asked: False where `machine.torch` is None because nobody asked.
        ends_as_one: whether the kernel kills the whole job when its memory runs out.
    """
    found = {check.__name__: check(machine, env) for check in _CHECKS}
    if ends_as_one:
        found["shared_end"] = (
            "Where memory runs out, the kernel ends all of this job at once, hasten too "
            "(memory.oom.group).",
            "Ask for a limit that two copies of the script fit in.",
        )
    if torch_asked and machine.torch is None:
        found["torch_missing"] = (
            "The script's Python cannot import torch.",
            "Install torch there, or run hasten with the Python that has it.",
        )
    return tuple(
        Caveat(name=name, problem=told[0], remedy=told[1]) for name, told in found.items() if told
    )


def quota_below_cpus(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """A quota is invisible to os.cpu_count, to affinity masks and to every OpenMP runtime."""
    quota, mask = machine.budget.quota_cores_ratio, machine.budget.affinity_count
    seen = machine.cpu.thread_count if mask is None else mask
    if quota is None or seen is None or quota >= seen:
        return None
    return (
        f"The cgroup quota is {quota:g} cores but programs see {seen} CPUs.",
        "Size thread pools and loader workers for "
        f"{counted(machine.budget.core_count, 'core')}, not by os.cpu_count().",
    )


def throttled(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """Throttling stops every thread of the group until the next period."""
    ratio = machine.pressure.throttled_ratio
    if ratio is None or ratio < _THROTTLED_RATIO:
        return None
    return (
        f"The cgroup was throttled in {percent(ratio)} of its quota periods.",
        f"Run at most {machine.budget.core_count} threads and workers together, "
        "or raise the quota.",
    )


def busy_cpus(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """Others on the same CPUs make every measurement noisier."""
    waiting, load = machine.pressure.cpu_some_ratio, machine.pressure.load_ratio
    if waiting is not None and waiting >= _BUSY_RATIO:
        problem = f"Some task waited for a CPU in {percent(waiting)} of the last 10 s."
    elif waiting is None and load is not None and load >= 1:
        # Without pressure information only the coarser load average is left, so only above 1.
        problem = f"The load average is {load:.2g} per CPU."
    else:
        return None
    return (
        problem,
        "Stop what else is running, or give the search more time with --budget.",
    )


def stolen_time(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """Steal is time in which this virtual machine wanted to run and another one did."""
    ratio = machine.pressure.steal_ratio
    if ratio is None or ratio < _STEAL_RATIO:
        return None
    return (
        f"The hypervisor took {percent(ratio)} of this machine's CPU time since boot.",
        "Expect noisy timings; use an instance whose cores are not shared.",
    )


def threads_above_budget(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """More threads than cores wait for one another at every barrier."""
    torch, budget = machine.torch, _budget(machine)
    if not torch or not torch.thread_count or not budget or torch.thread_count <= budget:
        return None
    return (
        f"torch starts {torch.thread_count} threads on a budget of {counted(budget, 'core')}.",
        f"Set OMP_NUM_THREADS={budget} before the script starts.",
    )


def threads_below_budget(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """Idle cores; small models want them idle, so the remedy is to measure."""
    torch, budget = machine.torch, _budget(machine)
    if not torch or not torch.thread_count or not budget or torch.thread_count >= budget:
        return None
    return (
        f"torch starts {counted(torch.thread_count, 'thread')} on a budget of "
        f"{counted(budget, 'core')}.",
        f"Set OMP_NUM_THREADS={budget}, or let `hasten tune` measure what is best.",
    )


def interop_above_budget(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """Each inter-op thread may open a team of intra-op threads of its own."""
    torch, budget = machine.torch, _budget(machine)
    count = torch.interop_thread_count if torch else None
    if not count or not budget or count <= budget:
        return None
    return (
        f"torch has {count} inter-op threads on a budget of {counted(budget, 'core')}.",
        f"Call torch.set_num_interop_threads({budget}) before the first operation.",
    )


def odd_thread_setting(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """OMP_NUM_THREADS is no number; what another number causes, the threads of torch tell."""
    setting = env.get("OMP_NUM_THREADS", "").strip()
    if not setting:
        return None
    first = whole(setting.split(",")[0])
    if first is not None and first >= 1:
        return None
    return (
        f"OMP_NUM_THREADS is {setting!r}, which is no number of threads.",
        f"Set it to {_budget(machine) or 'a whole number'}, or unset it.",
    )


def bound_threads(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """With a binding, importing torch narrows the main thread's mask, and children inherit it.

    https://github.com/pytorch/pytorch/issues/99625. OMP_PROC_BIND=false disables the others.
    """
    binding = env.get("OMP_PROC_BIND", "").strip()
    if binding.lower() == "false":
        return None
    names = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
    culprits = [name for name in names if env.get(name, "").strip()]
    if not culprits:
        return None
    told = " and ".join(f"{name}={env[name].strip()}" for name in culprits)
    return (
        f"{told} binds the main thread to a few CPUs, and loader workers inherit that.",
        f"Unset {' and '.join(culprits)}; bind whole processes with taskset or numactl.",
    )


def duplicate_openmp(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """Two runtimes keep two thread pools that know nothing about each other.

    https://github.com/pytorch/pytorch/issues/98836
    """
    runtimes = machine.torch.runtimes if machine.torch else ()
    paths = sorted({runtime.path for runtime in runtimes if runtime.kind == "openmp"})
    if len(paths) < 2:
        return None
    return (
        f"{len(paths)} OpenMP runtimes are loaded at once: {', '.join(paths)}.",
        "Install torch and numpy from one source (all by pip or all by conda).",
    )


def small_shm(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """Loader workers hand their batches over in /dev/shm and die of SIGBUS when it is full."""
    total, free = machine.memory.shm_bytes, machine.memory.shm_free_bytes
    if total is None:
        return None
    if total < _SMALL_SHM_BYTES:
        default = ", the default of docker" if total == _DOCKER_SHM_BYTES else ""
        return (
            f"/dev/shm has {size(total)}{default}; loader workers pass batches there.",
            "Start the container with --shm-size=8g or --ipc=host.",
        )
    if free is None or free >= _SMALL_SHM_BYTES:
        return None
    return (
        f"/dev/shm has {size(free)} left of {size(total)}.",
        "Remove what dead jobs of yours left there; loader workers pass batches in it.",
    )


def torch_without_accelerator(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """Torch cannot use an accelerator whose driver is present, often since it is a CPU build."""
    torch = machine.torch
    if torch is None or torch.accelerator or not machine.device_files:
        return None
    has_driver_alone = machine.device_files[0].endswith(NVIDIA_DRIVER_FILE)
    hiding = (*_HIDING, _ASKING) if has_driver_alone else _HIDING
    if any(env.get(name, "0").strip() in _HIDDEN for name in hiding):
        return None
    remedy = "Install the build of torch for it (https://pytorch.org/get-started/locally/)."
    if torch.cuda:
        remedy = "Look at what `python -c 'import torch; torch.cuda.init()'` says."
    if has_driver_alone:
        remedy = f"Start a container with --gpus all. {remedy}"
    return (
        f"There is an accelerator here ({machine.device_files[0]}) that torch "
        f"{torch.version} cannot use.",
        remedy,
    )


def busy_accelerator(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """Others on the accelerator take its memory, and make its kernels wait."""
    torch = machine.torch
    if torch is None or not torch.accelerators:
        return None
    name, busy_ratio = torch.accelerators[0], torch.accelerator_busy_ratio
    free_bytes, all_bytes = torch.accelerator_free_bytes, torch.accelerator_bytes
    if busy_ratio is not None and busy_ratio >= _BUSY_RATIO:
        problem = f"Other processes kept {name} busy for {percent(busy_ratio)} of the last second."
    elif free_bytes is None or not all_bytes or all_bytes - free_bytes < OTHERS_RATIO * all_bytes:
        return None
    else:
        problem = (
            f"Other processes hold {size(all_bytes - free_bytes)} of the {size(all_bytes)} of "
            f"memory of {name}."
        )
    return (
        problem,
        "Wait for them, or choose another device: timings beside them are noisy, and "
        "trials may run out of its memory.",
    )


def little_memory(machine: Machine, env: Mapping[str, str]) -> Told | None:
    """Near the limit the kernel drops file cache first, then kills."""
    memory = machine.memory
    known = [b for b in (memory.total_bytes, memory.limit_bytes) if b is not None]
    left = memory.available_bytes
    if left is None or not known or left >= _LEFT_RATIO * min(known):
        return None
    return (
        f"Only {size(left)} of {size(min(known))} of memory are left for this job.",
        "Stop what else holds memory, or ask for a larger limit.",
    )


def _budget(machine: Machine) -> int | None:
    """Return the budget, None where its single core is only the fallback minimum."""
    return None if machine.budget.limited_by == "unknown" else machine.budget.core_count


_CHECKS = (
    quota_below_cpus,
    throttled,
    busy_cpus,
    stolen_time,
    threads_above_budget,
    threads_below_budget,
    interop_above_budget,
    odd_thread_setting,
    bound_threads,
    duplicate_openmp,
    small_shm,
    torch_without_accelerator,
    busy_accelerator,
    little_memory,
)
