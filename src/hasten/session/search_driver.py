"""The search of one tuning: which races are worth their time, and what came of them."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from hasten import search
from hasten.errors import OutOfTime
from hasten.records import Reason
from hasten.search.costs import too_short
from hasten.units import counted, duration, whole_minutes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hasten.records import Comparison, LeverReport, Plan, Tuning
    from hasten.search.costs import Costs
    from hasten.session.options import Options, Watcher
    from hasten.session.races import Races
    from hasten.trials.deadline import Deadline

# In races: a child for a plan that no living one runs. One that is started again because the script
# ended, or because memory holds only one, costs only time.
MOST_LAUNCHES_COUNT = 25
_LEAST_RACE_S = 2.0
_RACES_PER_CANDIDATE = 3
_CONFIRM_SHARE = 0.25
# Where nobody says how long the training runs: a search should cost a twentieth of it at most,
# and what runs for less than an hour is seldom tuned.
_TRAINING_PER_BUDGET, _TRAINING_LEAST_S = 20.0, 3600.0


class SearchDriver:
    """The search of one tuning, from its journal.

    Args:
        doubtful: gives the levers of a plan that stay only where it is confirmed.

    Attributes:
        end_s: when an answer is due, in seconds after the start.
        short: the budget has no room for proof and confirmation; the user has been told.
        hurried: it has room for them only if the script is barely raced against itself first.
        passed_over: one sentence on why levers were left untried; empty where none was.
    """

    def __init__(
        self,
        candidates: Sequence[search.Candidate],
        journal: search.Journal,
        *,
        races: Races,
        options: Options,
        view: Watcher,
        costs: Callable[[Plan], Costs],
        spent_s: Callable[[], float],
        note: Callable[[str], None],
        deadline: Deadline,
        doubtful: Callable[[Plan], Mapping[str, Plan]],
    ) -> None:
        self.short = self.hurried = False
        self.passed_over = ""
        self.end_s = options.budget_s
        self._note = note
        self._candidates = candidates
        self._journal = journal
        self._races = races
        self._options = options
        self._view = view
        self._costs = costs
        self._spent_s = spent_s
        self._deadline = deadline
        self._doubtful = doubtful
        self._confirm_s = 0.0
        self._said_lost = self._has_left = False
        self._launch_count = 2  # those of the script against itself
        self._is_first_free = True  # the first race is run whatever it takes

    @property
    def best(self) -> Plan:
        """The best plan so far."""
        return search.incumbent(self._candidates, self._journal.history, criteria=self._criteria)

    @property
    def guesses(self) -> frozenset[str]:
        """The levers of the best plan of which no race has shown a gain."""
        return search.guesses(self._candidates, self._journal.history, criteria=self._criteria)

    @property
    def history(self) -> tuple[Comparison, ...]:
        """Every race so far."""
        return self._journal.history

    def rows(self, *, stopped: bool = False) -> tuple[LeverReport, ...]:
        """Return what was found about each lever, also where somebody `stopped` the search."""
        limits = None if stopped else self._limits
        return search.rows(
            self._candidates, self._journal.history, criteria=self._criteria, limits=limits
        )

    @property
    def is_over(self) -> bool:
        """Whether no race is worth its time."""
        return self._propose() is None

    def run(self) -> None:
        """Race until nothing is worth it, or the time is needed for what comes after."""
        self.passed_over = ""
        if self._journal.resumed_count:
            known = counted(self._journal.resumed_count, "race")
            self._view.known(f"{known} known from an earlier run")
        races = _RACES_PER_CANDIDATE * len(self._candidates)
        best = self.best
        if best.settings:
            self._view.leads(best)
        spare_s = max(0.0, self._spare_s(best))
        self._confirm_s = min(self._races.confirm_s, _CONFIRM_SHARE * spare_s)
        self._tell_what_is_lost()
        while proposal := self._propose() or self._propose_late():
            if self._races.noise is None:  # nothing was worth a race, until time was all but up
                self._races.measure_noise(quickly=True)
            left_s = self._left_s(proposal, best) - self._races.prepare_s(proposal)
            self._view.stage("search", f"{proposal.kind}: {proposal.candidate}")
            share_s = max(_LEAST_RACE_S, 2 * left_s / max(2, races - len(self.history)))
            self._launch_count += self._races.price(proposal).launch_count
            can_confirm = bool(best.settings) and not self.short
            try:
                with self._deadline.sooner(self._spare_s(best) if can_confirm else inf):
                    self._journal.append(self._races.race(proposal, share_s, most_s=left_s))
            except OutOfTime:
                self._deadline.check()
                self._races.give_up(proposal)  # nor is there time to begin it again
            self._tell_what_is_lost()
            best, old = self.best, best
            if best != old:
                self._view.leads(best)
        self.passed_over = self._why_passed_over()

    def leave(self, levers: frozenset[str]) -> Plan:
        """Search without some levers from now on; return the best plan of the others so far."""
        self._candidates = [one for one in self._candidates if one.lever not in levers]
        self._has_left = self._has_left or bool(levers)
        return self.best

    def has_other(self, answer: Tuning) -> bool:
        """Return whether the best plan is another than that of an answer."""
        best = self.best
        return bool(best.settings) and self._options.with_applied(best) != answer.plan

    def goes_on(self, answer: Tuning) -> bool:
        """Return whether there is time for more than a first answer, and more may be expected.

        What is found later has to pay for its race, and for one more proof and confirmation. What
        the first answer has lost is not tried again.
        """
        self.leave(self.best.levers - answer.plan.levers)
        refuted = answer.speedup is None and self._has_left
        if any(row.reason is Reason.UNPROVED for row in answer.levers):
            return False  # nor can anything else be proved
        if self.end_s >= self._options.budget_s and not refuted:
            return False
        self.end_s = self._options.budget_s
        if self.has_other(answer) and self._spare_s(self.best) > 0.0:
            return True  # what the first answer has lost had displaced another lever
        limits = replace(self._limits, for_speed=True)
        answered = replace(limits, answer_s=lambda asked: self._costs(asked.candidate).answer_s)
        if self._propose(answered):
            return True
        self.passed_over = self._not_worth() if self._propose(limits) else self._why_passed_over()
        return False

    def check_the_budget(self) -> None:
        """Tell the user at the start what a budget has no room for, and which budget has.

        Raises:
            UsageError: there is no room for a race either.
        """
        proposal = self._propose()
        first_s, candidate = 0.0, self.best
        if proposal is None and not candidate.settings:
            return
        if proposal is not None and not self._journal.history:
            first_s = self._races.price(proposal).wall_s
            candidate = proposal.candidate
        costs, budget_s = self._costs(candidate), self._options.budget_s
        found_s = self._spent_s() + costs.noise_s + first_s
        needed_s = found_s + costs.answer_s
        if needed_s <= budget_s:
            self.end_s = max(self._options.aim_s, needed_s)
            return
        self.hurried = True
        found_s, needed_s = found_s - costs.noise_s, needed_s - costs.noise_s
        if needed_s <= budget_s:
            return
        self.short = True
        if found_s > budget_s:
            self._is_first_free = False  # a cheaper one may fit
            if self._propose() is None:
                raise too_short(budget_s, needed_s)
        self._say(
            f"A proved and confirmed answer for this script needs about {duration(needed_s)}, "
            f"more than the budget of {duration(budget_s)}: the search stops at the first gain, "
            "and the plan may end up unconfirmed."
        )

    def _say(self, text: str) -> None:
        self._view.note(text)
        self._note(text)

    # ---- what may be spent

    @property
    def _criteria(self) -> search.AcceptanceCriteria:
        training_s = self._options.training_s
        return search.AcceptanceCriteria(
            least_ratio=self._races.least_ratio,
            training_s=inf if training_s is None else training_s,
            pass_count=self._races.pass_count,
        )

    @property
    def _limits(self) -> search.BudgetLimits:
        best, is_free = self.best, self._is_first_free and not self._journal.history

        def left_s(asked: search.Proposal) -> float:
            """Return the seconds left; the first race is free unless its winner cannot stay."""
            is_lost = self.short and self._is_lost(asked)
            return inf if is_free and not is_lost else self._left_s(asked, best)

        return search.BudgetLimits(
            price=self._races.price,
            left_s=left_s,
            launches_left=max(0, MOST_LAUNCHES_COUNT - self._launch_count),
            weighed_s=self._options.training_s
            or max(_TRAINING_LEAST_S, _TRAINING_PER_BUDGET * self._options.budget_s),
        )

    def _propose(self, limits: search.BudgetLimits | None = None) -> search.Proposal | None:
        return search.propose(
            self._candidates, self._journal.history, criteria=self._criteria,
            limits=limits or self._limits,
        )  # fmt: skip

    def _propose_late(self) -> search.Proposal | None:
        """Return a race for which there is time only where nothing has been found so far.

        First one after the time of a first answer, then one that leaves no time for a proof.
        """
        if self.short or self.best.settings or not self._passed_over(search.RefusalReason.TIME):
            return None
        if self.end_s < self._options.budget_s:
            self._view.known(
                f"no gain in {duration(self._spent_s())}: the search goes on while worthwhile; "
                "Ctrl-C ends it"
            )
            self.end_s = self._options.budget_s
            return self._propose() or self._propose_late()
        self.short = True
        proposal = self._propose()
        if proposal is not None:
            self._say(
                "What is left of the budget is too short for a proof, and nothing has been found: "
                "a plan that is found now ends up unconfirmed."
            )
        return proposal

    def _left_s(self, asked: search.Proposal, best: Plan) -> float:
        """Return the seconds that the search has left, given the best plan so far."""
        left_s = self.end_s - self._spent_s()
        if self.short:  # the proof may not fit anyway; the user has been told
            is_less = asked.named_ratio <= self._gained_share(best)
            return 0.0 if self._is_lost(asked) or is_less else left_s
        return left_s - self._after_s(asked.candidate, best)

    def _is_lost(self, asked: search.Proposal) -> bool:
        """Return whether a short budget ends before the winner of a race can stay.

        A bundle gives way to its parts where its own proof comes too late: one lever that rounds
        may make the proof of others, which are exact, several times as long.
        """
        if self._doubtful(asked.candidate):
            return True
        left_s = self.end_s - self._spent_s() - self._races.price(asked).wall_s
        return asked.kind is search.Kind.BUNDLE and self._costs(asked.candidate).proof_s > left_s

    def _spare_s(self, best: Plan) -> float:
        """Return the seconds until not even the shortest answer for a plan fits any more."""
        return self.end_s - self._spent_s() - self._costs(best).answer_s

    def _gained_share(self, best: Plan) -> float:
        """Return the share of a step that the best plan took away; below 0 where there is none."""
        if not best.settings:
            return -1.0
        return 1.0 - 1.0 / search.gained_ratio(best, self._journal.history)

    def _after_s(self, candidate: Plan, best: Plan) -> float:
        """Return the seconds that come after a race, whoever wins it."""
        costs = self._costs(candidate)
        answers_s = [costs.answer_s]
        if best.settings:
            answers_s.append(self._costs(best).answer_s)
        return max(answers_s) + max(0.0, self._confirm_s - costs.confirm_pairs_s)

    def _tell_what_is_lost(self) -> None:
        """Say once that the races are not kept."""
        if not self._journal.lost or self._said_lost:
            return
        self._said_lost = True
        lost = self._journal.lost
        self._say(f"The races cannot be kept on disk: {lost}. A rerun starts over.")

    def _passed_over(self, reason: search.RefusalReason) -> list[search.Proposal]:
        passed = search.refusals(
            self._candidates, self._journal.history, criteria=self._criteria, limits=self._limits
        )
        return [one.asked for one in passed if one.reason is reason]

    def _why_passed_over(self) -> str:
        """Say why races were not run, one reason for all; empty where none was left out."""
        late = self._passed_over(search.RefusalReason.TIME)
        if late := [asked for asked in late if asked.promises_gain]:
            after_s = self._after_s(late[0].candidate, self.best)
            needed_s = self._spent_s() + self._races.price(late[0]).wall_s + after_s
            return (
                "The budget ended the search before every lever was tried: "
                f"--budget {whole_minutes(needed_s)} or longer may find more."
            )
        if self._passed_over(search.RefusalReason.LAUNCHES):
            return f"The search ended after {MOST_LAUNCHES_COUNT} launches, the most it may start."
        return self._not_worth() if self._passed_over(search.RefusalReason.WORTH) else ""

    def _not_worth(self) -> str:
        trained = duration(self._limits.weighed_s)
        given = "" if self._options.training_s else " (assumed; --train-time sets it)"
        return (
            "The search ended where a trial was expected to cost more than it saves in "
            f"{trained} of training{given}."
        )
