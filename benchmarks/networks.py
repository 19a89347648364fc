"""What does it cost to share each batch with another machine, beside what one writes by hand?

    python benchmarks/networks.py

Two network namespaces stand for two machines of one core, joined by a link of a given rate (`ip`
and `tc`, by root). Each model (`planted/networked.py`) runs by plain python in one of them, by
hand in both, and under `hasten run --share-batches` in both, in turn. What is done stands in
`networks.json` and is not done again.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from math import log
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from figures import ratio, ratio_cell
from ranks import parser_of, write_page

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SCRIPT = Path(__file__).parent / "planted" / "networked.py"
# Of a model and a link, in Mbit/s; 0 is as fast as the kernel.
CASES = {
    "letters, no limit": ("letters", 0), "letters, 1 Gbit/s": ("letters", 1000),
    "letters, 200 Mbit/s": ("letters", 200), "convolutions, 1 Gbit/s": ("convolutions", 1000),
    "words, 1 Gbit/s": ("words", 1000),
}  # fmt: skip
STEPS = 30
HOSTS = ("hasten-a", "hasten-b")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
WAYS = {
    "plain": [str(SCRIPT)],
    "by hand": [str(SCRIPT)],
    "shared": ["-m", "hasten", "run", "--quiet", "--share-batches", str(SCRIPT)],
}
HEAD = """\
# Each batch over a network

{machine}, build {build}

Models of [networked.py](planted/networked.py) ran for {steps} steps in two network namespaces, each
with one CPU, in turn, {rounds} rounds: *plain* in one of them, *by hand* with
`DistributedDataParallel` in both, *shared* by `hasten run --share-batches`. Times are medians of
the rounds: seconds of the first twelve steps, in which is looked whether a batch can be shared, and
of a later step. *wire* is what the gradients alone take on the link: their bytes over its rate. The
two CPUs are threads of one core where the machine has no other: two processes then are not twice as
fast. By hand, batches are normalized by half of them, and each process has the loss of its half.

| model and link | plain | by hand | shared | wire | time of shared over by hand |
|---|---|---|---|---|---|
"""


def run(*words: str) -> None:
    """Run a command of the system, which has to succeed."""
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def hosts(rate_mbit: int) -> Iterator[None]:
    """Return a context in which there are two namespaces, joined by a link."""
    try:
        for host in HOSTS:
            run("ip", "netns", "add", host)
        near, far = (("name", "link0", "netns", host) for host in HOSTS)
        run("ip", "link", "add", *near, "type", "veth", "peer", *far)
        for host, address in zip(HOSTS, ADDRESSES, strict=True):
            run("ip", "-n", host, "address", "add", f"{address}/24", "dev", "link0")
            run("ip", "-n", host, "link", "set", "lo", "up")
            run("ip", "-n", host, "link", "set", "link0", "up")
            if rate_mbit:
                limit = ["rate", f"{rate_mbit}mbit", "burst", "256kb", "latency", "50ms"]
                run("tc", "-n", host, "qdisc", "add", "dev", "link0", "root", "tbf", *limit)
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "delete", host], check=False, capture_output=True)


def timed(way: str, model: str) -> dict[str, float]:
    """Run a training in one of the ways; return what the first process tells."""
    ranks = 1 if way == "plain" else len(HOSTS)
    own = [model, str(STEPS), *(["by-hand"] if way == "by hand" else [])]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(ranks):
                environment = {
                    **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "link0",
                    "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(port), "RANK": str(rank),
                    "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                }  # fmt: skip
                command = ["ip", "netns", "exec", HOSTS[rank], "taskset", "-c", str(rank)]
                command += [sys.executable, *WAYS[way], *own]
                processes.append(
                    subprocess.Popen(
                        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                        text=True, cwd=folder,
                    )
                )  # fmt: skip
            told = [process.communicate(timeout=600) for process in processes]
        finally:
            for process in processes:
                process.kill()  # one that has not ended waits for another that has failed
    for process, (_, errors) in zip(processes, told, strict=True):
        if process.returncode:
            raise SystemExit(f"{way}, {model}: {errors[-2000:]}")
    pairs = (
        line.split()
        for line in told[0][0].splitlines()
        if line.startswith(("first ", "loop ", "bytes "))
    )
    return {name: float(value) for name, value in pairs}


def measure(case: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Run one model over one link, in each way and in turn."""
    model, rate_mbit = CASES[case]
    seen: dict[str, list[float]] = {way: [] for way in WAYS}
    first: dict[str, list[float]] = {way: [] for way in WAYS}
    with hosts(rate_mbit):
        for number in range(asked.rounds):
            for way in list(WAYS)[:: 1 if number % 2 else -1]:
                told = timed(way, model)
                seen[way].append(told["loop"])
                first[way].append(told["first"])
                print(case, way, round(told["loop"], 4), flush=True)
    logs = [log(ours / own) for ours, own in zip(seen["shared"], seen["by hand"], strict=True)]
    wire_s = 8e-6 * told["bytes"] / rate_mbit if rate_mbit else None
    return {"steps_s": seen, "first_s": first, "wire_s": wire_s, "ratio": ratio(logs)}


def page(kept: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    told = HEAD.format(steps=STEPS, **{k: v for k, v in kept.items() if k != "rows"})
    for case, row in kept["rows"].items():
        cells = [
            f"{median(row['first_s'][way]):.1f} s, {1e3 * median(row['steps_s'][way]):.0f} ms"
            for way in WAYS
        ]
        wire = "" if row["wire_s"] is None else f"{1e3 * row['wire_s']:.0f} ms"
        told += f"| {case} | {' | '.join(cells)} | {wire} | {ratio_cell(row['ratio'])} |\n"
    return told + "\nReproduce with `make bench-networks`, as root.\n"


def main() -> None:
    """Measure what has not been measured yet, and write the page."""
    if os.geteuid():
        raise SystemExit("Network namespaces need root. Run it as root.")
    parser = parser_of(__doc__)
    parser.set_defaults(rounds=4)
    write_page("networks", tuple(CASES), parser.parse_args(), measure, page)


if __name__ == "__main__":
    sys.exit(main())
