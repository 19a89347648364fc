"""sample_cache: as much memory as the machine can spare, and the same bits."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hasten.errors import PlanError
from hasten.lever import ScriptContext
from hasten.levers import sample_cache
from hasten.levers.sample_cache import LEVER, parse
from hasten.records import Memory, Phase
from hasten.testing import LAPTOP, SERVER, fed, sample_profile


def context(machine=LAPTOP, data_ratio=0.5, **memory):
    profile = sample_profile({Phase.DATA: data_ratio, Phase.FORWARD: 1 - data_ratio})
    if memory:
        machine = replace(machine, memory=Memory(**memory))
    return ScriptContext(machine=machine, baseline=profile, traits=fed())


def test_takes_at_most_half_of_what_is_free() -> None:
    assert LEVER.settings(context(LAPTOP)) == ("4GiB",)


def test_takes_at_most_a_quarter_of_a_groups_limit() -> None:
    assert LEVER.settings(context(SERVER)) == ("16GiB",)
    tight = context(available_bytes=3 * 2**30, limit_bytes=3 * 2**30)
    assert LEVER.settings(tight) == ("512MiB",)


@pytest.mark.parametrize(
    ("left", "most"), [(2**30, 2**29), (None, 2**33), (0, 2**20), (2**40, 2**33)]
)
def test_a_plan_from_a_larger_machine_takes_at_most_half_of_what_is_left(
    left, most, monkeypatch
) -> None:
    monkeypatch.setattr(sample_cache, "available_bytes", lambda root: left)
    monkeypatch.setattr(sample_cache, "engine_for", lambda _: SimpleNamespace(add=lambda one: one))
    assert LEVER.apply(None, "8GiB").__self__._budget_bytes == most
    assert LEVER.apply(None, "8GiB:/folder").__self__._budget_bytes == 2**33


def test_says_why_there_is_nothing_to_try() -> None:
    assert (
        LEVER.why_not(ScriptContext(machine=LAPTOP))
        == "the loop takes its batches from no DataLoader"
    )
    iterable = ScriptContext(machine=LAPTOP, traits=fed(is_map_style=False))
    assert LEVER.settings(iterable) == ()
    assert "iterable" in LEVER.why_not(iterable)
    small = context(available_bytes=100 * 2**20)
    assert LEVER.settings(small) == ()
    assert "too little" in LEVER.why_not(small)
    unknown = context(total_bytes=2**30)
    assert LEVER.settings(unknown) == ()
    assert "unknown" in LEVER.why_not(unknown)


def test_items_that_draw_are_kept_only_up_to_a_draw_that_is_known() -> None:
    drawing = replace(context(), traits=fed(draws=True))
    assert LEVER.settings(drawing) == ()
    assert "draw random numbers" in LEVER.why_not(drawing)
    assert LEVER.settings(replace(drawing, traits=fed(draws=True, is_folder=True)))
    assert LEVER.settings(replace(drawing, traits=fed(draws=True, opens_pictures=True)))


def test_is_not_tried_where_the_code_of_the_items_forbids_keeping_any() -> None:
    timed = replace(context(), traits=fed(unkept="its code names time"))
    assert LEVER.settings(timed) == ()
    assert LEVER.why_not(timed) == "its code names time"
    both = fed(unkept="its code names time", is_pure=False, unproven="it changes; --assume it")
    assert "--assume" not in LEVER.why_not(replace(context(), traits=both))


def test_belongs_into_the_first_bundle_only_where_the_loop_waits_for_data() -> None:
    assert LEVER.promising(context(data_ratio=0.5))
    assert not LEVER.promising(context(data_ratio=0.02))
    assert not LEVER.promising(ScriptContext(machine=LAPTOP))


def test_a_folder_in_the_setting_asks_for_disk() -> None:
    assert parse("8GiB:/scratch") == (8 * 2**30, "/scratch")


@pytest.mark.parametrize("setting", ["", "8", "8GB", "-1GiB", "8GiB:"])
def test_a_setting_of_another_form_is_refused_with_a_remedy(setting) -> None:
    with pytest.raises(PlanError, match="size of the sample cache"):
        parse(setting)


def test_the_card_says_that_the_first_pass_gains_nothing() -> None:
    assert "from the second pass on" in LEVER.card


PROGRAM = r"""
class Costly(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        x = torch.full((3, 8, 8), float(i))
        for _ in range(200):
            x = x.sin() + 1
        return x, i % 3


def run(setting, workers):
    run = Run()
    run.loader = DataLoader(Costly(), batch_size=4, shuffle=True, num_workers=workers)
    if setting:
        run.applied.switch({"sample_cache": setting})
    return run.train(count=18).close().bits()


for workers in (0, 2):
    facts[str(workers)] = run(None, workers) == run("1MiB", workers)

try:
    import numpy, tempfile, time
    from PIL import Image
except ImportError:
    Image = None


class Pictures(Costly):
    def __getitem__(self, i):
        image = Image.open(f"{folder.name}/{i}.jpg").convert("RGB").resize((9, 9))
        image = image.crop((torch.randint(2, ()).item(), 0, 8, 8)).resize((8, 8))
        return torch.from_numpy(numpy.array(image)).permute(2, 0, 1) / 255, i % 3


if Image is not None:
    Costly, folder = Pictures, tempfile.TemporaryDirectory()
    for i in range(24):
        pixels = numpy.random.default_rng(i).integers(0, 256, (200, 300, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).save(f"{folder.name}/{i}.jpg")
    time.sleep(0.1)
    for workers in (0, 2):
        facts[f"pictures {workers}"] = run(None, workers) == run("64MiB", workers)
"""


@pytest.mark.child
def test_trains_to_the_same_bits_with_and_without_workers(training) -> None:
    assert set(training(PROGRAM).values()) == {True}
