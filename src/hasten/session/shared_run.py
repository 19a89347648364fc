"""A script that knows nothing of ranks, run by all ranks of a job: one is the script, others help.

Each rank is started by Slurm or torchrun, and told its number by `RANK` and the like. The ranks
agree on what is random, then rank 0 becomes the script. The others run it, too, but what they
print and write is thrown away.
"""

from __future__ import annotations

import json
import secrets
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import hasten
from hasten.errors import UsageError
from hasten.lever import lookup
from hasten.rank import Team
from hasten.records import Entry, Traits
from hasten.trials.child_environment import SILENCED
from hasten.trials.own_port import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from hasten.records import Plan, Workload

_PATIENCE_S, _RETRY_S, _LINE_S = 300.0, 0.2, 10.0
_GRACE_S = 20  # less than what Slurm and torchrun leave between SIGTERM and SIGKILL
_LAST_PORT = 65535
_MOST_BYTES, _LAST_LINES_COUNT = 1 << 20, 40
_UNGUARDED = (
    "neither the overlay nor Landlock works here: what native libraries and other programs write "
    "in any rank reaches the real files."
)
_RANKS = frozenset({
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
    "MASTER_PORT", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS",
    "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
    "SLURM_TASK_PID", "SLURM_GTIDS", "SLURMD_NODENAME",
})  # fmt: skip
"""The variables by which a script learns that it is one of several, or which one."""
_FAMILIES = ("GROUP_", "ROLE_", "TORCHELASTIC_", "PET_", "SLURM_STEP_", "OMPI_COMM_WORLD_", "PMI")


def _own_place(env: Mapping[str, str]) -> Team:
    """Return which rank this process is.

    Raises:
        UsageError: nobody has told it, or what is told cannot be.
    """
    remedy = "Start it by `hasten submit --share-batches`, or by torchrun."
    names = ("RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR")
    told = {name: env.get(name, "").strip() for name in names}
    if missing := [name for name, value in told.items() if not value]:
        problem = f"--share-batches needs to know the ranks, and {missing[0]} is not set."
        raise UsageError(problem, remedy=remedy)
    for name in names[:3]:
        if not told[name].isdecimal():
            raise UsageError(f"{name} is {told[name]!r}, which is no count.", remedy=remedy)
    rank, count, port = (int(told[name]) for name in names[:3])
    # torchrun listens at its own port.
    port += env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not (rank < count and 0 < port <= _LAST_PORT):
        problem = f"There is no rank {rank} of {count}, or no port {port}."
        raise UsageError(problem, remedy="Set RANK, WORLD_SIZE and MASTER_PORT alike on all ranks.")
    return Team(rank, count, told["MASTER_ADDR"], port)


