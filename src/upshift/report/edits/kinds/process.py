"""Settings of the whole process: one line after the import of torch, or a call changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from upshift.report.edits.arguments import expression
from upshift.report.edits.job import change
from upshift.report.edits.statements import ensure_import

if TYPE_CHECKING:
    from upshift.report.edits.job import Job

_MMAP, _TRIM = "1 << 30", "(1 << 31) - 1"


def intra_op_threads(job: Job) -> None:
    """Set the threads; calls of the script's own are changed, as the lever answers them all."""
    _threads(job, "set_num_threads")


def inter_op_threads(job: Job) -> None:
    """Set the tasks; torch takes the number once."""
    _threads(job, "set_num_interop_threads")


def _threads(job: Job, name: str) -> None:
    survey = job.survey()
    own = [site for site in survey.called(f"torch.{name}") if len(site.call.args) == 1]
    odd = [site for site in own if site.call.args[0].star]
    if odd:
        job.paste("the number comes from elsewhere", at=survey.places(odd))
        return
    if own:
        change(own, lambda site: lambda node: _with_only(node, str(job.setting)))
        return
    job.set_up(f"{job.torch_name()}.{name}({job.setting})")


def _with_only(node: Any, value: str) -> Any:
    return node.with_changes(args=[node.args[0].with_changes(value=expression(value))])


def flush_denormals(job: Job) -> None:
    """Flush from the start of the script on: threads that start later take it over."""
    job.set_up(f"{job.torch_name()}.set_flush_denormal(True)")


def fp32_precision(job: Job) -> None:
    """Set the precision, unless the script sets one itself, which the lever leaves alone."""
    survey = job.survey()
    torch = job.torch_name()
    lines = [line.replace("torch.", f"{torch}.", 1) for line in job.lines.splitlines()]
    own = survey.called("torch.set_float32_matmul_precision")
    if own and any(str(s.call.args[0].value.value) not in lines[0] for s in own if s.call.args):  # type: ignore[attr-defined]
        job.keep_running(f"the script sets a precision itself at {survey.places(own)}")
        return
    job.set_up(*lines)


def malloc_retention(job: Job) -> None:
    """Raise both thresholds of glibc before torch allocates much."""
    source = job.project.entry
    job.set_up(
        f"ctypes.CDLL(None).mallopt(-3, {_MMAP})  # M_MMAP_THRESHOLD: freed memory stays here",
        f"ctypes.CDLL(None).mallopt(-1, {_TRIM})  # M_TRIM_THRESHOLD",
    )
    ensure_import(source, "ctypes")
