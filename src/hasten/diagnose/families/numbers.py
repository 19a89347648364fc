"""Wrong dtypes, wrong memory layouts, and memory that must be requested again and again."""

from __future__ import annotations

from statistics import fmean

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import operation_s, places_in, quiet_step_s, share_of
from hasten.records import LEAST_RATIO, Finding, Interval, ModelTraits
from hasten.units import duration, percent, times

_LEAST_SPEED_RATIO = 1.2
_LEAST_BYTES_RATIO = 0.5  # bytes of a float32 number by those of a float64
_NARROW = ("bfloat16", "float16")
_COUNT_2D, _COUNT_3D = 4, 5  # dimensions of a convolution's input: images, volumes


def _denormals(case: Case) -> Finding | None:
    """Find denormal numbers, by timing operations on copies with and without them."""
    share = share_of(case, case.found.get("operations.denormal_s", ()))
    if share is None:
        return None
    ratio = case.found.get("operations.denormal_ratio", 0.0)
    return Finding(
        share=share,
        message=(
            f"Numbers below 1.2e-38 ({percent(ratio)} of some tensors) take "
            f"{percent(share.mid_ratio)} of a step: with zeros in their place the same operations "
            "are that much faster."
        ),
        remedy="Call torch.set_flush_denormal(True) before the first operation on tensors.",
        places=places_in(case, "operations.places", "denormals"),
    )


def _page_faults(case: Case) -> Finding | None:
    """Find memory that is returned to the OS and requested again in each step."""
    counts, fault_s = case.found.get("faults.counts", ()), case.found.get("faults.fault_s")
    if fault_s is None:
        return None
    one_by_one = share_of(case, [count * fault_s for count in counts])
    threads_count = max(1, case.found.get("faults.threads_count", 1))
    if one_by_one is None:
        return None
    low_ratio = one_by_one.low_ratio / threads_count
    mid_ratio = (one_by_one.mid_ratio / threads_count + one_by_one.mid_ratio) / 2
    if low_ratio < LEAST_RATIO:
        return None
    count = fmean(counts)
    return Finding(
        share=Interval(
            low_ratio=low_ratio,
            mid_ratio=min(1.0, mid_ratio),
            high_ratio=min(1.0, max(mid_ratio, one_by_one.high_ratio)),
        ),
        message=(
            f"{count:,.0f} page faults per step on memory that malloc had returned to the OS, "
            f"{duration(fault_s)} each for one thread, less where several fault at once."
        ),
        remedy=(
            "Keep freed memory in the process: MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_, "
            "or another allocator."
        ),
        places=places_in(case, "operations.places", "faults"),
    )


def _slow_layout(case: Case) -> Finding | None:
    """Find convolutions that are faster with channels last, by probing the script's own."""
    saved_s, model = case.found.get("operations.layout_s", ()), case.traits.model
    share = share_of(case, saved_s)
    if share is None or (model.has_conv2d and model.has_conv3d):  # one layout refuses the other
        return None
    kinds = [k for k in case.found.get("operations.seconds", {}) if k.startswith("convolution.")]
    spent_s = sum(fmean(operation_s(case, kind)) for kind in kinds)
    faster = spent_s / max(1e-12, spent_s - fmean(saved_s))
    return Finding(
        share=share,
        message=(
            "Convolutions of these shapes, with channels first, would be "
            f"{times(faster)} faster with channels last on this machine: that is "
            f"{percent(share.mid_ratio)} of a step."
        ),
        remedy=_last_channels(model),
        places=places_in(case, "operations.places", *kinds),
    )


def _last_channels(model: ModelTraits) -> str:
    """Say what to convert: torch refuses a layout for tensors of other dimensionality."""
    count = model.conv_input_dimension_count
    is_3d = model.has_conv3d or (not model.has_conv2d and count == _COUNT_3D)
    fits = count is None or count == (_COUNT_3D if is_3d else _COUNT_2D)
    layout, fed = ("channels_last_3d", "inputs") if is_3d else ("channels_last", "images")
    what = f"the model and its {fed}" if fits else "the model"
    return f"Convert {what} to memory_format=torch.{layout}."


