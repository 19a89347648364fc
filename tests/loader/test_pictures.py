"""Pictures that items open are decoded once; what is made of them is torch's, draws included."""

import gc
import io
import os
import pickle
import random
import threading
import time
import types

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.cache import memo, pictures
from hasten.loader.cache.cached import Cache
from hasten.loader.proofs import Proofs
from hasten.loader.sources.source import Stock
from hasten.records import LoaderTraits

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")
from PIL import ImageDraw, ImageFile, ImageOps, PngImagePlugin  # noqa: E402

COUNT, BATCH = 16, 4
OWN_LOAD = vars(ImageFile.ImageFile)["load"]


@pytest.fixture(autouse=True)
def _pictures_cost_enough(monkeypatch):
    monkeypatch.setattr(memo, "_OVERHEAD_NS", -(10**12))
    monkeypatch.setattr(memo, "_LOOK_SHARE_RATIO", 1e9)
    monkeypatch.setattr(ImageFile.ImageFile, "load", OWN_LOAD)


@pytest.fixture
def decoded(monkeypatch):
    """Count the pictures that Pillow decodes."""
    names, decoder = [], Image._getdecoder

    def count(mode, name, *rest):
        if name in ("jpeg", "zip"):
            names.append(name)
        return decoder(mode, name, *rest)

    monkeypatch.setattr(Image, "_getdecoder", count)
    return names


def save(path, index, mode="RGB", **more):
    drawn = np.random.default_rng(index)
    pixels = drawn.integers(0, 256, (40 + index % 3, 50, 4), dtype=np.uint8)
    Image.fromarray(pixels, "RGBA").convert(mode).save(path, **more)


def files(folder, kind="jpg", mode="RGB", **more):
    if kind == "png":
        notes = PngImagePlugin.PngInfo()
        notes.add_text("about", "a picture")
        notes.add(b"prVt", b"after", after_idat=True)
        more |= {"pnginfo": notes, "dpi": (72, 72)}
    elif mode == "RGB":
        exif = Image.Exif()
        exif[0x0112] = 6
        more |= {"exif": exif, "progressive": True}
    for index in range(COUNT):
        save(folder / f"{index}.{kind}", index, mode, **more)
    time.sleep(0.06)  # a file that changed just now may change again without another stamp
    return folder, kind


def facts(image):
    """Return what can be told of a picture, and its pixels, in an order of its own."""
    image.load()
    told = {
        name: repr(value)
        if isinstance(value, (int, str, bytes, list, tuple, dict))
        else str(type(value))
        for name, value in sorted(vars(image).items())
    }
    raw = image.tobytes("raw", {"RGB": "RGBX"}.get(image.mode, image.mode))
    return [
        told,
        image.mode,
        image.size,
        image.readonly,
        getattr(image, "fp", None) is None,
        raw,
        image.im.mode,
    ]


def augmented(image):
    image = image.convert("RGB")
    left, top = random.randrange(10), int(np.random.randint(10))
    image = image.crop((left, top, left + 30, top + 30))
    if torch.rand(()) < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image))


def dataset_of(place, code, draw="random.random() + torch.rand(()).item()"):
    folder, kind = place
    lines = "\n    ".join(code.split("; "))
    space = {
        "Image": Image, "ImageDraw": ImageDraw, "ImageOps": ImageOps, "facts": facts, "np": np,
        "augmented": augmented, "random": random, "torch": torch, "folder": str(folder),
        "kind": kind, "io": io,
    }  # fmt: skip
    exec(
        f"def item(self, index):\n    path = f'{{folder}}/{{index}}.{{kind}}'\n    "
        f"drawn = {draw}\n    {lines}",
        space,
    )
    own = type("Own", (Dataset,), {
        "__module__": __name__, "__len__": lambda self: COUNT, "__getitem__": space["item"],
    })  # fmt: skip
    return own()


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def passes(dataset, *, count=4, at=None, cache=None):
    """Compare passes with torch's own; return the cache and the last source."""
    cache = cache or Cache(1 << 26)
    loader = DataLoader(dataset, batch_size=BATCH, collate_fn=list)
    stock = Stock(loader)
    for number in range(count):
        if at:
            at(number)
        source = cache.offer(loader)
        assert not isinstance(source, str), source
        for start in range(0, COUNT, BATCH):
            indices = list(range(start, start + BATCH))
            seed(100 * number + start)
            theirs, after = stock.fetch(indices), random_states.read()
            seed(100 * number + start)
            ours = source.fetch(indices)
            assert difference(ours, theirs) == ""
            assert random_states.read() == after
    return cache, source


