"""What the process uses."""

from __future__ import annotations

import os

from hasten.instrument import accelerators


def usage() -> dict[str, float]:
    """Return peak bytes, minor page faults and CPU seconds, loader workers included.

    CPU seconds are those of this process, of its live children (from /proc), and of those that
    ended (getrusage(2)).
    """
    import multiprocessing
    import resource

    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    alive_s = 0.0
    for child in multiprocessing.active_children():
        try:
            with open(f"/proc/{child.pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            alive_s += (int(fields[11]) + int(fields[12])) * tick_s
        except OSError:
            continue
    return {
        **accelerators.usage(),
        "peak_rss_bytes": own.ru_maxrss * 1024,
        "faults_count": own.ru_minflt,
        "cpu_s": own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + alive_s,
    }