def _low_precision(case: Case) -> Finding | None:
    """Find low-precision products on a processor that is slower with them."""
    speeds = case.found.get("operations.speed_ratio", {})
    slow = [kind for kind in _NARROW if speeds.get(kind, 1.0) < 1 / _LEAST_SPEED_RATIO]
    if not slow or case.traits.model.device not in (None, "cpu"):
        return None
    kinds = [f"{sort}.{kind}" for kind in slow for sort in ("product", "convolution")]
    lost = [list(operation_s(case, "cast"))]
    for kind in kinds:
        speed = speeds[kind.partition(".")[2]]
        lost.append([seconds * (1 - speed) for seconds in operation_s(case, kind)])
    share = share_of(case, [sum(parts) for parts in zip(*lost, strict=True)])
    if share is None:
        return None
    return Finding(
        share=share,
        message=(
            f"Products of {slow[0]} numbers are {times(1 / speeds[slow[0]])} slower than those of "
            f"float32 on this CPU; with the conversions that costs {percent(share.mid_ratio)} of "
            "a step."
        ),
        remedy="Leave the model in float32 here: torch.autocast(..., enabled=False).",
        places=places_in(case, "operations.places", *kinds),
    )


def _tf32_off(case: Case) -> Finding | None:
    """Find full-precision float32 products on a GPU that has faster units."""
    precision = case.traits.precision
    if case.traits.model.device != "cuda" or precision.matmul != "highest":
        return None
    ratio = precision.inside.matmul_ratio
    if ratio is None or ratio < _LEAST_SPEED_RATIO:
        return None
    seconds = operation_s(case, "product.float32")
    share = share_of(case, [one * (1 - 1 / ratio) for one in seconds])
    if share is None:
        return None
    return Finding(
        share=share,
        message=(
            f"Matrix products of float32 numbers would be {times(ratio)} faster with tf32 on "
            f"this card: that is {percent(share.mid_ratio)} of a step."
        ),
        remedy='Call torch.set_float32_matmul_precision("high") if 11 bits of mantissa are enough.',
        places=places_in(case, "operations.places", "product.float32"),
    )


def _float64(case: Case) -> Finding | None:
    """Find float64 operations, by how much longer they take than in float32.

    That was timed for products. Others go over twice the bytes, and count for no more than that.
    """
    speed = case.found.get("operations.speed_ratio", {}).get("float64")
    if speed is None or speed >= 1:
        return None
    kinds = ("float64.products", "float64.others")
    products_s, others_s = (operation_s(case, kind) for kind in kinds)
    other_speed, step_s = max(speed, _LEAST_BYTES_RATIO), quiet_step_s(case)
    lost_s = []
    for product_s, other_s in zip(products_s, others_s, strict=True):
        # Threads that spin make operations longer than the step itself is without our timing.
        told_ratio = step_s / max(step_s, product_s + other_s, 1e-12)
        lost_s.append(told_ratio * (product_s * (1 - speed) + other_s * (1 - other_speed)))
    share = share_of(case, lost_s)
    if share is None:
        return None
    spent_s = sum(min(step_s, sum(each)) for each in zip(products_s, others_s, strict=True))
    own = case.traits.model.dtype == "float64"
    remedy = (
        "Make the model float32 (model.float()), and what it is fed."
        if own
        else "Convert to float32 where numbers enter: torch.from_numpy(array).float()."
    )
    return Finding(
        share=share,
        message=(
            f"Operations on float64 numbers are {times(spent_s / (spent_s - sum(lost_s)))} slower "
            f"than on float32 here; that costs {percent(share.mid_ratio)} of a step."
        ),
        remedy=remedy,
        places=places_in(case, "operations.places", *kinds),
    )


SYMPTOMS = (
    Symptom(name="denormals", find=_denormals),
    Symptom(name="page-faults", find=_page_faults),
    Symptom(name="slow-layout", find=_slow_layout),
    Symptom(name="low-precision-without-hardware", find=_low_precision),
    Symptom(name="tf32-off", find=_tf32_off),
    Symptom(name="float64", find=_float64),
)
