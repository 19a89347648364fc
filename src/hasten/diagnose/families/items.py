"""What makes an item slow: reading, decoding, lookups, transforms, or repeating all of them."""

from __future__ import annotations

from functools import partial

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import places_in
from hasten.diagnose.shares import is_worth_telling
from hasten.diagnose.waits import fetch_s, part_of
from hasten.records import Finding
from hasten.units import duration, percent

_LEAST_AGAIN_COUNT = 4
_CACHE_WORTH_S = 0.0001


def _kind_s(case: Case, *kinds: str) -> float:
    """Return the seconds per item that some kinds of work take."""
    seen = case.found.get("loading.kinds", {})
    ratio = float(sum(seen.get(kind, 0) for kind in kinds) / max(1, sum(seen.values())))
    item_count = float(case.found.get("loading.item_count") or 1.0)
    return ratio * (fetch_s(case) or 0.0) / item_count


def _work(case: Case, kinds: tuple[str, ...], *, message: str, remedy: str) -> Finding | None:
    """Return the finding for some kinds of work, if they cost the loop time."""
    share = part_of(case, *kinds)
    if not is_worth_telling(share):
        return None
    return Finding(
        share=share,
        message=message.format(
            each=duration(_kind_s(case, *kinds)), share=percent(share.mid_ratio)
        ),
        remedy=remedy,
        places=places_in(case, "loading.places", *kinds),
    )


def _by_hand(case: Case, remedy: str) -> str:
    """Return a remedy, with the reason why no lever may keep the samples, where there is one."""
    why = case.traits.loader.unkept if case.traits.loader else ""
    return f"{remedy} No lever may keep these samples, because {why}." if why else remedy


def _per_sample_transforms(case: Case) -> Finding | None:
    """Find transforms that run on one sample at a time, by the time they take."""
    if (case.found.get("loading.item_count") or 0) < 2:
        return None
    return _work(
        case,
        ("transforms", "own"),
        message="Transforms take {each} per sample, which costs {share} of a step.",
        remedy=(
            "Apply deterministic transforms once, before training, and the rest to whole batches, "
            "after the collate function or on the device."
        ),
    )


def _slow_decode(case: Case) -> Finding | None:
    """Find decoding of images and other compressed data, by the time it takes."""
    return _work(
        case,
        ("decode",),
        message="Decoding takes {each} per sample, which costs {share} of a step.",
        remedy=_by_hand(
            case,
            "Store the samples as small as training needs them, decode with a faster library "
            "(simplejpeg, Image.draft), or keep them decoded.",
        ),
    )


def _repeated_decode(case: Case) -> Finding | None:
    """Find samples that are rebuilt in each pass and come out the same."""
    again_count = case.found.get("loading.again_count", 0)
    same_count = case.found.get("loading.same_count", 0)
    if again_count < _LEAST_AGAIN_COUNT:
        return None
    same = same_count == again_count
    kinds = ("decode", "storage", "store", "transforms", "own") if same else ("decode",)
    each_s, share = _kind_s(case, *kinds), part_of(case, *kinds)
    if not is_worth_telling(share) or each_s < _CACHE_WORTH_S:
        return None
    what = "with the same bytes" if same else "decoded anew, with other bytes in the end"
    return Finding(
        share=share,
        message=(
            f"{same_count if same else again_count} of {again_count} samples that were watched "
            f"came again {what}; making one takes {duration(each_s)}."
        ),
        remedy=_by_hand(
            case, "Make each sample once and keep it: in memory, or as an array on a local disk."
        ),
        places=(
            places_in(case, "loading.places", *kinds[:1])
            or places_in(case, "loading.places", *kinds)
        ),
    )


_random_access_store = partial(
    _work,
    kinds=("store",),
    message="Reading single rows from a table or chunked store takes {each} for each sample, "
    "which costs {share} of a step.",
    remedy="Turn the columns into arrays once, or read a whole sorted batch at a time "
    "in __getitems__, from a file that each worker opens once.",
)
_slow_storage = partial(
    _work,
    kinds=("storage",),
    message="Each sample sleeps {each} in the kernel until its bytes arrive, "
    "which costs {share} of a step.",
    remedy="Copy the data to a local disk or to memory, pack many small files into few, "
    "or read ahead with more workers than cores.",
)


SYMPTOMS = (
    Symptom(name="per-sample-transforms", find=_per_sample_transforms),
    Symptom(name="slow-decode", find=_slow_decode),
    Symptom(name="repeated-decode", find=_repeated_decode),
    Symptom(name="random-access-store", find=_random_access_store),
    Symptom(name="slow-storage", find=_slow_storage),
)
