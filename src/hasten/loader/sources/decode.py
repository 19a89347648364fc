"""One seam in Pillow's loading of JPEG files: pixels from elsewhere, the object as always.

`PIL.ImageFile.ImageFile.load` reads, decodes and tidies up. If a decoder can give the pixels
of an untouched JPEG file, only the tidying up is left to do here. Everything else - other
formats, `draft`, files that are damaged, half read, closed or not plain - is left to Pillow.
"""

from __future__ import annotations

import base64
import importlib
import io
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Decoder = Callable[["JpegFile"], Any]

_CHECKED_COUNT, _CHECKED_EVERY = 8, 256
_LEAST_RATIO = 1.1
_MOST_BYTES = 1 << 28  # larger files are left to Pillow, which reads them piece by piece
_CHANNELS = {"RGB": 3, "L": 1}
_FILES = (io.BytesIO, io.BufferedReader)
_HOOKS = {"load_read", "load_seek", "load_prepare", "load_end", "tile_prefix"}
_START_OF_SCAN, _END = 0xDA, b"\xff\xd9"
# A 3 x 2 pixel image, to see what loading leaves behind in this version of Pillow.
_SPECIMEN = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZG"
    "NywtQFdBRkxOUlNSMj5aYVpQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09P"
    "T09PT09PT09PT09PT09PT09PT09PT09PT0//wAARCAACAAMDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAA"
    "AAP/xAAcEAEAAgIDAQAAAAAAAAAAAAABAgMABCEiYYH/xAAVAQEBAAAAAAAAAAAAAAAAAAAEBf/EABkRAAIDAQAA"
    "AAAAAAAAAAAAAAABAgMycf/aAAwDAQACEQMRAD8AhbRS7u6NNaR274x6nES2QB4AHzGMZRqxHiCS0z//2Q=="
)


class JpegFile:
    """An open JPEG image before its pixels are there, as decoders see it.

    Attributes:
        image: the script's own object; a decoder leaves it alone.
        path: the file on disk, None if there is none or its name is unknown.
    """

    def __init__(self, image: Any, stock: Callable[[Any], Any]) -> None:
        self.image = image
        self.path = _path(image)
        self._stock = stock
        self._data: bytes | None = None

    @property
    def data(self) -> bytes:
        """The whole file; it is read once."""
        if self._data is None:
            if self.image.fp.seek(0, io.SEEK_END) > _MOST_BYTES:
                raise ValueError("too large to be read at once")
            self.image.fp.seek(0)
            self._data = self.image.fp.read()
        return self._data

    def twin(self) -> JpegFile:
        """Return the same file in memory, with an image of its own."""
        twin = object.__new__(type(self.image))
        vars(twin).update(vars(self.image), tile=list(self.image.tile), info=dict(self.image.info))
        twin.fp, twin._exclusive_fp = io.BytesIO(self.data), False
        return JpegFile(twin, self._stock)

    def decoded(self) -> Any:
        """Return a twin of the image with the pixels that Pillow itself makes."""
        twin = self.twin()
        twin.load()
        return twin.image

    def load(self) -> None:
        """Let Pillow load the image."""
        self._stock(self.image)


def _path(image: Any) -> str | None:
    name = image.filename or getattr(image.fp, "name", None)
    return name if isinstance(name, str) else None


class _Seam:
    """The one replacement of `ImageFile.load`, in place as long as it has any decoders."""

    def __init__(self) -> None:
        self.decoders: list[Decoder] = []
        self._stock: Callable[[Any], Any] | None = None
        self._ours: Callable[[Any], Any] | None = None
        self._kind: Any = None
        self._understood = False

    def add(self, decoders: tuple[Decoder, ...]) -> None:
        """Append `decoders` to those already there."""
        owner = importlib.import_module("PIL.ImageFile").ImageFile
        self.decoders = [*self.decoders, *decoders]
        if self._ours is None:
            stock = self._stock = owner.load

            def load(image: Any) -> Any:
                """Load image data based on tile list."""
                return self.load(image, stock)

            load.__wrapped__ = stock  # type: ignore[attr-defined]
            self._ours = owner.load = load

    def remove(self, decoders: tuple[Decoder, ...]) -> None:
        """Remove `decoders` again; without any, Pillow is as it was.

        If someone else has wrapped our `load` since, ours stays underneath and passes through.
        """
        self.decoders = [one for one in self.decoders if one not in decoders]
        owner = importlib.import_module("PIL.ImageFile").ImageFile
        if not self.decoders and owner.load is self._ours:
            owner.load = self._stock
            self._ours = None

    def load(self, image: Any, stock: Callable[[Any], Any]) -> Any:
        """Load an image as Pillow does, with the pixels of the first decoder that has them."""
        if not self.decoders or not _untouched(image):
            return stock(image)
        try:
            made = self._made(image, stock)
        except Exception:  # whatever it was, Pillow reports it better
            made = None
        return stock(image) if made is None else _settle(image, *made)

    def _made(self, image: Any, stock: Callable[[Any], Any]) -> tuple[Any, int] | None:
        """Return the pixels, and where Pillow would have stopped reading."""
        if type(image) is not self._kind:
            self._understood = _leaves_the_same(type(image), stock)
            self._kind = type(image)
        if not self._understood:
            return None
        file = JpegFile(image, stock)
        for decoder in self.decoders:
            pixels = decoder(file)
            if pixels is not None:
                return core_of(image, pixels), 0 if _closes(image) else _read_until(file)
        return None


