"""debug_modes_off: train without anomaly detection, and without a profiler that is always on.

Helps: scripts in which `torch.autograd.set_detect_anomaly(True)`, `detect_anomaly()`, a profiler
    without a schedule or `emit_nvtx()` was left on after the search for a bug.
Hurts: whoever still searches. An error in a backward pass no longer shows the line of the forward
    pass, a NaN in a gradient raises no error (a script that catches it to skip the step goes on
    with the NaN), and the profiler's tables and traces stay next to empty.
Maths: exact. The same operations run, unchecked and unrecorded. `use_deterministic_algorithms` is
    no debug mode and stays.
Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#disable-debugging-apis
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from upshift.lever import STEP, Lever, undo_all
from upshift.records import Effect, Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from upshift.lever import Scene, Training

# A profiler with a schedule watches some steps, as its user wants; one left on watches nearly all.
_LEFT_ON_RATIO = 0.9


def _found(scene: Scene) -> list[str]:
    """Return the modes that are on, in words."""
    anomaly = float(scene.traits.get("debug.anomaly_ratio", 0.0))
    profiler = float(scene.traits.get("debug.profiler_ratio", 0.0))
    found = [f"anomaly detection in {anomaly:.0%} of the backward passes"] if anomaly else []
    if profiler >= _LEFT_ON_RATIO:
        found.append(f"a profiler in {profiler:.0%} of them")
    return found


def settings(scene: Scene) -> tuple[bool, ...]:
    """Return the one setting there is, where a mode is on."""
    return (True,) if _found(scene) else ()


def why_not(scene: Scene) -> str:
    """Say why there is nothing to try."""
    if "debug.anomaly_ratio" not in scene.traits:
        return "no backward pass was seen"
    profiler = float(scene.traits.get("debug.profiler_ratio", 0.0))
    return (
        f"anomaly detection is on in none of the backward passes, a profiler in {profiler:.0%} "
        "of them"
    )


def remark(scene: Scene) -> str:
    """Say which modes are on and what is lost without them."""
    found = _found(scene)
    if not found:
        return ""
    return (
        f"The script debugs while it trains: {' and '.join(found)}. Under debug_modes_off a NaN in "
        "a gradient raises no error, no traceback shows the forward pass, and the profiler's "
        "tables stay next to empty (--skip debug_modes_off keeps them)"
    )


def _stop_anomaly_detection(training: Training) -> Callable[[], None]:
    """Keep autograd's detection off; the script is told what it has wished for."""
    import torch

    set_mode, is_on = torch.set_anomaly_enabled, torch.is_anomaly_enabled
    checks_nan = torch.is_anomaly_check_nan_enabled
    wish = [is_on(), checks_nan()]

    def note(original: Any, enabled: bool, check_nan: bool = True) -> None:
        wish[:] = [enabled, check_nan]

    def enforce() -> None:  # another thread may have set it before the loop began
        if is_on():
            wish[:] = [True, checks_nan()]
        set_mode(False)

    undos = [
        training.on_function(torch, "set_anomaly_enabled", note),
        training.on_function(torch, "is_anomaly_enabled", lambda original: wish[0]),
        training.on_function(torch, "is_anomaly_check_nan_enabled", lambda original: wish[1]),
        training.on_training(enforce),
    ]

    def undo() -> None:
        for put_back in undos:
            put_back()
        set_mode(*wish)

    return undo


class _Silence:
    """Keep the profiler of torch from recording; it starts and stops as the script wants.

    Profilers that record nothing themselves (`emit_nvtx`, `emit_itt`) are not started.
    """

    def __init__(self) -> None:
        from torch.autograd import profiler

        self.module: Any = profiler
        self._held: list[Any] = []
        self._quiet = False

    def hush(self, *, quiet: bool) -> None:
        """Stop recording, or go on with it, where a profiler is on."""
        import torch

        autograd: Any = torch.autograd
        if quiet != self._quiet and autograd._profiler_enabled():
            activities = {torch.profiler.ProfilerActivity.CPU}
            self.module._toggle_collection_dynamic(not quiet, activities)
            self._quiet = quiet

    def start(self, original: Any, config: Any, activities: Any, *rest: Any, **more: Any) -> Any:
        """Stand in for the start of a profiler."""
        if not activities:
            self._held.append(lambda: original(config, activities, *rest, **more))
            return None
        started = original(config, activities, *rest, **more)
        self.hush(quiet=True)
        return started

    def stop(self, original: Any) -> Any:
        """Stand in for its end."""
        if self._held:
            self._held.pop()
            return None
        self._quiet = False
        return original()

    def end(self) -> None:
        """Let what the script has started record from now on."""
        self.hush(quiet=False)
        for start in self._held:
            start()
        self._held.clear()


def _stop_profilers(training: Training) -> Callable[[], None]:
    silence = _Silence()
    if not hasattr(silence.module, "_toggle_collection_dynamic"):  # before torch 2.5
        return lambda: None
    undos = [
        training.on_function(silence.module, "_enable_profiler", silence.start),
        training.on_function(silence.module, "_disable_profiler", silence.stop),
    ]
    silence.hush(quiet=True)

    def undo() -> None:
        for put_back in undos:
            put_back()
        silence.end()

    return undo


def pull(training: Training, setting: bool) -> Callable[[], None]:
    """Switch the modes off, also where the script switches them on later."""
    undos = [_stop_anomaly_detection(training), _stop_profilers(training)]

    return undo_all(undos)


LEVER = Lever(
    name="debug_modes_off",
    phases=STEP,
    effect=Effect.EXACT,
    switch=Switch.STEP,
    settings=settings,
    gain_ratio=20.0,  # forward passes of many small layers were seen at 14
    why_not=why_not,
    remark=remark,
    lines=lambda _: "torch.autograd.set_detect_anomaly(False)  # and no profiler around the loop",
    settle_count=1,
    pull=pull,
)
