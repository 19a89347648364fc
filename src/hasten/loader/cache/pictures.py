"""Pictures that items open with Pillow, decoded once; what items do with them runs each time."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hasten.loader.cache.file_access import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.loader.cache.memo import Memo

_CODECS = {
    ("PIL.JpegImagePlugin", "JpegImageFile"): "jpeg",
    ("PIL.PngImagePlugin", "PngImageFile"): "zip",
}
_MODES = {"L", "LA", "RGB", "RGBA"}
_PIXELS = {"RGB": "RGBX"}  # with the fourth byte, which Pillow fills by itself
_OWN = {"load", "load_prepare", "load_end", "load_read", "load_seek", "tile_prefix"}
_PLAIN = (int, float, str, bytes, type(None), list, tuple, dict)
_COMPARED_COUNT = 4
_COMPARED_EVERY = 500
_TRUSTED = b"trusted"
_LEFT = "_PngImageFile__idat"
_UNFIT = object()
_active = threading.local()


class Pictures:
    """Keeps the pixels of the JPEG and PNG files that a dataset's items open with Pillow.

    The items themselves run each time, random transforms included. While one is made, `load`
    of Pillow's files finds pixels that were decoded before, and leaves the picture as it would
    have left it. The first pictures are decoded all the same and compared, later ones now and
    then. What items do with a picture is unknown: it may draw, or write into it.
    """

    defers = is_known_pure = False

    def __init__(self, dataset: Any, memo: Memo) -> None:
        self.memo = memo
        self._dataset = dataset
        self._equal_count = self._use_count = 0
        self._item_count = self._load_count = 0
        self._item_ns = self._decode_ns = 0

    def begin_batch(self, *, for_workers: bool = False) -> None:
        """Let Pillow ask for pixels: they are the same for any number of threads."""
        _install()
        if self._equal_count < _COMPARED_COUNT and self.memo.store.has(self.memo.salt + _TRUSTED):
            self._equal_count = _COMPARED_COUNT  # another process has compared them

    def has(self, index: Any) -> bool:
        """Return False: something is always left to do."""
        return False

    def lend(self, indices: Sequence[Any]) -> list[Any] | None:
        """Return None: the items have work to do."""
        return None

    def fetch(self, index: Any) -> Any:
        """Return the sample of an index."""
        before = getattr(_active, "pictures", None)
        _active.pictures = self
        began_ns = time.perf_counter_ns()
        try:
            return self._dataset[index]
        finally:
            _active.pictures = before
            self._item_count += 1
            self._item_ns += time.perf_counter_ns() - began_ns

    fetch_kept = fetch

    @property
    def value_ratio(self) -> float:
        """How many pictures a sample is made of, as far as they may be kept."""
        return self._load_count / self._item_count if self._item_count else 1.0

    @property
    def saved_ratio(self) -> float:
        """The share of the time of samples that decoding takes."""
        return self._decode_ns / self._item_ns if self._item_ns else 1.0

    def load(self, image: Any, original: Callable[[Any], Any]) -> Any:
        """Load a picture as `original` does."""
        place = None if self.memo.off else _place_of(image)
        if place is None:
            return original(image)
        self._load_count += 1
        decoding = _Decoding(image, original)
        found = self.memo.fetch(place[0], decoding, place[1])
        if decoding.ran:
            self._decode_ns += decoding.took_ns
            return decoding.access
        self._use_count += 1
        if self._equal_count < _COMPARED_COUNT or self._use_count % _COMPARED_EVERY == 0:
            return self._compare(image, found, original, place[1])
        return _fill(image, *found)

    def _compare(self, image: Any, found: Any, original: Callable[[Any], Any], path: str) -> Any:
        """Decode a picture all the same, and see whether a twin gets the same from what is kept."""
        with open(path, "rb") as file:
            twin = _twin(image, file)
            if twin is None or _facts(twin) != _facts(image):  # the script has changed it already
                return original(image)
            files = image.fp, twin.fp
            access = original(image)
            _fill(twin, *found)
            places = [-1 if one.closed else one.tell() for one in files]
            same = _facts(twin) == _facts(image) and _pixels(twin) == _pixels(image)
        if not same or places[0] != places[1]:
            self.memo.give_up("a picture differs from what it was")
            return access
        self._equal_count += 1
        if self._equal_count == _COMPARED_COUNT:
            self.memo.store.put(self.memo.salt + _TRUSTED, b"1")
        return access


class _Decoding:
    """Loads a picture as Pillow does, and returns what `_fill` needs to do the same."""

    def __init__(self, image: Any, original: Callable[[Any], Any]) -> None:
        self._image, self._original = image, original
        self.ran = False
        self.access: Any = None
        self.took_ns = 0

    def __call__(self) -> Any:
        image, file = self._image, self._image.fp
        self.ran = True
        began_ns = time.perf_counter_ns()
        self.access = self._original(image)
        self.took_ns = time.perf_counter_ns() - began_ns
        if "_ended" in vars(image):  # the file is cut off, and the script has allowed that
            return _UNFIT
        pixels = image._new(image.im)
        pixels.info = {}
        return pixels, -1 if file.closed else file.tell(), vars(image).get(_LEFT)


def _install() -> None:
    """Let Pillow's files ask for pixels. In threads that make no sample nothing is changed."""
    if "PIL.Image" not in sys.modules:
        return
    kind = import_module("PIL.ImageFile").ImageFile
    original = vars(kind).get("load")
    if (
        original is None
        or original.__module__ != "PIL.ImageFile"
        or hasattr(original, "__wrapped__")
    ):
        return  # somebody else's, or in place already

    @wraps(original)
    def load(image: Any) -> Any:
        pictures = getattr(_active, "pictures", None)
        return original(image) if pictures is None else pictures.load(image, original)

    kind.load = load


