"""HL014: the model only carries values from one call to the next."""

from collections.abc import Iterator, Sequence

from hotloop.lint.calls import CallTurn, chains
from hotloop.lint.finding import Finding, Severity, Waste
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun

_MIN_TURNS = 3


def check(run: LintedRun) -> Iterator[Finding]:
    step = run.last
    num_tokens = step.scale.total(step.asked.parts)
    for chain in chains(step):
        for group in _carried(chain):
            names = " → ".join(turn.call.label for turn in group[:5])
            words = f"{names}: in {len(group)} turns the model said nothing and passed results on"
            num_trips = len(group) - 1
            waste = Waste(num_round_trips=num_trips, num_carried=num_tokens * num_trips)
            yield RULE.found(step.place(group[1].call), words, waste)


def _carried(chain: Sequence[CallTurn]) -> Iterator[list[CallTurn]]:
    group: list[CallTurn] = []
    for turn in chain:
        if group and turn.is_silent and _is_fed(group[-1], turn):
            group.append(turn)
            continue
        if len(group) >= _MIN_TURNS:
            yield group
        group = [turn]
    if len(group) >= _MIN_TURNS:
        yield group


def _is_fed(before: CallTurn, turn: CallTurn) -> bool:
    """Whether all its arguments stand in what was known, and one of them only in the result before."""
    values = turn.values
    if not all(value in before.known or value in before.result for value in values):
        return False
    return any(value in before.result and value not in before.known for value in values)


RULE = Rule(
    id="HL014",
    name="sequential-calls-mergeable",
    severity=Severity.NOTE,
    summary="Several turns of the model do nothing but hand one call's result to the next call.",
    mend="Let the model write a plan whose steps refer to results (docs/plans.md), or join the tools into one.",
    check=check,
)