_SEAM = _Seam()


def install(*decoders: Decoder) -> Callable[[], None]:
    """Let `decoders` give the pixels of JPEG files, trying each in turn; return the undo.

    A decoder is called with a `JpegFile` and returns a buffer - rows from the top, without
    padding: one byte per pixel for "L", three or (the fourth is 255) four for "RGB" - or None
    if it has nothing. An exception counts as None too.
    """
    _SEAM.add(decoders)
    return lambda: _SEAM.remove(decoders)


def installed() -> tuple[Decoder, ...]:
    """Return the decoders that are in use in this process."""
    return tuple(_SEAM.decoders)


def _untouched(image: Any) -> bool:
    """Return whether an image is a JPEG file as `Image.open` leaves it, in a plain file."""
    kind, own = type(image), vars(image)
    if (kind.__module__, kind.__name__) != ("PIL.JpegImagePlugin", "JpegImageFile"):
        return False
    tiles: Any = own.get("tile") or ()
    fresh = own.get("_im", own.get("im", tiles)) is None and own.get("decoderconfig") == ()
    if not fresh or len(tiles) != 1 or type(own.get("fp")) not in _FILES or _HOOKS & own.keys():
        return False
    width, height = image.size
    whole = ("jpeg", (0, 0, width, height), 0, (image.mode, ""))
    return image.mode in _CHANNELS and tuple(tiles[0]) == whole


def _closes(image: Any) -> bool:
    return bool(image._exclusive_fp and image._close_exclusive_fp_after_loading)


def _read_until(file: JpegFile) -> int:
    """Return the position at which Pillow, reading in blocks, leaves a file that it does not own.

    Raises:
        ValueError: the file goes on after the image, or may do so.
    """
    image = file.image
    size = int(image.fp.seek(0, io.SEEK_END))
    if size > image.decodermaxblock and file.data.find(_END, _scan(file.data)) + 2 != size:
        raise ValueError("something follows the image")
    return size


def _scan(data: bytes) -> int:
    """Return where the first scan begins, after thumbnails that have their own end marker."""
    place = 2
    while data[place + 1] != _START_OF_SCAN:
        if data[place] != 0xFF or not 0xC0 <= data[place + 1] <= 0xFE:
            raise ValueError("not a plain sequence of segments")
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return place


def core_of(image: Any, pixels: Any) -> Any:
    """Return Pillow's own memory, filled with `pixels` of the mode and size of `image`.

    Raises:
        ValueError: there is a different number of pixels.
    """
    pillow, (width, height) = sys.modules["PIL.Image"], image.size
    channel_count = memoryview(pixels).nbytes / (width * height)
    wide = image.mode == "RGB" and channel_count == 4
    if not wide and channel_count != _CHANNELS[image.mode]:
        raise ValueError(f"{channel_count} bytes per pixel of {image.mode}")
    core = pillow.core.new(image.mode, image.size)
    layout = ("RGBX" if wide else image.mode, 0, 1)
    unpacker = pillow._getdecoder(image.mode, "raw", layout)
    unpacker.setimage(core, (0, 0, width, height))
    consumed, error = unpacker.decode(pixels)
    if consumed >= 0 or error:
        raise ValueError(f"{width} x {height} pixels could not be unpacked: {error}")
    return core


def _settle(image: Any, core: Any, position: int) -> Any:
    """Leave image and file behind as `ImageFile.load` does."""
    image.map = None
    image.im = core
    image.tile = []
    image.readonly = 0
    image.load_end()
    if _closes(image):
        image.fp.close()
    else:
        image.fp.seek(position)
    image.fp = None
    return sys.modules["PIL.Image"].Image.load(image)


def _leaves_the_same(kind: Any, stock: Callable[[Any], Any]) -> bool:
    """Return whether this Pillow leaves behind what `_settle` does, tried on a specimen."""
    try:
        theirs, ours = kind(io.BytesIO(_SPECIMEN)), kind(io.BytesIO(_SPECIMEN))
        file = ours.fp
        stock(theirs)
        pixels = _raw(theirs)
        if not _untouched(ours):
            return False
        _settle(ours, core_of(ours, pixels), _read_until(JpegFile(ours, stock)))
    except Exception:
        return False
    same = _left(ours) == _left(theirs) and file.tell() == len(_SPECIMEN)
    return bool(same and _raw(ours) == pixels)


