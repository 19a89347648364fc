"""An accelerator's own time: marks placed after its work, and read once it has passed them.

The host's clock tells when a kernel was launched. A loop that waits for nothing launches the
kernels of many steps before the first of them has run, so that a short block of steps seems to
take as long as the launches. Two marks span what the device did in between, and what it
waited for.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from hasten.instrument import accelerators
from hasten.instrument.object_table import parameters_of
from hasten.modules import weights_of

if TYPE_CHECKING:
    from hasten.instrument.live import LiveTraining


class DeviceTimeline:
    """The stream that the script uses on one device.

    Attributes:
        is_capturing: tells whether a graph is being captured. Until it ends an event can neither
            be recorded nor queried, and nothing may wait for one.

    Raises:
        Exception: of any kind, if this device has no events that tell the time, or none right now.
    """

    def __init__(self, device: Any) -> None:
        import torch

        self._device = device
        module: Any = torch.get_device_module(device)
        self._stream = module.current_stream
        self.is_capturing = getattr(module, "is_current_stream_capturing", lambda: False)
        self._event: Any = torch.Event
        if self.is_capturing():
            raise RuntimeError("a graph is being captured")
        self._last = self._record()
        self._last.synchronize()
        self._last.elapsed_time(self._last)

    def _record(self) -> Any:
        event = self._event(device=self._device, enable_timing=True)
        event.record(self._stream(self._device))
        return event

    def mark(self) -> Any:
        """Return a mark after all work so far; the last one again while a graph is captured.

        And where the device is lost: that is told by the calls of the script, not by ours.
        """
        with suppress(RuntimeError):
            if not self.is_capturing():
                self._last = self._record()
        return self._last

    def has_passed(self, mark: Any) -> bool:
        """Return whether the device has reached a mark; False while a graph is captured."""
        return not self.is_capturing() and bool(mark.query())


def device_timeline(live: LiveTraining) -> DeviceTimeline | None:
    """Return the timeline of the accelerator that is trained on; None without one.

    The optimizers or, where there are none, the models tell the device.
    """
    if not accelerators.in_use():
        return None
    held = chain(
        (weight for optimizer in live.optimizers.known for weight in parameters_of(optimizer)),
        (weight for root in live.roots.known for weight in weights_of(root)),
    )
    device = next((w.device for w in held if w.device.type not in ("cpu", "meta")), None)
    if device is None:
        return None
    try:
        return DeviceTimeline(device)
    except Exception:  # a device without such events: the host's clock has to do
        return None
