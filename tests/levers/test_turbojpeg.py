"""turbojpeg: in this process and in workers, for as long as it is applied."""

import importlib
import importlib.util

import pytest

from hasten.lever import ScriptContext
from hasten.levers.turbojpeg import LEVER
from hasten.testing import LAPTOP, fed

libraries = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("PIL", "simplejpeg"))),
    reason="the extra turbojpeg is not installed",
)


def seen(opens=None):
    return ScriptContext(machine=LAPTOP, traits=fed(opens_images=opens))


FED = seen()


@libraries
def test_is_tried_where_a_loader_feeds_the_loop() -> None:
    assert LEVER.settings(FED) == (True,)
    assert LEVER.settings(ScriptContext(machine=LAPTOP)) == ()
    assert (
        LEVER.why_not(ScriptContext(machine=LAPTOP))
        == "the loop takes its batches from no DataLoader"
    )


@libraries
def test_is_left_alone_where_no_image_was_opened_and_is_a_guess_where_nobody_knows() -> None:
    assert LEVER.settings(seen(False)) == ()
    assert LEVER.why_not(seen(False)) == "no image file was opened with Pillow"
    assert LEVER.promising(seen(True))
    assert not LEVER.promising(FED)


def test_says_what_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "PIL" or None)
    assert LEVER.settings(FED) == ()
    assert LEVER.why_not(FED).startswith("simplejpeg cannot be imported (pip install")


PROGRAM = r"""
import io, tempfile
from pathlib import Path
from PIL import Image, ImageFile
from hasten.loader.sources import decode

original = ImageFile.ImageFile.load
folder = tempfile.TemporaryDirectory()
paths = [Path(folder.name) / f"{n}.jpg" for n in range(24)]
for n, path in enumerate(paths):
    gradient = Image.linear_gradient("L").rotate(15 * n).resize((64, 48))
    Image.merge("RGB", [gradient, gradient.rotate(90), gradient]).save(path)


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return len(paths)

    def __getitem__(self, n):
        with open(paths[n], "rb") as file:
            image = Image.open(file).convert("RGB")
        flipped = image.transpose(0) if torch.rand(()) < 0.5 else image
        return torch.frombuffer(bytearray(flipped.tobytes()), dtype=torch.uint8)


def batches(workers):
    torch.manual_seed(5)
    loader = DataLoader(Pictures(), batch_size=4, shuffle=True, num_workers=workers)
    found = [[hashed(batch) for batch in loader] for _ in range(2)]
    return found, hashed(torch.get_rng_state())


watch = Watch(measuring=False)
watch.install()
applied = AppliedLevers(watch.live)
stock = {n: batches(n) for n in (0, 2)}
applied.switch({"turbojpeg": True})
facts["in place"] = ImageFile.ImageFile.load is not original
facts["same"] = {n: batches(n) == stock[n] for n in (0, 2)}
(turbo,) = decode.installed()
facts["used"] = sum(trial.count for trial in turbo._trials.values())
facts["off"] = turbo.off
applied.switch({})
facts["back"] = ImageFile.ImageFile.load is original
facts["still"] = batches(0) == stock[0]
"""


@libraries
@pytest.mark.child
def test_batches_and_draws_are_the_same_with_and_without_workers(training) -> None:
    found = training(PROGRAM)
    assert found["in place"]
    assert found["same"] == {"0": True, "2": True}
    assert found["used"] >= 8
    assert found["off"] == ""
    assert found["back"]
    assert found["still"]
