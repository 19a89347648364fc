"""Another decoder under Pillow: the same pixels, the same object, the same file afterwards."""

import importlib
import io
import pickle
import random
import sys
import warnings

import pytest

np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")
ImageFile = importlib.import_module("PIL.ImageFile")
pytest.importorskip("simplejpeg", reason="the extra turbojpeg is not installed")

from hasten.loader.sources import decode  # noqa: E402

BLOCK = 65536


def pixels(width, height, mode="RGB", noise=20):
    rng = np.random.default_rng(width * height)
    y, x = np.mgrid[0:height, 0:width]
    planes = [x * 255 / width, y * 255 / height, (x + y) * 255 / (width + height), x * 0 + 90]
    bands = len(Image.new(mode, (1, 1)).getbands())
    picture = np.stack(planes[:bands], -1) + rng.normal(0, noise, (height, width, bands))
    return Image.fromarray(picture.clip(0, 255).astype("uint8").squeeze(), mode=None)


def coded(width=61, height=43, mode="RGB", *, noise=20, **more):
    file = io.BytesIO()
    picture = pixels(width, height, mode, noise)
    if mode == "CMYK":
        picture = pixels(width, height, "RGB", noise).convert("CMYK")
    picture.save(file, "JPEG", **more)
    return file.getvalue()


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return coded(exif=exif)


def cut(data):
    return data[: len(data) * 2 // 3]


def broken(data):
    middle = len(data) // 2
    return data[:middle] + b"\xff\xd0\x00\xff\xd7" + data[middle + 5 :]


FILES = {
    "444": lambda: coded(subsampling=0),
    "422": lambda: coded(subsampling=1, quality=90),
    "420": lambda: coded(subsampling=2, quality=40),
    "odd": lambda: coded(17, 1, subsampling=2),
    "one pixel": lambda: coded(1, 1),
    "progressive": lambda: coded(progressive=True),
    "progressive and large": lambda: coded(700, 500, progressive=True, quality=95),
    "restarts": lambda: coded(restart_marker_blocks=2),
    "rgb inside": lambda: coded(keep_rgb=True, subsampling=0),
    "grey": lambda: coded(mode="L"),
    "grey and progressive": lambda: coded(mode="L", progressive=True),
    "cmyk": lambda: coded(mode="CMYK"),
    "turned": turned,
    "comment and profile": lambda: coded(comment=b"hello", icc_profile=b"x" * 70000, dpi=(72, 90)),
    "large": lambda: coded(600, 500, quality=95, subsampling=0),
    "followed": lambda: coded() + b"more",
    "large and followed": lambda: coded(600, 500, quality=95, noise=40) + coded(300, 400),
    "large and padded": lambda: coded(600, 500, quality=95, noise=40) + b"\0" * 3 * BLOCK,
    "cut": lambda: cut(coded()),
    "cut and progressive": lambda: cut(coded(progressive=True)),
    "large and cut": lambda: cut(coded(600, 500, quality=95, noise=40)),
    "broken": lambda: broken(coded()),
    "without an end": lambda: coded()[:-2],
}
WAYS = ("path", "file", "bytes")


def seen(image, file):
    """Load and say all that can be seen of the image and of its file."""
    out = {"before": [image.mode, image.size, len(image.tile)]}
    try:
        access = image.load()
        out["access"] = access[0, 0]
    except Exception as error:
        out["raised"] = f"{type(error).__name__}: {error}".replace(repr(image), "")
    hidden = ("_im", "im", "fp", "_exif", "map")
    out["attributes"] = {k: repr(v) for k, v in vars(image).items() if k not in hidden}
    out["map"] = vars(image).get("map", "none")
    out["fp"] = image.fp is None
    out["file"] = file.closed or file.tell()
    out["exif"] = dict(image.getexif())
    out["orientation"] = image.getexif().get(0x0112)
    if "raised" not in out:
        layout = "RGBX" if image.mode == "RGB" else image.mode
        out["pixels"] = image.tobytes("raw", layout)
        out["readonly"] = image.readonly
        out["pickled"] = pickle.loads(pickle.dumps(image)).tobytes()
        image.putpixel((0, 0), 7 if image.mode == "L" else (1, 2, 3, 4)[: len(image.getbands())])
        out["written"] = image.tobytes()
        out["again"] = image.load() is not None
    return out


def opened(data, way, folder):
    if way == "bytes":
        file = io.BytesIO(data)
        return Image.open(file), file
    path = folder / "picture.jpg"
    path.write_bytes(data)
    if way == "path":
        image = Image.open(str(path))
        return image, image.fp
    file = path.open("rb")
    return Image.open(file), file


def look(data, way, folder, prepare=lambda image: None):
    image, file = opened(data, way, folder)
    with file:
        prepare(image)
        return seen(image, file)


class Counting(decode.Turbo):
    """The decoder, also where it is not faster, and how often it gave pixels."""

    def __init__(self):
        super().__init__()
        self.given = 0

    def __call__(self, file):
        for trial in self._trials.values():
            trial.ratios.clear()
        found = super().__call__(file)
        self.given += found is not None
        return found


@pytest.fixture
def turbo():
    decoder = Counting()
    undo = decode.install(decoder)
    yield decoder
    undo()


@pytest.fixture
def both(tmp_path):
    """Return what is seen of a file under Pillow alone, then under the decoder, and its count."""

    def run(data, way, prepare=lambda image: None):
        stock = look(data, way, tmp_path, prepare)
        decoder = Counting()
        undo = decode.install(decoder)
        try:
            return stock, look(data, way, tmp_path, prepare), decoder
        finally:
            undo()

    return run


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FILES)
def test_pixels_attributes_errors_and_the_file_are_those_of_pillow(name, way, both) -> None:
    stock, ours, decoder = both(FILES[name](), way)
    assert ours == stock
    assert decoder.off == ""
    usual = not any(word in name for word in ("cut", "broken", "without", "cmyk"))
    handed = usual and (way == "path" or "large and" not in name)
    assert decoder.given >= handed, "the decoder was not even asked"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["cut", "large and cut", "broken", "420"])
