"""Which levers may be tried here, and why the others may not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten import search
from hasten.lever import discover, provided
from hasten.records import CONTENDED, LEAST_RATIO, Diagnosis, Effect, LeverReport, Outcome, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hasten.lever import Lever, ScriptContext
    from hasten.records import Finding, Plan, Setting, Traits
    from hasten.session.options import Options

_BESIDE_OTHERS = "other processes keep CPUs busy: what wins beside them may lose without"


def find_candidates(
    context: ScriptContext,
    options: Options,
    *,
    begun: search.SearchStarted,
    diagnosis: Diagnosis,
) -> tuple[tuple[search.Candidate, ...], tuple[LeverReport, ...]]:
    """Return the levers that are worth a trial, most promising first, and the others' rows.

    A search that was `begun` before goes on with the settings that it had.
    """
    found, rows, priors = [], [], search.read_priors()
    named = begun.named if begun.settings else _named(diagnosis.findings)
    slower = begun.slower if begun.settings else diagnosis.slower
    own_traits = provided(options.applied, context.traits)
    for name, lever in discover().items():
        why, reason = _left_out(name, options)
        settings = () if why else begun.settings.get(name) or lever.settings(context)
        why = why or (_forbidden(lever.effect, options) if settings else lever.why_not(context))
        if diagnosis.is_contended and name not in {*begun.settings, *options.only}:
            settings = lever.beside_others(settings) or (settings if name in named else ())
            if not why and not settings:
                why, reason = _BESIDE_OTHERS, Reason.EXCLUDED
        if why:
            rows.append(
                LeverReport(
                    lever=name, setting=None, outcome=Outcome.SKIPPED, why=why, effect=lever.effect,
                    reason=reason,
                )
            )  # fmt: skip
            continue
        found.append(
            search.Candidate(
                lever=name,
                phases=lever.phases,
                settings=settings,
                gain_ratio=lever.gain_ratio,
                scope=lever.scope,
                effect=lever.effect,
                bundled=lever.promising(context)
                or (diagnosis.is_contended and bool(lever.easing(settings[:1]))),
                steadies=lever.steadies,
                redundant_with=_redundant(lever, own_traits),
                forecasts=_forecasts(lever, context, settings),
                named_ratio=named.get(name, 0.0),
                slower=slower.get(name),
                prior=priors.get(name),
            )
        )
    assert context.baseline is not None  # noqa: S101  # a session profiles first
    kept, skipped = search.bounds(
        found, context.baseline, least_ratio=LEAST_RATIO, begun=frozenset(begun.settings)
    )
    return kept, (*rows, *skipped)


def _named(findings: Sequence[Finding]) -> Mapping[str, float]:
    """Return for each lever the largest share of a step that a finding says it can take away.

    How long the loop waits for others' CPUs does not say how much less that could be.
    """
    told: dict[str, float] = {}
    for finding in findings:
        if finding.share is None or finding.name == CONTENDED:
            continue
        for name, lever in discover().items():
            if lever.may_cure(finding):
                told[name] = max(told.get(name, 0.0), finding.share.mid_ratio)
    return told


def _redundant(lever: Lever[Any], traits: Traits) -> Callable[[Setting, Plan], str]:
    """Say why a setting does nothing beside the levers of a plan."""
    return lambda setting, plan: lever.redundant_with(setting, provided(plan, traits))


def advice(context: ScriptContext) -> list[str]:
    """Return what the levers have to say about a script, whether or not they are used."""
    said = (lever.advice(context) for lever in discover().values())
    return [sentence for sentence in said if sentence]


def _forecasts(
    lever: Lever[Any], context: ScriptContext, settings: tuple[Setting, ...]
) -> dict[Setting, float]:
    said = {setting: lever.forecast(context, setting) for setting in settings}
    return {setting: ratio for setting, ratio in said.items() if ratio is not None}


def _left_out(name: str, options: Options) -> tuple[str, Reason | None]:
    if name in dict(options.applied.settings):
        return "it is set by hand", None
    if (options.only and name not in options.only) or name in options.skip:
        return "it was left out on the command line", Reason.EXCLUDED
    return "", None


def _forbidden(effect: Effect, options: Options) -> str:
    if effect.severity_index <= options.numerics.severity_index:
        return ""
    return f"its effect is {effect}, which needs --numerics {effect}"
