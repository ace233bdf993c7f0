"""Runs in, findings out: every rule on every run, findings of the same thing in one, each with its cost."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from hotloop.core.errors import ConfigError
from hotloop.core.prices import Prices
from hotloop.lint.finding import Finding, Severity, Waste
from hotloop.lint.rules import RULES
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun, LintedStep

PriceOf = Callable[[str], Prices | None]


@dataclass(frozen=True, slots=True)
class Costs:
    """Unknown speeds and prices leave the figures out; a speed that is not given is taken from what was measured."""

    price_of: PriceOf = lambda model: None
    prefill_tokens_per_s: float | None = None

    def price(self, waste: Waste, run: LintedRun) -> Waste:
        return replace(waste, ms=self._ms(waste, run), money=self._money(waste, run.last.request.model))

    def _ms(self, waste: Waste, run: LintedRun) -> float | None:
        speed = self.prefill_tokens_per_s or measure_speed(run.steps)
        reading = waste.num_recomputed / speed * 1000 if speed else None
        waits = [step.request.ttft_ms for step in run.steps if step.request.ttft_ms is not None]
        if waste.num_round_trips and waits:
            return (reading or 0.0) + waste.num_round_trips * median(waits)
        return reading

    def _money(self, waste: Waste, model: str) -> float | None:
        """What was recomputed could have been cached; what was carried was, and need not have been there."""
        prices = self.price_of(model)
        if prices is None:
            return None
        again = prices.cost(waste.num_recomputed, 0, 0) - prices.cost(waste.num_recomputed, waste.num_recomputed, 0)
        return again + prices.cost(waste.num_carried, waste.num_carried, 0)


def measure_speed(steps: Iterable[LintedStep]) -> float | None:
    """Prompt tokens that had to be computed, by the time until first tokens came; None where either is not known."""
    num_prefilled, total_ms = 0, 0.0
    for step in steps:
        usage, ttft_ms = step.request.answer.usage, step.request.ttft_ms
        if usage and usage.num_cached is not None and ttft_ms:
            num_prefilled += usage.num_prompt - usage.num_cached
            total_ms += ttft_ms
    return num_prefilled / total_ms * 1000 if num_prefilled and total_ms else None


class LintReport(NamedTuple):
    runs: tuple[LintedRun, ...]
    findings: tuple[Finding, ...]

    @property
    def num_requests(self) -> int:
        return sum(len(run.steps) for run in self.runs)

    @property
    def num_prompt(self) -> int:
        return sum(step.scale.total(step.request.parts) for run in self.runs for step in run.steps)

    @property
    def num_recomputed(self) -> int:
        """Predicted: tokens that all findings together say were recomputed for nothing."""
        return sum(finding.waste.num_recomputed for finding in self.findings)

    @property
    def num_lost(self) -> int | None:
        """What servers reported not to have found again; None where they reported nothing."""
        reported = [count_reported(step) for run in self.runs for step in run.steps if not step.is_first]
        known = [num for num in reported if num is not None]
        return sum(known) if known else None

    def worst(self) -> Severity | None:
        return max((finding.severity for finding in self.findings), default=None)


def lint(runs: Sequence[LintedRun], *, rules: Sequence[Rule] = RULES, costs: Costs | None = None) -> LintReport:
    costs = costs or Costs()
    found = [finding for run in runs for finding in lint_run(run, rules, costs)]
    return LintReport(tuple(runs), tuple(found))


def lint_run(run: LintedRun, rules: Sequence[Rule], costs: Costs, *, begin: int = 0) -> Iterator[Finding]:
    """What is found in requests from number `begin` on."""
    for rule in rules:
        for finding in _merge(rule, (found for found in rule.findings(run) if found.place.request >= begin)):
            is_small = finding.waste.num_recomputed < rule.min_recomputed
            severity = Severity.NOTE if is_small else finding.severity
            yield replace(finding, run=run.id, severity=severity, waste=costs.price(finding.waste, run))


def count_reported(step: LintedStep) -> int | None:
    """Tokens of the request before, its answer included, that the server did not find again; None if it is silent."""
    usage, before = step.request.answer.usage, step.before.answer.usage if step.before else None
    if not usage or not before or usage.num_cached is None:
        return None
    return max(0, before.num_prompt + before.num_output - usage.num_cached)


def choose(select: Collection[str], ignore: Collection[str]) -> tuple[Rule, ...]:
    """Rules by id or name; all if none is selected. Raises ConfigError for one that there is not."""
    known = {name: rule for rule in RULES for name in (rule.id, rule.name)}
    for name in (*select, *ignore):
        if name not in known:
            raise ConfigError(f"there is no rule {name!r}; `hotloop lint --list` has them all")
    wanted = [known[name] for name in select] or RULES
    return tuple(rule for rule in wanted if rule not in [known[name] for name in ignore])


def _merge(rule: Rule, findings: Iterable[Finding]) -> Iterator[Finding]:
    """What is as severe at the same path in several requests is one finding, at the first of them. Tools have one path,
    and so has a habit.
    """
    merged: dict[tuple[str, Severity], Finding] = {}
    for finding in findings:
        path = "tools" if finding.place.path.startswith("tools[") else finding.place.path
        key = "" if rule.is_habit else path, finding.severity
        if key in merged:
            first = merged[key]
            waste, others = first.waste + finding.waste, (*first.others, finding.place)
            merged[key] = replace(first, waste=waste, others=others)
        else:
            merged[key] = finding
    yield from merged.values()
