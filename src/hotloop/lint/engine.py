"""Runs in, findings out: every rule on every run, findings of the same thing in one, each with its cost."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hotloop.core.errors import ConfigError
from hotloop.lint.costs import Costs
from hotloop.lint.finding import Finding, Severity
from hotloop.lint.rules import RULES
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun, LintedStep


@dataclass(frozen=True, slots=True)
class LintReport:
    """What was looked at, and what was found."""

    runs: tuple[LintedRun, ...]
    findings: tuple[Finding, ...]

    @property
    def num_requests(self) -> int:
        return sum(len(run.steps) for run in self.runs)

    @property
    def num_prompt(self) -> int:
        return sum(step.scale.total(step.asked.parts) for run in self.runs for step in run.steps)

    @property
    def num_recomputed(self) -> int:
        """Predicted: tokens that all findings together say were recomputed for nothing."""
        return sum(finding.waste.num_recomputed for finding in self.findings)

    @property
    def num_lost(self) -> int | None:
        """What servers reported not to have found again; None where they reported nothing."""
        told = [count_reported(step) for run in self.runs for step in run.steps if not step.is_first]
        known = [num for num in told if num is not None]
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
    usage, before = step.asked.answer.usage, step.before.answer.usage if step.before else None
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
