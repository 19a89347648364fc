"""device_copies: move CPU tensors to an accelerator without waiting for the kernels in flight.

Helps: loops that call `x.to(device)` each step. A plain copy waits for all kernels before it; on
    its own stream it waits for itself alone, so the next steps, at most four, are prepared while
    the device works. "arrival" starts the copy as soon as the batch is there, before the script
    asks, and the host does not wait for it. A batch that workers have sent while the kernels of
    the step before it run is copied beside them, also where the loop then reads the loss.
Hurts: memory on the device, where copies have a pool of their own; with "arrival" page-locked
    memory, and each batch is read twice more: batches of 19 MB from workers made steps of 11 ms
    take 16 beside an NVIDIA H200. Of little use to loops that read a loss each step and have no
    workers. Where five copies do not fit into what is free on the device, this lever stops.
Maths: exact. A copy that was started ahead is returned only for the very tensor of the batch, once,
    if torch counted no write and all of its bytes are still those that were copied. The script's
    stream waits for it; other copies are finished when they are returned. No batch becomes
    page-locked that the script did not lock. Casts, other layouts, gradients, subclasses, modes,
    captures of graphs, and all moves of a script that has other streams or names them get torch's
    own call. A script that reads what it copied to the CPU with `non_blocking=True`
    and never waits, or times kernels this way, must wait itself: `.to` used to. Where such
    a `.to("cpu", non_blocking=True)` is seen, or code has such a `copy_`, it stops.
Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
"""

from __future__ import annotations

from dis import get_instructions
from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.lever import Lever, one_of, undo_all, unless
from hasten.loader import engine_for
from hasten.loader.device.device import find_device, is_built
from hasten.loader.device.staging import Staging
from hasten.records import Effect, Phase, Scope
from hasten.root_calls.own_code import STREAMS, find_word, mention

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from hasten.lever import ScriptContext, Training


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    torch_facts = context.machine.torch
    if torch_facts is None or not torch_facts.accelerators:
        return "this machine has no accelerator that torch can use"
    if context.baseline is not None and not context.baseline.share_ratio(Phase.TRANSFER):
        return "the loop moves no tensor from the CPU to an accelerator"
    return ""


def _reads_back(code: CodeType) -> str:
    """Return `copy_` where it may copy to the CPU without waiting: no seam sees these calls."""
    if "copy_" not in code.co_names:
        return ""
    is_asked = False
    for one in get_instructions(code):
        is_asked = is_asked or one.argval == "copy_"
        # Up to Python 3.12 a call's keywords are an instruction of their own, without `argval`.
        words = code.co_consts[one.arg or 0] if one.opname == "KW_NAMES" else one.argval
        if is_asked and type(words) is tuple and "non_blocking" in words:
            return "copy_(..., non_blocking=True)"
        if one.opname.startswith(("POP_TOP", "STORE", "RETURN")):
            is_asked = False  # the statement ends
    return ""


def _look_for_copies_back(training: Training, staging: Staging) -> None:
    """Stop where the script may rely on a wait that `.to` used to make."""
    if where := find_word(_reads_back):
        staging.retire()
        training.excuse(RuntimeError(f"copies to the CPU may be read too early: {where}"))


def attach(training: Training, engine: Any, staging: Staging) -> Callable[[], None]:
    """Let `staging` see the batches, answer the moves, and know when training begins."""

    def begin(optimizer: Any) -> None:
        _look_for_copies_back(training, staging)
        staging.begin()

    def look_ahead() -> None:
        for loader, batch in engine.next_batches.coming(staging.awaits):
            staging.coming(loader, batch)

    def enter(phase: Phase) -> Callable[[], None] | None:
        # The kernels of a step, or most of them, are queued: now the host has time.
        evaluates = phase is Phase.FORWARD and not is_grad_enabled()
        return look_ahead if phase is Phase.BACKWARD or evaluates else None

    undos = [
        training.on_optimizer(begin),
        training.on_transfer(staging.moved),
        engine.on_batch(staging.arrived),
    ]
    if staging.is_ahead:
        from torch import is_grad_enabled

        undos.append(training.on_phase(enter))

    return undo_all([*reversed(undos), staging.retire])


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Answer `Tensor.to` and `Tensor.cuda`, if this torch was built for an accelerator.

    Whether there is a device is not asked before the script moves something to it: the answer
    would fix which devices can be seen, and a script may still set CUDA_VISIBLE_DEVICES.
    """
    if not is_built():
        return lambda: None
    known: dict[Any, Any] = {}
    find = partial(find_device, known=known, mentioned=partial(mention, STREAMS))
    staging = Staging(find, ahead=setting == "arrival")

    def close() -> None:
        for device in reversed(known.values()):
            device.close()

    return undo_all([attach(training, engine_for(training), staging), close])


def snippet(setting: str) -> str:
    """Return the nearest equivalent by hand."""
    return (
        "loader = DataLoader(..., pin_memory=True)\n"
        "x = x.to(device, non_blocking=True)  # do not write to x until the copy is done"
    )


LEVER = Lever(
    name="device_copies",
    phases=frozenset({Phase.TRANSFER}),
    effect=Effect.EXACT,
    scope=Scope.PROCESS,  # what one step no longer waits for, the next one of the baseline would
    kind=str,
    validate=one_of("call", "arrival"),
    settings=unless(why_not, "arrival", "call"),
    gain_ratio=50.0,
    why_not=why_not,
    snippet=snippet,
    settle_count=4,
    apply=apply,
    run_only="a copy that starts early is used only where nobody wrote to it since",
    cures=frozenset({"blocking-copies", "pinned-memory-missing"}),
)