def _place_of(image: Any) -> tuple[bytes, Any] | None:
    """Return the name of a picture's pixels, and its file; None where they are not kept."""
    kind, fields = type(image), vars(image)
    codec = _CODECS.get((kind.__module__, kind.__qualname__))
    if codec is None or len(image.tile) != 1 or image.mode not in _MODES or fields.keys() & _OWN:
        return None
    name, extents, _, _ = image.tile[0]
    is_begun = fields.get("_im", fields.get("im")) is not None
    is_odd = image.decoderconfig or image.palette or getattr(image, "is_animated", False)
    decoders = getattr(sys.modules["PIL.Image"], "DECODERS", {})
    if is_begun or is_odd or name != codec or codec in decoders or extents != (0, 0, *image.size):
        return None
    cuts = sys.modules["PIL.ImageFile"].LOAD_TRUNCATED_IMAGES
    if cuts and codec != "jpeg":  # of such a file, more than pixels may be missing
        return None
    path = _path_of(image)
    if path is None:
        return None
    what = (codec, image.mode, image.size, tuple(image.tile[0]), image.decodermaxblock, bool(cuts))
    return repr(what).encode() + os.fsencode(path), path


def _path_of(image: Any) -> str | None:
    """Return the path of the file that a picture is read from, if the file is still there."""
    file = image.fp
    if type(file) is not io.BufferedReader:
        return None
    path = image.filename or file.name
    if not isinstance(path, (str, bytes)):
        return None
    path = os.fsdecode(path)
    try:
        return path if figures(os.fstat(file.fileno())) == figures(os.stat(path)) else None
    except (OSError, ValueError):  # gone, or closed
        return None


def _fill(image: Any, pixels: Any, position: int, left_count: int | None) -> Any:
    """Do what Pillow's `load` does to a picture, but take its pixels instead of decoding them.

    Args:
        image: the picture, before it is loaded.
        pixels: a plain image that has them.
        position: where its file stands afterwards, if it stays open.
        left_count: bytes of its last chunk that decoding did not need; None where it has none.
    """
    file = image.fp
    image.map = None
    file.seek(image.tile[0][2])
    image.im = pixels.im
    image.load_prepare()
    image.tile = []
    image.readonly = 0
    image.load_end()
    if left_count is not None:
        setattr(image, _LEFT, left_count)
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        file.close()
    else:
        file.seek(position)
    image.fp = None
    return sys.modules["PIL.Image"].Image.load(image)


def _twin(image: Any, file: Any) -> Any:
    """Return the picture once more, as it is before it is loaded; None where that fails."""
    try:
        twin = type(image)(file, image.filename)
    except Exception:
        return None
    twin._exclusive_fp = image._exclusive_fp
    return twin


def _facts(image: Any) -> dict[str, str]:
    """Return what a picture holds besides its pixels."""
    return {
        name: repr(value) if isinstance(value, _PLAIN) else type(value).__name__
        for name, value in vars(image).items()
    }


def _pixels(image: Any) -> tuple[Any, ...]:
    raw = image.tobytes("raw", _PIXELS.get(image.mode, image.mode))
    return image.mode, image.size, image.im.mode, image.readonly, raw
