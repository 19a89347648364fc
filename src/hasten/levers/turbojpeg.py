"""turbojpeg: use simplejpeg for the JPEG files that a dataset opens with Pillow.

Helps: JPEG files of up to a few hundred pixels, opened with Pillow in every epoch: saves a tenth
    of their decoding even where Pillow was built with libjpeg-turbo; larger ones hardly gain.
Hurts: nothing for long: a kind of file that takes as long as with Pillow is left to Pillow.
Maths: exact. Of each kind of file, the first eight in each process are decoded both ways and
    compared byte for byte, then every 256th; one difference ends it. Files that are not
    plain RGB or greyscale, are damaged, or are read at a reduced size are left to Pillow.
Source: https://gitlab.com/jfolz/simplejpeg
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from hasten.lever import Lever, undo_all, unless
from hasten.loader import engine_for
from hasten.loader.sources.decode import TurboWorkers, install_turbo
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training


def _missing() -> list[str]:
    libraries = {"PIL": "Pillow", "simplejpeg": "simplejpeg"}
    return [name for module, name in libraries.items() if not importlib.util.find_spec(module)]


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    if missing := _missing():
        return f"{' and '.join(missing)} cannot be imported (pip install {' '.join(missing)})"
    if context.traits.loader is None:
        return "the loop takes its batches from no DataLoader"
    opens = context.traits.loader.opens_images is not False
    return "" if opens else "no image file was opened with Pillow"


def promising(context: ScriptContext) -> bool:
    """Return whether images were seen to be opened; in workers that is unknown."""
    return context.traits.loader is not None and bool(context.traits.loader.opens_images)


def apply(training: Training, setting: bool) -> Callable[[], None]:
    """Put the decoder into this process, and into workers that start from now on."""
    if _missing():
        return lambda: None
    undos = [install_turbo(), engine_for(training).in_workers(TurboWorkers())]

    return undo_all(undos)


LEVER = Lever(
    name="turbojpeg",
    phases=frozenset({Phase.DATA}),
    effect=Effect.EXACT,
    scope=Scope.PROCESS,
    settings=unless(why_not, True),
    gain_ratio=1.3,
    why_not=why_not,
    snippet=lambda _: (
        "pixels = simplejpeg.decode_jpeg(Path(path).read_bytes())\n"
        "image = Image.fromarray(pixels)  # in place of Image.open(path)"
    ),
    promising=promising,
    settle_count=4,
    apply=apply,
    run_only="each kind of file is decoded both ways and compared while it runs",
    cures=frozenset({"slow-decode"}),
)
