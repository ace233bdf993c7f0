"""HL013: calls one after the other that did not need each other's results."""

import re
from collections.abc import Iterator, Sequence

from hotloop.lint.calls import CallTurn, chains
from hotloop.lint.finding import Finding, Severity, Waste
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun

_READING = re.compile(
    r"(?:get|list|search|find|read|fetch|look|lookup|query|check|show|view|describe|count|load|calculate|estimate|grep|cat"
    r"|ls|open|retrieve|download|browse|ask)(?![a-z])",
    re.I,
)


def check(run: LintedRun) -> Iterator[Finding]:
    step = run.last
    num_tokens = step.scale.total(step.asked.parts)
    for chain in chains(step):
        for group in _independent(chain):
            names = ", ".join(dict.fromkeys(turn.call.label for turn in group))
            words = f"{len(group)} calls of {names}, one a turn, whose arguments were all known before the first"
            num_trips = len(group) - 1
            waste = Waste(num_round_trips=num_trips, num_carried=num_tokens * num_trips)
            yield RULE.found(step.place(group[1].call), words, waste)


def _independent(chain: Sequence[CallTurn]) -> Iterator[list[CallTurn]]:
    """Calls of one tool that only reads: of others it is not known whether the one must come before the other."""
    group: list[CallTurn] = []
    for turn in chain:
        if group and _could_join(group[0], turn):
            group.append(turn)
            continue
        if len(group) > 1:
            yield group
        group = [turn] if turn.values and _READING.match(turn.call.label) else []
    if len(group) > 1:
        yield group


def _could_join(first: CallTurn, turn: CallTurn) -> bool:
    is_other = turn.call.text != first.call.text
    is_known = bool(turn.values) and all(value in first.known for value in turn.values)
    return turn.call.label == first.call.label and is_other and is_known


RULE = Rule(
    id="HL013",
    name="independent-calls-chained",
    severity=Severity.NOTE,
    summary="Calls of a tool are made one a turn although none needs another's result.",
    mend="Allow parallel tool calls and ask for them in the prompt, or offer a tool that takes a list.",
    check=check,
)
