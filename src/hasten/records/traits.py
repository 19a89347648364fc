"""What a child reports about its script: what it is made of, and what it has set.

Unknown is None. Where unknown is not told apart from none, it is the empty value: 0, False or "".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTraits:
    """The loader that feeds the loop, and its dataset.

    Attributes:
        worker_count: its worker processes; 0 where the loop makes the batches.
        is_map_style: the dataset is asked for items by index; else it is a stream.
        is_persistent: the workers stay from pass to pass.
        has_own_order: the order of the items comes from one of the script's own classes.
        dataset: the name of the dataset's class, below `Subset` and `ConcatDataset`.
        batch_bytes: bytes of the tensors in a batch.
        pass_batch_count: batches of a pass over the data; 0 where that is unknown.
        step_batch_count: batches that a step takes.
        fetch_s: seconds in which one process makes a batch.
        fetch_cpu_ratio: CPU seconds in each of these seconds; the rest is waiting.
        draws: the items draw random numbers, or may draw some by their code; None where neither
            was seen nor read.
        is_pure: making an item has no effects outside of the batch; None where nobody proved it.
        is_unchanged: what making an item reads stays as it is, too.
        unproven: why one of these two is not proven.
        unbatched: why no batch of them can be read at once; empty where one may.
        is_folder: they are files that torchvision decodes before it draws anything.
        opens_pictures: their code opens files with Pillow.
        unkept: why none of them may be kept for later passes, by their code; empty where some may.
    """

    worker_count: int
    is_map_style: bool
    is_persistent: bool = False
    has_own_order: bool = False
    dataset: str = ""
    batch_bytes: int = 0
    pass_batch_count: int = 0
    step_batch_count: int = 1
    fetch_s: float | None = None
    fetch_cpu_ratio: float | None = None
    draws: bool | None = None
    is_pure: bool | None = None
    is_unchanged: bool = False
    unproven: str = ""
    unbatched: str = ""
    is_folder: bool = False
    opens_pictures: bool = False
    unkept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """The modules that the loop calls.

    Attributes:
        parameter_count: numbers in the weights of the first one that has any.
        dtype: of their weights, such as `float32`; `mixed` where they differ.
        device: the kind that the first one is on, such as `cpu`.
        has_conv2d: some layers are convolutions in two dimensions.
        has_conv3d: some layers are convolutions in three dimensions.
        has_channels_last: all of these have this layout; None where that cannot be told.
        conv_input_dimension_count: dimensions of what all models with weights are called with,
            where there are convolutions; 0 where they differ.
        unshared: why no call of any with weights can be shared among processes; empty where one
            may be.
    """

    parameter_count: int | None = None
    dtype: str | None = None
    device: str | None = None
    has_conv2d: bool = False
    has_conv3d: bool = False
    has_channels_last: bool | None = None
    conv_input_dimension_count: int | None = None
    unshared: str = ""

    @property
    def is_on_accelerator(self) -> bool:
        """Whether another device than the CPU computes the steps, as far as is known."""
        return self.device not in (None, "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSpeed:
    """How many times faster products of fewer bits are here; below 1 they are slower.

    Attributes:
        matmul_ratio: of matrices; None where they were not timed.
        conv_ratio: of convolutions; None where they were not timed.
    """

    matmul_ratio: float | None = None
    conv_ratio: float | None = None

    def best_ratio(self, model: ModelTraits) -> float | None:
        """Return the ratio of the model's product that gains most; None where none was timed."""
        told = (self.matmul_ratio, self.conv_ratio if model.has_conv2d else None)
        return max((ratio for ratio in told if ratio is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionTraits:
    """The bits of products, and what fewer would give on the device of the models.

    Attributes:
        uses_autocast: the script uses `torch.autocast` itself.
        matmul: torch's word for float32 products (`highest`, `high`, `medium`); `mixed` where it
            has none.
        bf16: products of bfloat16 tensors against those of float32 ones.
        fp16: the same of float16, timed in place of bf16 where the device has no units for that.
        inside: products of float32 tensors that torch is told to multiply with fewer bits: bf16 on
            a CPU, tf32 on CUDA.
    """

    uses_autocast: bool = False
    matmul: str | None = None
    bf16: ProductSpeed = field(default_factory=ProductSpeed)
    fp16: ProductSpeed = field(default_factory=ProductSpeed)
    inside: ProductSpeed = field(default_factory=ProductSpeed)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerTraits:
    """The first optimizer that steps, or the first whose fused form the script leaves open.

    Attributes:
        name: its class; None where none of torch's kind steps.
        is_fused: the script asks for its fused form.
        is_foreach: the script asks for its form on lists of tensors.
        tensor_count: its parameters.
        has_sparse_gradients: some gradients of its first step are sparse tensors.
        step_count: steps of this and any other optimizer in a training step.
    """

    name: str | None = None
    is_fused: bool = False
    is_foreach: bool = False
    tensor_count: int = 0
    has_sparse_gradients: bool = False
    step_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerTraits:
    """Whether torch.compile can work in this process.

    Attributes:
        is_used: it has already compiled a graph.
        cxx: the C++ compiler that is found.
        has_triton: Triton is installed.
        refused: why nothing can be compiled; empty where it can.
    """

    is_used: bool = False
    cxx: str = ""
    has_triton: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorTraits:
    """Python's garbage collector.

    Attributes:
        is_enabled: it runs by itself.
        threshold_count: new objects after which it runs.
        frozen_count: objects that it leaves out.
        step_s: seconds of its collections in a step, from the second step on.
    """

    is_enabled: bool | None = None
    threshold_count: int | None = None
    frozen_count: int = 0
    step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTraits:
    """The checkpoints that the loop has written, at least two.

    Attributes:
        each_s: seconds of each of the last ones.
        period_s: seconds from one to the next.
        period_step_count: steps from one to the next.
    """

    each_s: tuple[float, ...]
    period_s: float
    period_step_count: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """All that a child reports about its script.

    Attributes:
        torch: its version.
        rank_count: processes that train together.
        local_rank_count: those of them on this machine.
        helper_count: processes that a lever adds, to compute shares of the model's calls.
        cycle_count: steps after which times repeat: batches that workers have in flight at once.
        thread_count: threads that share an operation on the CPU.
        has_team: whether a closer look saw threads beside the loop's own compute; None without one.
        openmp_variables: environment variables that say something to OpenMP.
        preloaded: the `LD_PRELOAD` of the process.
        huge_pages: how the kernel gives them: `always`, `madvise` or `never`.
        denormal_ratio: share of denormal numbers in weights, gradients and states on the CPU.
        anomaly_ratio: share of the backward passes with anomaly detection; None without any.
        profiler_ratio: share of the backward passes under a profiler; None without any.
        idle_clip_ratio: share of the calls of `clip_grad_norm_` that leave the gradients as they
            are; None where there is none.
        loop_draws: the loop draws random numbers outside of its loader; None where nobody saw it.
        loader: None where none feeds the loop.
        model: the modules that the loop calls.
        precision: the bits of their products.
        optimizer: the first that steps.
        compiler: what torch.compile finds.
        collector: Python's garbage collector.
        checkpoints: None below two.
    """

    torch: str = ""
    rank_count: int = 1
    local_rank_count: int = 1
    helper_count: int = 0
    cycle_count: int = 1
    thread_count: int | None = None
    has_team: bool | None = None
    openmp_variables: tuple[str, ...] = ()
    preloaded: str = ""
    huge_pages: str | None = None
    denormal_ratio: float | None = None
    anomaly_ratio: float | None = None
    profiler_ratio: float | None = None
    idle_clip_ratio: float | None = None
    loop_draws: bool | None = None
    loader: LoaderTraits | None = None
    model: ModelTraits = field(default_factory=ModelTraits)
    precision: PrecisionTraits = field(default_factory=PrecisionTraits)
    optimizer: OptimizerTraits = field(default_factory=OptimizerTraits)
    compiler: CompilerTraits = field(default_factory=CompilerTraits)
    collector: CollectorTraits = field(default_factory=CollectorTraits)
    checkpoints: CheckpointTraits | None = None

    @property
    def worker_count(self) -> int:
        """Worker processes of the loader; 0 also where no loader feeds the loop."""
        return self.loader.worker_count if self.loader else 0

    @property
    def step_batch_count(self) -> int:
        """Batches of the loader in a step; 0 where none feeds the loop."""
        return self.loader.step_batch_count if self.loader else 0

    def with_workers(self, count: int) -> Traits:
        """Return the same traits with `count` worker processes, where there is a loader."""
        loader = self.loader and replace(self.loader, worker_count=count)
        return replace(self, loader=loader)

    @property
    def pass_step_count(self) -> int:
        """Steps of a pass over the data; 0 where that is unknown."""
        loader = self.loader
        return loader.pass_batch_count // max(1, loader.step_batch_count) if loader else 0
