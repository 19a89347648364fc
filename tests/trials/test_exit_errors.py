"""What is said of a script that did not end as it should."""

import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

from hasten.errors import (
    IsolationFailed,
    LeverStopped,
    NeverTrains,
    NoRoom,
    ScriptFailed,
    UsageError,
)
from hasten.instrument.live import LiveTraining
from hasten.trials.exit_errors import error_of, never_trained
from hasten.trials.process import Exit


def told(ended, tail="", refused=()):
    """Return the error of a script that ended after 3 steps."""
    return error_of(
        ended, when="after 3 training steps", tail=tail, refused=refused, folder=Path("/small")
    )


def test_a_refused_write_is_told_with_the_words_of_the_script() -> None:
    error = told(Exit(1, None), "OSError: read-only", ("/home/u/x.h5",))
    assert isinstance(error, IsolationFailed)
    assert "writes to /home/u/x.h5, which cannot be redirected" in error.problem
    assert error.output == "OSError: read-only"


@pytest.mark.parametrize("ended", [Exit(1, None), Exit(None, 7)], ids=["code", "signal"])
def test_a_trial_that_fills_the_disk_behind_it_is_told_where_its_writes_lie(ended) -> None:
    error = told(ended, "Traceback\nOSError: [Errno 28] No space left on device: 'model.pt'\n")
    assert isinstance(error, ScriptFailed)
    assert "what trials write is in /small" in error.problem
    assert "TMPDIR" in error.remedy
    assert "plain python" not in error.remedy


def test_full_shared_memory_is_no_matter_of_the_temporary_folder() -> None:
    tail = "RuntimeError: unable to write to file </torch_9_1_0>: No space left on device (28)"
    error = told(Exit(1, None), tail)
    assert "TMPDIR" not in error.remedy
    assert "The script failed (exit code 1) after 3 training steps." in error.problem


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", "ran out of"),
        ("torch.AcceleratorError: CUDA error: out of memory", "ran out of"),
        ("RuntimeError: HIP error: out of memory", "ran out of"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`", "ran out of"),
        ("RuntimeError: MPS backend out of memory (MPS allocated: 5.44 GB)", "ran out of"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "Another process has"),
    ],
)
def test_a_full_accelerator_is_told(tail, said) -> None:
    error = told(Exit(1, None), tail)
    assert isinstance(error, NoRoom)
    assert said in error.problem
    assert "the accelerator" in error.problem
    assert error.problem.endswith(" after 3 training steps.")
    assert error.output == tail


@pytest.mark.parametrize(
    "tail", ["MemoryError: no more", "RuntimeError: CUDA error: device-side assert triggered"]
)
def test_what_another_process_cannot_cure_is_a_failure_of_the_script(tail) -> None:
    error = told(Exit(1, None), f"Traceback (most recent call last):\n{tail}")
    assert not isinstance(error, NoRoom)
    assert "The script failed" in error.problem
    assert error.last_words.endswith(tail)


@pytest.mark.parametrize(
    ("error", "said"), [(RuntimeError("Conv1d has hooks"), "Conv1d has hooks"),
                        (ValueError("no such mode"), "ValueError: no such mode")],
)  # fmt: skip
def test_a_lever_that_gives_up_in_a_trial_says_why_in_its_last_line(error, said) -> None:
    with pytest.raises(LeverStopped) as stopped:
        LiveTraining.excuse(None, error)
    tail = "".join(traceback.format_exception(stopped.value))
    refused = told(Exit(1, None), tail)
    assert refused.last_words == f"It leaves this script as it is: {said}."
    assert refused.exit_code == UsageError.exit_code, "where it was set by hand, the script is well"


@pytest.mark.parametrize(
    "tail",
    [
        "stty: 'standard input': Inappropriate ioctl for device\nTraceback\nValueError: not enough",
        "stty: stdin isn't a terminal\nTraceback\nValueError: not enough values to unpack",
        "Traceback\nOSError: [Errno 25] Inappropriate ioctl for device\n",
    ],
    ids=["stty", "another stty", "get_terminal_size"],
)
def test_a_script_that_needs_a_terminal_is_told_where_there_is_none(tail) -> None:
    error = told(Exit(1, None), tail)
    assert error.problem == "The script asks for a terminal (exit code 1) after 3 training steps."
    assert "`python train.py </dev/null | cat`" in error.remedy
    assert "plain python" not in error.remedy
    assert error.output == tail


def test_a_folder_that_trials_cannot_overlay_has_a_remedy() -> None:
    error = told(Exit(1, None), "OSError: [Errno 30] Read-only file system: '/lustre/runs'\n")
    assert error.problem.startswith("The script writes where trials may not (exit code 1)")
    assert "--no-sandbox" in error.remedy


@pytest.mark.parametrize(
    "said",
    [
        "AssertionError: Torch not compiled with CUDA enabled",
        "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
        "RuntimeError: Cannot access accelerator device when none is available.",
        "RuntimeError: Attempting to deserialize object on a CUDA device but "
        "torch.cuda.is_available() is False.",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "RuntimeError: No CUDA GPUs are available",
    ],
)
def test_a_script_that_asks_for_a_gpu_is_told_how_to_train_without(said) -> None:
    error = told(Exit(1, None), f"Traceback\n{said}")
    assert "asks for a GPU" in error.problem
    assert "--device cpu" in error.remedy


STOPPED = "Traceback (most recent call last):\nhasten.errors.LeverStopped: Conv1d has hooks\n"


def test_a_script_that_ends_well_is_no_error_whatever_it_printed() -> None:
    assert told(Exit(0, None), "No space left on device") is None


@pytest.mark.parametrize(
    ("ended", "tail", "message"),
    [
        (Exit(3, None), "", "The script failed (exit code 3) after 3 training steps."),
        (Exit(None, 6), "", "The script was ended by SIGABRT after 3 training steps."),
        (Exit(None, 40), "", "The script was ended by signal 40 after 3 training steps."),
        (Exit(None, 9), "", "ended by SIGKILL (out of memory?) after 3 training steps."),
        (Exit(1, None), STOPPED, "It leaves this script as it is: Conv1d has hooks."),
        (Exit(1, None), "the script asks for input", "asks for input (exit code 1)"),
        (Exit(127, None, failure="no such program"), "", "cannot be started: no such program."),
    ],
)
def test_each_end_has_its_sentence(ended, tail, message) -> None:
    error = told(ended, tail)
    assert isinstance(error, ScriptFailed)
    assert message in error.problem


def test_a_training_in_which_a_rank_never_steps_is_told_how_many_did() -> None:
    running = SimpleNamespace(
        exit=None, raise_if_outside=lambda: None, errors=lambda: "", output=lambda: "rank 1 waits"
    )
    error = never_trained(
        running, reached=True, imported_torch=True, forked=False, ranks=(3, 4), place="",
        patience_s=60.0, folder=Path("/small"),
    )  # fmt: skip
    assert isinstance(error, NeverTrains)
    assert error.problem.startswith("3 of the 4 processes that train together made a training step")
    assert "--startup-timeout" in error.remedy
    assert error.output == "rank 1 waits"
