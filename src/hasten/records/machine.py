"""What a machine gives a job."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Caveat:
    """One thing about this machine that costs speed or trust, with its remedy."""

    name: str
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processors of this machine, as the kernel reports them.

    Attributes:
        model: the name that the kernel gives, or None.
        socket_count: processor packages.
        core_count: physical cores, by distinct thread siblings.
        thread_count: logical CPUs that are online.
        instruction_sets: those of interest that the CPU has: avx2, avx512f, avx512_bf16, amx_bf16.
    """

    model: str | None = None
    socket_count: int | None = None
    core_count: int | None = None
    thread_count: int | None = None
    instruction_sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The cores that this job may use, and every limit that was found.

    Attributes:
        core_count: the whole number of physical cores to plan with, at least 1.
        limited_by: which limit decided: affinity, quota, slurm, cores, or unknown for none.
        affinity_count: logical CPUs in the affinity mask.
        affinity_core_count: physical cores that the mask touches.
        quota_cores_ratio: CPU quota of the strictest cgroup, in cores (7.65), None if unlimited.
        slurm_count: CPUs that Slurm gave this task.
        task_count: tasks of the Slurm step on this node, each with a budget of its own.
    """

    core_count: int
    limited_by: str
    affinity_count: int | None = None
    affinity_core_count: int | None = None
    quota_cores_ratio: float | None = None
    slurm_count: int | None = None
    task_count: int = 1

    def cores_per_rank(self, rank_count: int) -> int:
        """Return the cores of one of `rank_count` ranks on this machine, at least 1."""
        sharing_count = max(1, rank_count // self.task_count)
        return max(1, self.core_count // sharing_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory that the job may use; `limit_bytes` is the strictest cgroup limit."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How contended the machine is right now, each as a share of time.

    Attributes:
        cpu_some_ratio: share of the last 10 s in which some task waited for a CPU.
        throttled_ratio: share of quota periods in which this cgroup was throttled.
        steal_ratio: share of CPU time that the hypervisor took since boot.
        load_ratio: one-minute load average over logical CPUs.
    """

    cpu_some_ratio: float | None = None
    throttled_ratio: float | None = None
    steal_ratio: float | None = None
    load_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """One OpenMP or BLAS library that is loaded into a torch process."""

    kind: str
    name: str
    path: str
    thread_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What torch reports about itself in a fresh process of the user's Python.

    Attributes:
        version: such as 2.13.0+cpu.
        thread_count: how many threads share an operation.
        interop_thread_count: how many operations `torch.jit.fork` runs at once.
        cuda: the CUDA release that it was built for.
        accelerator: the kind of device that it would use, such as `cuda`; None without one.
        accelerators: the name of each device.
        accelerator_bytes: memory of the first device.
        accelerator_free_bytes: what others leave of it.
        accelerator_busy_ratio: share of the last second in which it ran kernels of others.
        runtimes: the OpenMP and BLAS libraries that it loads.
    """

    version: str
    thread_count: int | None = None
    interop_thread_count: int | None = None
    cuda: str | None = None
    accelerator: str | None = None
    accelerators: tuple[str, ...] = ()
    accelerator_bytes: int | None = None
    accelerator_free_bytes: int | None = None
    accelerator_busy_ratio: float | None = None
    runtimes: tuple[Runtime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts about this machine, read once and never written."""

    cpu: Cpu
    budget: Budget
    memory: Memory = field(default_factory=Memory)
    pressure: Pressure = field(default_factory=Pressure)
    torch: Torch | None = None
    device_files: tuple[str, ...] = ()
    gpu: str = ""
    system: str = ""
    python_version: str = ""
    caveats: tuple[Caveat, ...] = ()
