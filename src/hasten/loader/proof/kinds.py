"""Which classes of libraries are data: reading them changes nothing."""

from __future__ import annotations

import gc
import sys
from types import FunctionType
from typing import Any

from hasten.loader.proof.source import is_user_class, is_user_function
from hasten.loader.proof.values import elements, is_atomic

_DATA = {
    "numpy": "ndarray memmap recarray MaskedArray chararray",
    "torch": "Tensor Parameter Size",
    "pandas": "DataFrame Series Index RangeIndex MultiIndex DatetimeIndex Categorical "
              "CategoricalIndex StringArray ArrowStringArray IntervalIndex "
              "_iLocIndexer _LocIndexer _AtIndexer _iAtIndexer StringMethods",
    "array": "array",
    "builtins": "bytearray memoryview property",
    "scipy": "csr_matrix csc_matrix coo_matrix lil_matrix dok_matrix csr_array csc_array coo_array",
    "torchvision": "Image Mask BoundingBoxes Video",
}  # fmt: skip
TOKENIZERS = "transformers.tokenization_utils_base"
ARROW_TABLES = "datasets.arrow_dataset"
_PATCHABLE = (
    ("torch", "Tensor"), ("PIL.Image", "Image"), ("pandas", "DataFrame"), ("pandas", "Series"),
    ("pandas", "Index"), ("pathlib", "Path"), ("pathlib", "PurePath"),
)  # fmt: skip


def shown(one: Any) -> str:
    """Return the name of an object's class, with its article."""
    name = f"{type(one).__module__}.{type(one).__qualname__}"
    return f"an {name}" if name[0] in "aeio" else f"a {name}"


def is_container(one: Any) -> bool:
    """Return whether an object is one of Python's own lists, dictionaries or the like."""
    return elements(one) is not None and not is_user_class(type(one))


def is_known(one: Any) -> bool:
    """Return whether reading an object changes nothing, in this process or in another."""
    if is_atomic(one) or is_container(one):
        return True
    kind = type(one)
    if is_user_class(kind):
        return False
    root = kind.__module__.partition(".")[0]
    if root == "PIL":  # an unread image shares its file with other processes
        shares = getattr(one, "readonly", 0)  # its memory may be that of an array
        return hasattr(one, "getbbox") and getattr(one, "fp", None) is None and not shares
    if kind.__module__ == "types" and kind.__name__ == "SimpleNamespace":
        return True
    return kind.__name__ in _DATA.get(root, "").split()


def is_tokenizer(one: Any) -> bool:
    """Return whether an object is a tokenizer of `transformers` that leaves nothing to chance.

    Its vocabulary may change, but nobody changes it in the middle of a pass over the data.
    """
    base = getattr(sys.modules.get(TOKENIZERS), "PreTrainedTokenizerBase", None)
    if base is None or not issubclass(type(one), base) or is_user_class(type(one)):
        return False
    samples = (getattr(one, "sp_model_kwargs", None) or {}).get("enable_sampling")
    model = getattr(getattr(one, "backend_tokenizer", None), "model", None)
    return not samples and not getattr(model, "dropout", None)


def is_arrow_table(one: Any) -> bool:
    """Return whether an object is a dataset of the library `datasets` in files of Arrow."""
    kind = getattr(sys.modules.get(ARROW_TABLES), "Dataset", None)
    return kind is not None and type(one) is kind and not is_user_function(kind.__getitem__)


def format_of(table: Any) -> dict[str, Any]:
    """Return what the rows of such a dataset are made with, such as a transform of the script's."""
    return table._format_kwargs or {}


def is_unwritten(one: Any) -> bool:
    """Return whether an object is one of a library's that nobody writes in the midst of a pass."""
    return is_tokenizer(one) or is_arrow_table(one)


def is_array(one: Any) -> bool:
    """Return whether an object is indexed as an array or a table is."""
    root = type(one).__module__.partition(".")[0]
    return root in ("numpy", "torch", "pandas", "scipy", "array", "torchvision") and is_known(one)


def is_patched(name: str) -> bool:
    """Return whether the script patched a method of its own into a library's class."""
    for home, kind in _PATCHABLE:
        owner = getattr(sys.modules.get(home), kind, None)
        for parent in getattr(owner, "__mro__", ()):
            found = vars(parent).get(name)
            if isinstance(found, FunctionType) and is_user_function(found):
                return True
    return False


def gives_batches(one: Any) -> bool:
    """Return whether an object is one of torch's own loaders, or iterates over one."""
    return loader_in(one) is not None


def loader_in(one: Any) -> Any:
    """Return the loader of torch's own, or its iterator, whose batches an object gives, if any."""
    kind = type(one)
    if kind.__module__ == "torch.utils.data.dataloader":
        return one
    if kind.__module__.partition(".")[0] == "tqdm":
        return loader_in(vars(one).get("iterable"))
    held = gc.get_referents(one) if kind is enumerate else ()
    return next((found for part in held if (found := loader_in(part)) is not None), None)