used = []


@pytest.fixture(autouse=True)
def _uses_are_counted(monkeypatch):
    used.clear()
    use = memo.Memo._use
    monkeypatch.setattr(
        memo.Memo, "_use", lambda self, build, make: used.append(1) or use(self, build, make)
    )


OPENED = "image = Image.open(path); "
ITEMS = [
    "return augmented(Image.open(path)), drawn",
    "return facts(Image.open(path)), drawn",
    "image = Image.open(path); image.load(); pixels = image.load(); "
    "return pixels[3, 4], image.load()[1, 2], facts(image), drawn",
    "with Image.open(path) as image: image = image.resize((20, 20)); return facts(image), drawn",
    "file = open(path, 'rb'); got = facts(Image.open(file)), file.tell(); file.close(); "
    "return got, drawn",
    "image = Image.open(path); ImageDraw.Draw(image).line((0, 0, 20, 20), fill=1); "
    "return facts(image), drawn",
    "image = Image.open(path); image.info['own'] = index; return facts(image), drawn",
    "return facts(ImageOps.exif_transpose(Image.open(path))), drawn",
    "image = Image.open(path); image.mine = index; return facts(image), drawn",
    "image = Image.open(path); image.getexif()[0x0112] = 3; return facts(image.copy()), drawn",
    "image = Image.open(path); np.asarray(image); return str(getattr(image, 'text', '')), drawn",
]
KINDS = [("jpg", "RGB"), ("jpg", "L"), ("png", "RGB"), ("png", "RGBA"), ("png", "L")]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("code", ITEMS)
def test_items_are_torchs_own_whatever_they_do_with_a_picture(tmp_path, kind, code) -> None:
    _cache, source = passes(dataset_of(files(tmp_path, *kind), code))
    assert type(source._recipe) is pictures.Pictures
    assert source._memo.off == ""
    assert len(used) >= 2 * COUNT


@pytest.mark.parametrize("code", ITEMS[:2])
def test_from_the_third_pass_on_nothing_is_decoded(tmp_path, decoded, code) -> None:
    dataset = dataset_of(files(tmp_path), code)
    cache, _ = passes(dataset, count=2)
    loader = DataLoader(dataset, batch_size=BATCH, collate_fn=list)
    source = cache.offer(loader)
    before = len(decoded)
    for start in range(0, COUNT, BATCH):
        source.fetch(list(range(start, start + BATCH)))
    assert len(decoded) == before


@pytest.mark.parametrize(("kind", "code"), [
    (("png", "P"), ITEMS[1]),
    (("png", "1"), ITEMS[0]),
    (("jpg", "CMYK"), ITEMS[0]),
    (("jpg", "RGB"), OPENED + "image.draft('L', (20, 20)); return facts(image), drawn"),
    (("jpg", "RGB"), OPENED + "image.thumbnail((9, 9)); return facts(image), drawn"),
])  # fmt: skip
def test_what_is_decoded_in_another_way_is_decoded_each_time(tmp_path, decoded, kind, code) -> None:
    _cache, _ = passes(dataset_of(files(tmp_path, *kind), code), count=3)
    assert len(used) == 0
    assert len(decoded) == 2 * 3 * COUNT


def test_bytes_without_a_file_are_decoded_each_time(tmp_path) -> None:
    code = (
        "file = open(path, 'rb'); inside = io.BytesIO(file.read()); file.close(); "
        "return augmented(Image.open(inside)), drawn"
    )
    _cache, _ = passes(dataset_of(files(tmp_path), code), count=3)
    assert len(used) == 0


def test_a_file_that_is_replaced_is_decoded_anew(tmp_path) -> None:
    place = files(tmp_path)

    def at(number):
        if number:
            save(tmp_path / "5.jpg", 50 + 3 * number)
            save(tmp_path / "new.jpg", 80 + 3 * number)
            os.replace(tmp_path / "new.jpg", tmp_path / "6.jpg")
            time.sleep(0.06)

    _cache, source = passes(dataset_of(place, ITEMS[0]), at=at, count=5)
    assert source._memo.off == ""
    assert len(used) > 3 * COUNT