def of_team(env: Mapping[str, str], team: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a rank: a script finds itself alone, and sets in one order."""
    own = {
        name: value
        for name, value in env.items()
        if name not in _RANKS and not name.startswith(_FAMILIES)
    }
    return {"PYTHONHASHSEED": str(team["seed"] % (1 << 32)), **own}


def fitting(plan: Plan) -> tuple[Plan, list[str]]:
    """Return a plan without the levers that cannot be shared with, and those that it had."""
    left_out = []
    for lever, setting in lookup(plan):
        given = lever.provides(setting, Traits())
        if given.helper_count or given.compiler.is_used:  # processes, or code, of its own
            left_out.append(f"{lever.name}={setting}")
            plan = plan.without(lever.name)
    return plan, left_out


def check_entry(workload: Workload) -> None:
    """Check that the process that starts is the one that trains.

    Raises:
        UsageError: it may start others.
    """
    if workload.entry not in (Entry.SCRIPT, Entry.MODULE):
        raise UsageError(
            f"--share-batches runs a script or a module, not {workload.argv[0]}.",
            remedy="Name the script that trains.",
        )


def join(workload: Workload, plan: Plan, env: Mapping[str, str]) -> dict[str, Any] | None:
    """Meet the other ranks; return what `Order.team` is, or None where there are none.

    Raises:
        UsageError: nobody has told the ranks, they do not come, or they would run something else.
    """
    check_entry(workload)
    place = _own_place(env)
    if place.rank_count == 1:
        return None
    told = {
        "release of hasten": hasten.__version__,
        "number of ranks": place.rank_count,
        "job": env.get("SLURM_JOB_ID", env.get("TORCHELASTIC_RUN_ID", "")),
        "folder": str(workload.cwd),
        "command": list(workload.argv),
        "plan": [list(pair) for pair in plan.settings],
        "rank": place.rank,
    }
    agreed = _ask(place, told) if place.rank else _receive(place, told)
    return {"rank": place.rank, "count": place.rank_count, "address": place.address, **agreed}


def _receive(place: Team, told: Mapping[str, Any]) -> dict[str, Any]:
    until_s = time.monotonic() + _PATIENCE_S
    others: dict[int, socket.socket] = {}
    answer: dict[str, Any] = {"seed": secrets.randbits(128), "port": free_port()}
    with ExitStack() as open_ones:
        server = open_ones.enter_context(_server(place))
        while len(others) < place.rank_count - 1:
            server.settimeout(max(0.01, until_s - time.monotonic()))
            try:
                connection = open_ones.enter_context(server.accept()[0])
            except TimeoutError:
                missing = sorted(set(range(1, place.rank_count)) - set(others))
                raise UsageError(
                    f"Rank {missing[0]} of {place.rank_count} has not come to port {place.port} in "
                    f"{_PATIENCE_S:.0f} s.",
                    remedy="Check that all ranks have started, and reach this machine.",
                ) from None
            said = _line(connection, _LINE_S) or {}  # a stranger says nothing that is understood
            if type(rank := said.get("rank")) is int and rank > 0:
                others[rank] = connection
                if names := [one for one in told if one != "rank" and said.get(one) != told[one]]:
                    answer = {"refused": f"Rank {rank} has another {names[0]} than rank 0."}
                    break
        for connection in others.values():
            connection.sendall(json.dumps(answer).encode() + b"\n")
    return _accepted(answer)


def _server(place: Team) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", place.port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise UsageError(
            f"Rank 0 cannot listen at port {place.port}: {error.strerror}.",
            remedy="Set another MASTER_PORT on all ranks.",
        ) from None


def _ask(place: Team, told: Mapping[str, Any]) -> dict[str, Any]:
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        with (
            suppress(OSError),
            socket.create_connection((place.address, place.port), _LINE_S) as to,
        ):
            to.sendall(json.dumps(told).encode() + b"\n")
            if answer := _line(to, until_s - time.monotonic()):
                return _accepted(answer)
        time.sleep(_RETRY_S)
    raise UsageError(
        f"Rank {place.rank} has found no rank 0 at {place.address}, port {place.port}.",
        remedy="Check that all ranks have started, and that MASTER_ADDR is the machine of rank 0.",
    )


def _line(connection: socket.socket, patience_s: float) -> dict[str, Any] | None:
    """Return what the other end says; None where that is nothing of ours."""
    connection.settimeout(max(0.01, patience_s))
    with suppress(OSError, ValueError, RecursionError), connection.makefile("rb") as file:
        found = json.loads(file.readline(_MOST_BYTES))
        if isinstance(found, dict):
            return found
    return None


def _accepted(answer: dict[str, Any]) -> dict[str, Any]:
    if "refused" in answer:
        raise UsageError(answer["refused"], remedy="Start the same command on all ranks.")
    return answer


def _wait_for_the_first(number: int, _: Any) -> None:
    """Leave it to the first rank what a signal to all means: its script may save before it ends."""

    def end(*_: Any) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGALRM, end)
    signal.alarm(_GRACE_S)


def run_aside(workload: Workload, env: Mapping[str, str], rank: int) -> int:
    """Run the script of a rank that is not the first; return its exit code.

    Where the kernel does not keep its writes from the user's files, those of Python are redirected.

    Raises:
        IsolationFailed: no process can be started.
    """
    from hasten.trials.isolation.scratch import make_scratch
    from hasten.trials.process import Isolation, Process, best_isolation

    for number in (signal.SIGUSR1, signal.SIGUSR2):  # of a job: what the script makes of them
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _wait_for_the_first)
    isolation = best_isolation(workload.cwd)
    if isolation is Isolation.PYTHON and rank == 1:
        sys.stderr.write(f"hasten: {_UNGUARDED}\n")
    process = Process.start(
        workload.command, env={**env, **SILENCED}, cwd=workload.cwd, scratch=make_scratch(),
        isolation=isolation,
    )  # fmt: skip
    try:
        ended = process.wait(None)
    finally:
        process.kill()
    code = (
        1 if ended is None else ended.code if ended.code is not None else 128 + (ended.signal or 0)
    )
    if code:
        lines = process.errors().splitlines()[-_LAST_LINES_COUNT:]
        sys.stderr.writelines(f"rank {rank}: {line}\n" for line in lines)
    return code
