"""Calls that cost a round trip each and need not: by the course of calls, and where their arguments came from."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from hotloop.lint.finding import Severity, Waste
from hotloop.lint.parts import Part
from hotloop.lint.rules.rule import Found, rule
from hotloop.lint.run import LintedRun, LintedStep

_MIN_VALUE = 3  # characters; a shorter value stands everywhere
_MIN_CARRIED = 3  # turns
_READING = re.compile(
    r"(?:get|list|search|find|read|fetch|look|lookup|query|check|show|view|describe|count|load|calculate|estimate|grep|cat"
    r"|ls|open|retrieve|download|browse|ask)(?![a-z])",
    re.I,
)


class CallTurn(NamedTuple):
    """A turn of the assistant with one call; `known` is all text before it, `result` what the call gave back."""

    call: Part
    is_silent: bool
    known: str
    result: str = ""

    @property
    def values(self) -> tuple[str, ...]:
        """The scalars among its arguments; none if they are no JSON."""
        try:
            return tuple(_scalars(json.loads(self.call.text)))
        except (ValueError, RecursionError):
            return ()


CanJoin = Callable[[Sequence[CallTurn], CallTurn], bool]


@rule("HL013", "independent-calls-chained", severity=Severity.NOTE)
def independent_calls(run: LintedRun) -> Iterator[Found]:
    """Calls of a tool are made one a turn although none needs another's result.

    Allow parallel tool calls and ask for them in the prompt, or offer a tool that takes a list.
    """
    # Calls of one tool that only reads: of others it is not known whether the one must come before the other.
    for group in _groups(run.last, _is_independent, min_turns=2):
        names = ", ".join(dict.fromkeys(turn.call.label for turn in group))
        words = f"{len(group)} calls of {names}, one a turn, whose arguments were all known before the first"
        yield _found(run.last, group, words)


def _is_independent(group: Sequence[CallTurn], turn: CallTurn) -> bool:
    first, values = group[0], turn.values
    is_same_tool = turn.call.label == first.call.label and _READING.match(first.call.label) is not None
    is_known = bool(values and first.values) and all(value in first.known for value in values)
    return is_same_tool and turn.call.text != first.call.text and is_known


@rule("HL014", "sequential-calls-mergeable", severity=Severity.NOTE)
def mergeable_calls(run: LintedRun) -> Iterator[Found]:
    """Several turns of the model do nothing but hand one call's result to the next call.

    Let the model write a plan whose steps refer to results (docs/plans.md), or join the tools into one.
    """
    for group in _groups(run.last, _is_carried, min_turns=_MIN_CARRIED):
        names = " → ".join(turn.call.label for turn in group[:5])
        yield _found(run.last, group, f"{names}: in {len(group)} turns the model said nothing and passed results on")


def _is_carried(group: Sequence[CallTurn], turn: CallTurn) -> bool:
    """Whether all its arguments stand in what was known, and one of them only in the result before."""
    before, values = group[-1], turn.values
    if not turn.is_silent or not all(value in before.known or value in before.result for value in values):
        return False
    return any(value in before.result and value not in before.known for value in values)


@rule("HL019", "identical-call-repeated", severity=Severity.NOTE)
def repeated_calls(run: LintedRun) -> Iterator[Found]:
    """A tool that only reads is called with the same arguments again, and nothing was changed in between.

    Keep its results for a while: `@tool(read_only=True, cache_s=60)` (docs/agents.md).
    """
    step, known, repeated = run.last, set[tuple[str, str]](), dict[tuple[str, str], list[Part]]()
    for part in (part for part in step.request.continued if part.kind == "call"):
        if not _READING.match(part.label):
            known.clear()  # it may have changed what they read
            continue
        key = part.label, _canonical(part.text)
        if key in known:
            repeated.setdefault(key, []).append(part)
        known.add(key)
    for (name, _), parts in repeated.items():
        words = f"{name} is called {len(parts)} times more with arguments whose result was known"
        yield Found(step.place(parts[0]), words)


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _found(step: LintedStep, group: Sequence[CallTurn], words: str) -> Found:
    num_trips = len(group) - 1
    waste = Waste(num_round_trips=num_trips, num_carried=step.scale.total(step.request.parts) * num_trips)
    return Found(step.place(group[1].call), words, waste)


def _groups(step: LintedStep, can_join: CanJoin, *, min_turns: int) -> Iterator[list[CallTurn]]:
    """The parts of chains in which each turn joins those before it."""
    for chain in chains(step):
        groups: list[list[CallTurn]] = []
        for turn in chain:
            if groups and can_join(groups[-1], turn):
                groups[-1].append(turn)
            else:
                groups.append([turn])
        yield from (group for group in groups if len(group) >= min_turns)


def chains(step: LintedStep) -> Iterator[list[CallTurn]]:
    """Turns of one call each that follow one another with nothing but results between them."""
    chain: list[CallTurn] = []
    known = "\n".join(part.text for part in step.request.system)
    for role, group in groupby(
        step.request.continued, key=lambda part: "assistant" if part.role == "assistant" else part.kind
    ):
        said = [*group]
        texts = "\n".join(part.text for part in said)
        if role == "result":
            chain[-1:] = [turn._replace(result=texts) for turn in chain[-1:]]
        elif role == "assistant" and len(calls := [part for part in said if part.kind == "call"]) == 1:
            chain.append(CallTurn(calls[0], all(part.kind != "text" for part in said), known))
        else:
            yield chain
            chain = []
        known += texts
    yield chain


def _scalars(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for each in inner:
            yield from _scalars(each)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value)
        if len(text) >= _MIN_VALUE:
            yield text