def test_a_picture_whose_file_is_replaced_before_it_is_loaded_is_that_of_the_old_one(
    tmp_path,
) -> None:
    names = [f"{index}.jpg" for index in range(BATCH)]
    for letter in "ab":
        (tmp_path / letter).mkdir()
        for index, name in enumerate(names):
            save(tmp_path / letter / name, 3 * index + 300 * (letter == "b"))
    time.sleep(0.06)

    def lead(name, letter):
        """Let the path lead to another file of the same form."""
        (tmp_path / "new").symlink_to(tmp_path / letter / name)
        os.replace(tmp_path / "new", tmp_path / name)

    for name in names:
        lead(name, "a")
    coming = {}
    code = "image = Image.open(path); swap(path); return augmented(image), drawn"
    dataset = dataset_of((tmp_path, "jpg"), code)
    type(dataset).__getitem__.__globals__["swap"] = lambda path: (
        coming and lead(os.path.basename(path), coming["to"])
    )
    source = Cache(1 << 26).offer(DataLoader(dataset, batch_size=BATCH, collate_fn=list))
    for to, opened in [("", "a"), ("b", "a"), ("", "b"), ("a", "b"), ("", "a")]:
        coming.clear()
        coming.update({"to": to} if to else {})
        seed(7)
        ours = source.fetch(list(range(BATCH)))
        seed(7)
        for name, (got, _) in zip(names, ours, strict=True):
            random.random(), torch.rand(())
            with Image.open(tmp_path / opened / name) as image:
                assert torch.equal(got, augmented(image))
    assert source._memo.off == ""