def _left(image: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(image).items() if name not in ("im", "_im")}


class _DecodeTrial:
    """What comparing one kind of file has shown so far."""

    def __init__(self) -> None:
        self.count = 0
        self.ratios: list[float] = []

    @property
    def due(self) -> bool:
        return self.count <= _CHECKED_COUNT or self.count % _CHECKED_EVERY == 0

    @property
    def slower(self) -> bool:
        if len(self.ratios) < _CHECKED_COUNT:
            return False
        return statistics.median_low(self.ratios[-_CHECKED_COUNT:]) < _LEAST_RATIO


class Turbo:
    """Decode with simplejpeg, if it was identical and faster on the files at hand.

    Files are classified by what could make two decoders differ: mode, subsampling, progressive
    or not, how the colours are coded. Of each kind the first eight are decoded both ways and
    compared byte by byte, and then every 256th. A difference ends it in this process for good;
    a kind that Pillow decodes as fast is left to it.

    Attributes:
        off: why it has stopped, "" while it is in use.
    """

    def __init__(self) -> None:
        self.off = ""
        self._library = importlib.import_module("simplejpeg")
        self._trials: dict[Any, _DecodeTrial] = {}
        self._scratch = threading.local()

    def __call__(self, file: JpegFile) -> Any:
        """Return the pixels of `file`, None if Pillow is to decode it."""
        trial = self._trials.setdefault(_kind(file.image), _DecodeTrial())
        if self.off or trial.slower:
            return None
        trial.count += 1
        pixels = self._compared(file, trial) if trial.due else self._decode(file)
        return None if self.off else pixels

    def _decode(self, file: JpegFile) -> Any:
        """Return the pixels; None for a file that is damaged or odd, which is Pillow's to judge."""
        image, (width, height) = file.image, file.image.size
        space, channel_count = ("RGBX", 4) if image.mode == "RGB" else ("GRAY", 1)
        needed_bytes = width * height * channel_count
        scratch = getattr(self._scratch, "buffer", b"")
        if len(scratch) < needed_bytes:  # the same pages for every image
            scratch = self._scratch.buffer = bytearray(needed_bytes)
        try:
            pixels = self._library.decode_jpeg(file.data, space, buffer=scratch)
        except ValueError:
            return None
        return pixels if pixels.shape == (height, width, channel_count) else None

    def _compared(self, file: JpegFile, trial: _DecodeTrial) -> Any:
        """Return the pixels, after both ways were tried on twins of the image.

        Both must leave the same image, and ours must be faster. Times are this thread's CPU time,
        so that a busy machine judges like an idle one.
        """
        ours, theirs = file.twin(), file.twin()
        start_s = time.thread_time()
        pixels = self._decode(ours)
        if pixels is None or not _untouched(ours.image):
            return None
        position = 0 if _closes(file.image) else _read_until(ours)
        _settle(ours.image, core_of(ours.image, pixels), position)
        between_s = time.thread_time()
        theirs.load()
        ended_s = time.thread_time()
        trial.ratios.append((ended_s - between_s) / max(1e-9, between_s - start_s))
        same = _left(ours.image) == _left(theirs.image)
        if not same or _raw(ours.image) != _raw(theirs.image):
            self.off = f"a file decodes to other pixels than Pillow's: {file.path or 'in memory'}"
        return pixels


def _raw(image: Any) -> bytes:
    """Return all bytes of an image, including those that pad pixels."""
    raw: bytes = image.tobytes("raw", "RGBX" if image.mode == "RGB" else image.mode)
    return raw


def _kind(image: Any) -> Any:
    layers = tuple(layer[:3] for layer in image.layer)
    colours = image.info.get("adobe_transform"), "jfif" in image.info
    return image.mode, layers, image.info.get("progressive"), *colours


def install_turbo() -> Callable[[], None]:
    """Install a `Turbo`, or nothing where Pillow or simplejpeg do not import: return the undo.

    A simplejpeg built for another NumPy raises something other than ImportError.
    """
    try:
        return install(Turbo())
    except Exception:
        return lambda: None


class TurboWorkers:
    """Let a worker that did not inherit simplejpeg, being spawned, decode with it."""

    repeats = False

    def enter(self, worker_index: int) -> None:
        """Put the decoder in, unless the process was forked with one."""
        if not any(isinstance(decoder, Turbo) for decoder in installed()):
            install_turbo()

    def first(
        self, fetch: Callable[[Any], Any], indices: Any, dataset: Any = None, collate_fn: Any = None
    ) -> Any:
        """Fetch each batch as it is."""
        return fetch(indices)