def test_files_that_are_cut_load_in_part_where_the_script_allows_it(
    name, way, both, monkeypatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    stock, ours, _ = both(FILES[name](), way)
    assert ours == stock
    assert "pixels" in ours


PREPARE = {
    "draft": lambda image: image.draft("RGB", (20, 20)),
    "draft to grey": lambda image: image.draft("L", (61, 43)),
    "draft of nothing": lambda image: image.draft(None, None),
    "closed file": lambda image: image.fp.close(),
    "moved file": lambda image: image.fp.seek(7),
    "loaded": lambda image: image.load(),
    "hook": lambda image: setattr(image, "load_read", image.fp.read),
    "crop of the tile": lambda image: image.tile.append(image.tile[0]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PREPARE)
def test_what_a_script_did_before_loading_still_counts(name, way, both) -> None:
    stock, ours, decoder = both(coded(), way, PREPARE[name])
    assert {**ours, "attributes": str(ours["attributes"]).split(" at 0x")[0]} == {
        **stock,
        "attributes": str(stock["attributes"]).split(" at 0x")[0],
    }
    assert decoder.given == (name in ("moved file", "loaded"))


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("blocks", [1, 2])
def test_the_file_is_read_as_far_as_pillow_reads_it(blocks, extra, both) -> None:
    data = coded(200, 200, quality=95, noise=40)
    missing = blocks * BLOCK + extra - len(data)
    while missing > 0:
        part = min(missing, 60000)
        comment = b"\xff\xfe" + (part - 2).to_bytes(2, "big") + b"c" * (part - 4)
        data, missing = data[:2] + comment + data[2:], missing - part
    assert len(data) == blocks * BLOCK + extra
    stock, ours, decoder = both(data, "bytes")
    assert ours["file"] == stock["file"]
    assert ours == stock
    assert decoder.given == 1


def test_other_formats_and_subclasses_are_left_alone(turbo, tmp_path) -> None:
    file = io.BytesIO()
    pixels(30, 20).save(file, "PNG")
    assert Image.open(file).load()[0, 0]
    kind = type(Image.open(io.BytesIO(coded())))
    subclass = type("Mine", (kind,), {})
    assert subclass(io.BytesIO(coded())).load()[0, 0]
    assert turbo.given == 0


def test_no_random_number_is_drawn(turbo) -> None:
    before = random.getstate(), np.random.get_state()[1].tobytes()
    for _ in range(10):
        Image.open(io.BytesIO(coded())).load()
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before
    assert turbo.given == 10


def test_an_image_too_large_for_comfort_still_warns_once(turbo, monkeypatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Image.open(io.BytesIO(coded())).load()
    assert [w.category.__name__ for w in caught] == ["DecompressionBombWarning"]


def test_the_last_undo_puts_the_original_back() -> None:
    original = ImageFile.ImageFile.load
    first, second = decode.install(lambda file: None), decode.install(lambda file: None)
    assert ImageFile.ImageFile.load is not original
    first()
    assert ImageFile.ImageFile.load is not original
    second()
    assert ImageFile.ImageFile.load is original
    assert decode.installed() == ()


def test_what_others_put_over_it_stays_and_works_after_the_undo() -> None:
    original = ImageFile.ImageFile.load
    undo = decode.install(lambda file: pytest.fail("asked after its undo"))
    ours = ImageFile.ImageFile.load

    def theirs(image):
        return ours(image)

    ImageFile.ImageFile.load = theirs
    try:
        undo()
        assert ImageFile.ImageFile.load is theirs
        assert Image.open(io.BytesIO(coded())).load()[0, 0]
        again = decode.install(lambda file: b"\1\2\3" * 61 * 43)
        assert Image.open(io.BytesIO(coded())).load()[0, 0] == (1, 2, 3)
        again()
    finally:
        ImageFile.ImageFile.load = original
        decode._SEAM._ours = None


def test_decoders_are_asked_in_turn_with_the_path_and_the_bytes_of_the_file(tmp_path) -> None:
    data, asked = coded(4, 3), []
    path = tmp_path / "a.jpg"
    path.write_bytes(data)

    def first(file):
        asked.append((file.path, file.data == data, file.image.size))

    def kept(file):
        return file.decoded().tobytes()[::-1]

    undo = decode.install(first, kept, lambda file: pytest.fail("not its turn"))
    try:
        stock = Image.open(io.BytesIO(data))
        flipped = Image.open(str(path))
        with path.open("rb") as file:
            assert Image.open(file).load()
        assert stock.load()
        flipped.load()
    finally:
        undo()
    plain = Image.open(io.BytesIO(data)).tobytes()
    assert flipped.tobytes() == plain[::-1]
    assert asked == [(str(path), True, (4, 3)), (None, True, (4, 3)), (str(path), True, (4, 3))]


@pytest.mark.parametrize("pixels", [b"123", b"", "text", 3])
def test_a_decoder_with_nonsense_or_an_error_leaves_the_file_to_pillow(pixels) -> None:
    def fails(file):
        raise MemoryError

    for decoder in (lambda file: pixels, fails):
        undo = decode.install(decoder)
        try:
            image = Image.open(io.BytesIO(coded()))
            image.load()
        finally:
            undo()
        assert image.tobytes() == Image.open(io.BytesIO(coded())).tobytes()


class Library:
    """A decoder library that is wrong from its n-th image on."""

    def __init__(self, wrong_from):
        self.real = importlib.import_module("simplejpeg")
        self.left = wrong_from

    def decode_jpeg(self, *args, **more):
        found = self.real.decode_jpeg(*args, **more)
        self.left -= 1
        if self.left < 0:
            found[0, 0, 0] ^= 1
        return found


def test_one_different_byte_ends_it_and_nobody_sees_the_difference(turbo) -> None:
    turbo._library = Library(wrong_from=3)
    stock = Image.open(io.BytesIO(coded())).convert("RGB").tobytes()
    for _ in range(12):
        assert Image.open(io.BytesIO(coded())).convert("RGB").tobytes() == stock
    assert "other pixels" in turbo.off
    assert turbo.given == 4 - 1


def test_files_are_compared_for_each_kind_anew(turbo) -> None:
    for _ in range(9):
        Image.open(io.BytesIO(coded(subsampling=0))).load()
    turbo._library = Library(wrong_from=0)
    stock = coded(subsampling=2)
    Image.open(io.BytesIO(stock)).load()
    assert turbo.off


def test_a_kind_that_is_not_faster_is_left_to_pillow() -> None:
    decoder = decode.Turbo()
    undo = decode.install(decoder)
    try:
        Image.open(io.BytesIO(coded())).load()
        (trial,) = decoder._trials.values()
        trial.ratios[:] = [0.9] * 8
        trial.count = 8
        decoder._library = None
        Image.open(io.BytesIO(coded())).load()
        assert trial.count == 8
    finally:
        undo()


def test_a_pillow_that_leaves_other_things_behind_is_not_touched(turbo, monkeypatch) -> None:
    kind = type(Image.open(io.BytesIO(coded())))
    own = kind.load_prepare

    def prepare(image):
        image.prepared = True
        own(image)

    monkeypatch.setattr(kind, "load_prepare", prepare)
    monkeypatch.setattr(decode._SEAM, "_kind", None)
    Image.open(io.BytesIO(coded())).load()
    assert turbo.given == 0


def test_a_library_that_does_not_import_leaves_pillow_alone(monkeypatch) -> None:
    def fails(name):
        raise ValueError("built for another NumPy")

    original = ImageFile.ImageFile.load
    monkeypatch.setattr(decode.importlib, "import_module", fails)
    undo = decode.install_turbo()
    assert decode.installed() == ()
    assert ImageFile.ImageFile.load is original
    undo()


def test_a_spawned_worker_gets_a_decoder_and_a_forked_one_keeps_its_own() -> None:
    setup = pickle.loads(pickle.dumps(decode.TurboWorkers()))
    try:
        setup.enter(0)
        before = decode.installed()
        setup.enter(1)
        assert decode.installed() == before
        assert setup.first(lambda indices: indices, [3], ["the dataset"]) == [3]
    finally:
        decode._SEAM.remove(decode.installed())
    assert "simplejpeg" in sys.modules
