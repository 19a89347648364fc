"""Set what `tune` finds beside an exhaustive sweep of the same levers, and their costs.

    python benchmarks/sweep.py --budget 2m

For each script: `tune` among `LEVERS`; then a race of every combination of their settings against
the script as it is, on the same machine; then the plan of `tune` and the best of the sweep, each on
rounds of fresh launches. The share is the log speed-up of the first over that of the second.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

from figures import machine_line

from hasten import search, session
from hasten.lever import ScriptContext
from hasten.records import Diagnosis, Entry, Plan, Scope, Workload
from hasten.search.proposal import Kind
from hasten.session.candidates import find_candidates
from hasten.session.observe import observe
from hasten.session.races import Races
from hasten.units import parse_duration

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
SCRIPTS = ("image_pipeline.py", "char_transformer.py", "digits.py")
LEVERS = frozenset(
    {"intra_op_threads", "channels_last", "malloc_retention", "fused_optimizer", "batched_fetch",
     "loader_workers"}
)  # fmt: skip
HEAD = """\
# The search beside an exhaustive sweep

{machine}

`tune` among the levers below, and every combination of the same settings (the first {settings} of
each lever) raced on the same machine. Both winners were then confirmed on rounds of fresh
launches.
`share` is the log speed-up of `tune`'s plan over that of the sweep's. `cost` is the time of the
whole `tune`, proof and confirmation included, over that of the races of the sweep.

Reproduce with `make bench-sweep ARGUMENTS="--budget {budget} --race {race} --settings {settings}"`;
levers: {levers}.

| script | plan of `tune` | speed-up | best of the sweep | speed-up | share | plans | cost |
|---|---|---|---|---|---|---|---|
"""


class Log(session.Watcher):
    """Print progress, without the races."""

    def stage(self, name: str, detail: str = "") -> None:
        """Begin a stage of the work."""
        print(f"  {name}: {detail}", file=sys.stderr, flush=True)

    def known(self, text: str) -> None:
        """Keep a fact."""
        print(f"    {text}", file=sys.stderr, flush=True)


def sweep(
    workload: Workload, options: session.Options, found: Plan, *, race_s: float, settings_count: int
) -> Any:
    """Race every combination; return the best plan, the count, the seconds, and confirmations."""
    facts = session.doctor(workload.python)
    with session.setup.open_runner(workload, options, facts) as runner:
        baseline = observe(runner, Plan())
        traits = runner.facts(Plan()).traits
        context = ScriptContext(machine=facts, baseline=baseline, traits=traits)
        candidates, _ = find_candidates(
            context, options, begun=search.SearchStarted(), diagnosis=Diagnosis()
        )
        choices = [[0, *one.settings[:settings_count]] for one in candidates]
        plans = [
            Plan(tuple(sorted((one.lever, s) for one, s in zip(candidates, row, strict=True) if s)))
            for row in product(*choices)
        ]
        # Plans with the same launch levers are adjacent, so one child serves all of them.
        starts = {one.lever for one in candidates if one.scope is Scope.LAUNCH}
        plans.sort(key=lambda plan: str(plan.only(frozenset(starts))))
        races = Races(runner, options, Log())
        races.measure_noise()
        began_s, ratios = time.monotonic(), {}
        for plan in plans:
            if not plan.settings:
                continue
            asked = search.Proposal(
                kind=Kind.BUNDLE, baseline=Plan(), candidate=plan, lever=None, scope=Scope.PROCESS
            )
            seen = races.race(asked, race_s, most_s=race_s)
            ratios[plan] = seen.speedup.mid_ratio if seen.speedup else 0.0
        swept_s = time.monotonic() - began_s
        best = max(ratios, key=lambda plan: ratios[plan], default=Plan())
        confirmed = {}
        for plan in {best, found}:
            if plan.settings:
                until_s = time.monotonic() + 40.0
                confirmed[plan] = races.confirm(plan, until_s=until_s).speedup
        return best, len(ratios), swept_s, confirmed


def line(script: str, found: Plan, tuned_s: float, swept: Any) -> str:
    """Return one line of the table."""
    best, count, swept_s, confirmed = swept
    logs = [math.log(confirmed[p].mid_ratio) if p in confirmed else 0.0 for p in (found, best)]
    share = "" if logs[1] <= 0 else f"{logs[0] / logs[1]:.0%}"
    cells = [
        f"{confirmed[p].mid_ratio:.2f}x [{confirmed[p].low_ratio:.2f}, "
        f"{confirmed[p].high_ratio:.2f}]" if p in confirmed else "1.00x"
        for p in (found, best)
    ]  # fmt: skip
    cost = f"{tuned_s / swept_s:.0%}" if swept_s else ""
    return f"| {script} | {found} | {cells[0]} | {best} | {cells[1]} | {share} | {count} | {cost} |"


def main() -> None:
    """Run the benchmark and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--race", default="6s", help="seconds of each race of the sweep")
    parser.add_argument("--settings", type=int, default=2, help="of each lever, the first so many")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    page = HEAD.format(
        machine=machine_line(), budget=asked.budget, levers=", ".join(sorted(LEVERS)),
        race=asked.race, settings=asked.settings,
    )  # fmt: skip
    rows = {}
    for script in asked.only or SCRIPTS:
        workload = Workload(
            entry=Entry.SCRIPT, argv=(str(EXAMPLES / script),), cwd=str(EXAMPLES),
            python=sys.executable,
        )  # fmt: skip
        options = session.Options(budget_s=parse_duration(asked.budget), only=LEVERS)
        tuned = session.tune(workload, options, Log())
        race_s = parse_duration(asked.race)
        swept = sweep(workload, options, tuned.plan, race_s=race_s, settings_count=asked.settings)
        rows[script] = line(script, tuned.plan, tuned.cost.wall_s, swept)
        print(rows[script], flush=True)
        (asked.out / "sweep.md").write_text(page + "\n".join(rows.values()) + "\n")


if __name__ == "__main__":
    main()