def test_a_file_that_is_cut_off_raises_each_time_as_ever(tmp_path) -> None:
    place = files(tmp_path)
    whole = (tmp_path / "3.jpg").read_bytes()
    (tmp_path / "3.jpg").write_bytes(whole[: len(whole) // 2])
    time.sleep(0.06)
    dataset = dataset_of(place, "with Image.open(path) as image: return augmented(image), drawn")
    source = Cache(1 << 26).offer(DataLoader(dataset, batch_size=BATCH, collate_fn=list))
    for _ in range(4):
        with pytest.raises(OSError, match="truncated"):
            source.fetch([1, 2, 3])
        assert len(source.fetch([4, 5, 6])) == 3


def test_a_file_that_is_cut_off_is_as_ever_where_the_script_allows_it(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    place = files(tmp_path)
    whole = (tmp_path / "3.jpg").read_bytes()
    (tmp_path / "3.jpg").write_bytes(whole[: len(whole) // 2])
    time.sleep(0.06)
    _cache, source = passes(dataset_of(place, ITEMS[1]))
    assert source._memo.off == ""
    assert len(used) >= 2 * (COUNT - 1)


def test_pixels_that_turn_out_to_differ_end_it(tmp_path, monkeypatch) -> None:
    dataset = dataset_of(files(tmp_path), ITEMS[0])
    fill = pictures._fill

    def wrong(image, pixels, *rest):
        return fill(image, Image.new(pixels.mode, pixels.size), *rest)

    monkeypatch.setattr(pictures, "_fill", wrong)
    cache = Cache(1 << 26)
    _, source = passes(dataset, count=2, cache=cache)  # each batch is torch's own
    assert source._memo.off == "a picture differs from what it was"
    assert cache.offer(DataLoader(dataset)) == "a picture differs from what it was"


def test_a_load_of_somebody_elses_is_left_alone(tmp_path, monkeypatch, decoded) -> None:
    def load(image):
        return OWN_LOAD(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    _cache, source = passes(dataset_of(files(tmp_path), ITEMS[0]), count=2)
    assert ImageFile.ImageFile.load is load
    assert len(used) == 0
    assert source.kept_ratio == 0.0


def test_pictures_that_others_load_are_decoded_as_ever(tmp_path, decoded) -> None:
    place = files(tmp_path)
    passes(dataset_of(place, ITEMS[0]))
    seen = []

    def look():
        before = len(decoded)
        for index in range(4):
            with Image.open(tmp_path / f"{index}.jpg") as image:
                image.load()
        seen.append(len(decoded) - before)

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [4, 4]


def test_a_thread_beside_an_item_decodes_as_ever(tmp_path) -> None:
    code = (
        "image = Image.open(path); thread = threading.Thread(target=image.load); thread.start(); "
        "thread.join(); return augmented(image), drawn"
    )
    dataset = dataset_of(files(tmp_path), code)
    type(dataset).__getitem__.__globals__["threading"] = types.SimpleNamespace(
        Thread=threading.Thread
    )
    _cache, _ = passes(dataset, count=3)
    assert len(used) == 0


def test_whole_samples_are_kept_where_they_draw_nothing(tmp_path) -> None:
    dataset = dataset_of(files(tmp_path), "return np.array(Image.open(path))", draw="0")
    cache, source = passes(dataset, count=2)
    assert type(source._recipe).__name__ == "WholeSample"
    assert cache.counts()["entries"] == COUNT


def test_pictures_outlive_a_change_of_the_dataset(tmp_path, decoded) -> None:
    dataset = dataset_of(files(tmp_path), ITEMS[0])

    def at(number):
        dataset.epoch = number

    _cache, source = passes(dataset, count=6, at=at)
    assert len(used) > 4 * COUNT
    assert source._memo.off == ""


def test_pictures_are_kept_of_items_whose_samples_may_not_be(tmp_path) -> None:
    code = "print(end=''); return np.array(Image.open(path).convert('L'))"
    _cache, source = passes(dataset_of(files(tmp_path), code), count=3)
    assert source._whole.made_of.code.why_not
    assert len(used) >= 2 * COUNT


def test_workers_that_stay_keep_their_source_when_pictures_are_given_up(tmp_path) -> None:
    code = "print(end=''); return augmented(Image.open(path)), drawn"
    dataset = dataset_of(files(tmp_path), code)
    cache, source = passes(dataset, count=2)
    source._memo.give_up("no more")
    settings = {"batch_size": BATCH, "collate_fn": list}
    assert cache.offer(DataLoader(dataset, **settings)) == source._whole.made_of.code.why_not
    stays = DataLoader(dataset, num_workers=1, persistent_workers=True, **settings)
    assert len(cache.offer(stays).fetch([3, 4])) == 2


def test_warming_keeps_pictures_and_moves_no_generator(tmp_path, decoded) -> None:
    dataset = dataset_of(files(tmp_path), ITEMS[0])
    cache = Cache(1 << 26)
    source = cache.offer(DataLoader(dataset, batch_size=BATCH))
    token = source.token
    seed(3)
    before = random_states.read()
    for start in range(0, COUNT, BATCH):
        assert source.warm(list(range(start, start + BATCH))) == BATCH
        assert random_states.read() == before
    assert source.kept_ratio == 1.0
    assert 0.0 < source.saved_ratio < 1.0
    assert source.token == token
    assert cache.offer(DataLoader(dataset, batch_size=BATCH)).token == token
    assert not source.is_kept([0])
    assert len(decoded) == COUNT + 4  # two samples showed that they draw, two were compared
    passes(dataset, cache=cache, count=1)


def test_a_source_that_was_pickled_uses_the_same_pictures(tmp_path, monkeypatch, decoded) -> None:
    dataset = dataset_of(files(tmp_path), ITEMS[0])
    monkeypatch.setitem(globals(), "Own", type(dataset))
    type(dataset).__qualname__ = "Own"
    type(dataset).__reduce__ = lambda self: (Own, ())  # noqa: F821
    _, source = passes(dataset)
    other = pickle.loads(pickle.dumps(source))
    before = len(decoded)
    seed(5)
    theirs = source.fetch([1, 2])
    seed(5)
    assert difference(other.fetch([1, 2]), theirs) == ""
    assert len(decoded) == before


def test_the_pictures_of_a_dataset_that_is_gone_are_gone(tmp_path) -> None:
    cache, source = passes(dataset_of(files(tmp_path), ITEMS[0]), count=2)
    del source
    gc.collect()
    assert not cache._memos
    assert not cache._of_pictures


@pytest.mark.parametrize(("code", "opens"), [
    (ITEMS[0], True),
    ("with open(path, 'rb') as file: return augmented(Image.open(file))", True),
    ("return Image.fromarray(np.zeros((3, 3)))", False),
    ("return index", False),
])  # fmt: skip
def test_datasets_that_open_pictures_are_told_from_others(tmp_path, code, opens) -> None:
    dataset = dataset_of((tmp_path, "jpg"), code)
    one, proofs = DataLoader(Subset(dataset, [0])), Proofs()
    proofs.look(one)
    traits = LoaderTraits(worker_count=0, is_map_style=True)
    assert proofs.add(id(one.dataset), traits).opens_pictures is opens


def test_what_forbids_whole_samples_does_not_forbid_pictures(tmp_path) -> None:
    dataset = dataset_of((tmp_path, "jpg"), f"{ITEMS[0]}, time.time()")
    one, proofs = DataLoader(dataset), Proofs()
    proofs.look(one)
    traits = proofs.add(id(dataset), LoaderTraits(worker_count=0, is_map_style=True))
    assert (traits.unkept, traits.opens_pictures) == ("", True)


# ---- processes

BEGIN = r"""
import tempfile
import numpy as np
from PIL import Image
from hasten.loader.cache import memo
from hasten.loader.cache.cached import Cache
from hasten.loader.cache_warmup import CacheWarmups

memo._OVERHEAD_NS, memo._LOOK_SHARE_RATIO = -(10**12), 1e9
folder = tempfile.TemporaryDirectory()
for i in range(24):
    pixels = np.random.default_rng(i).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(f"{folder.name}/{i}.jpg")
time.sleep(0.06)


class Augmented(Numbers):
    def __getitem__(self, i):
        image = Image.open(f"{folder.name}/{i}.jpg").convert("RGB")
        left, top = random.randrange(10), int(np.random.randint(10))
        image = image.crop((left, top, left + 30, top + 30))
        if torch.rand(()) < 0.5:
            image = image.transpose(0)
        return torch.from_numpy(np.array(image))
"""
PROGRAM = (
    BEGIN
    + r"""
def run(**settings):
    random.seed(3)
    np.random.seed(3)
    alive[:] = [Augmented(24)]  # what is kept goes with the dataset
    loader = DataLoader(alive[0], batch_size=4, shuffle=True, **settings)
    seen = [[[hashlib.sha256(x.numpy().tobytes()).hexdigest() for x in loader], rng()]
            for _ in range(4)]
    return seen, random.random(), np.random.rand()


alive = []
WAYS = ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True})
expected = [stock(lambda: run(**settings)) for settings in WAYS]
log, decoder = os.pipe(), Image._getdecoder
os.set_blocking(log[0], False)


def decode(mode, name, *rest):
    if name == "jpeg":
        os.write(log[1], b"x")  # of workers too
    return decoder(mode, name, *rest)


Image._getdecoder = decode
for settings, before in zip(WAYS, expected):
    for count in (None, 1):
        cache = Cache(1 << 26)
        take_back = engine.add(cache.offer)
        after = ours(lambda: run(**settings), count)
        take_back()
        counts = cache.counts()
        name = f"{settings} {count}"
        facts[name] = [before == after, counts["entries"] - 24, len(os.read(log[0], 4096))]
facts["notes"] = engine.notices.notes
"""
)


@pytest.mark.child
def test_loaders_with_and_without_workers_give_torchs_batches_and_draws(loaders) -> None:
    facts = loaders(PROGRAM)
    assert facts.pop("notes") == []
    assert len(facts) == 6
    for same, mark_count, decoded_count in facts.values():
        assert same
        assert mark_count == 2  # samples draw, and the first pictures were compared
        assert 24 < decoded_count <= 60  # of 96, and of batches that are made twice


TRIAL = (
    BEGIN
    + r"""
engine.warmups = CacheWarmups()
cache = Cache(1 << 24)
undo = engine.add(cache.offer)
loader = DataLoader(Augmented(24), batch_size=4)
before = rng()
begun = iter(loader)
facts["unmoved"] = rng() == before or engine.warmups._done == []
used, use = [], memo.Memo._use
memo.Memo._use = lambda self, build, make: used.append(1) or use(self, build, make)
seen = [next(begun).shape[0] for _ in range(6)]
facts["used"] = len(used)
(rehearsal,) = engine.warmups._done
list(loader)
facts["shares"] = [rehearsal._kept_ratio, 0.0 < rehearsal._saved_ratio < 1.0]
saved_s = rehearsal._saved_ratio * rehearsal.held_s
facts["cost"] = abs(engine.warmups.cost_s()[0] - saved_s) < 1e-6 < rehearsal.held_s - saved_s
facts["held once"] = len(engine.warmups._done)
facts["notes"] = engine.notices.notes
undo()
"""
)


@pytest.mark.child
def test_a_trial_is_shown_pictures_that_are_decoded(loaders) -> None:
    facts = loaders(TRIAL)
    assert facts.pop("used") >= 22
    assert facts == {
        "unmoved": True, "shares": [1.0, True], "cost": True, "held once": 1, "notes": [],
    }  # fmt: skip
