"""Breaks runs, lints them all as one file, and counts what was found where."""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.lint_breakers.contents import CONTENTS
from benchmarks.lint_breakers.prefixes import PREFIXES
from benchmarks.lint_breakers.talk import Breaker, Broken, Spot, Talk
from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.engine import lint
from hotloop.lint.finding import Finding, Severity, TextPlace
from hotloop.lint.meter import Meter
from hotloop.lint.parts import parse_answer
from hotloop.lint.requests import LintedRequest

BREAKERS = (*PREFIXES, *CONTENTS)


@dataclass(frozen=True, slots=True)
class Judged:
    """Counted in runs: those that could be broken, in which the right rule fired, at all the right places and no other,
    only as a note; and in which something else was found that is no note.
    """

    breaker: Breaker
    num_runs: int
    missed: Sequence[str]
    misplaced: Sequence[str]
    num_notes: int
    false: Sequence[str]

    @property
    def is_perfect(self) -> bool:
        return not self.missed and not self.misplaced


Found = dict[int, list[Finding]]
"""By the number of the run."""


def judge_all(
    talks: Sequence[Talk], breakers: Sequence[Breaker] = BREAKERS, seed: int = 0, *, is_named: bool = False
) -> Iterator[Judged]:
    """If `is_named`, requests say which run they are of; otherwise the linter has to find out."""
    clean, _ = _lint([(i, Broken(talk, [])) for i, talk in enumerate(talks)], is_named=is_named)
    for breaker in breakers:
        broken = ((i, breaker.apply(talk, Random(f"{seed} {breaker.name} {i}"))) for i, talk in enumerate(talks))
        done = [(i, each) for i, each in broken if each]
        found, firsts = _lint(done, is_named=is_named)
        yield _count(breaker, done, found, clean, firsts)


def _lint(done: Sequence[tuple[int, Broken]], *, is_named: bool) -> tuple[Found, dict[int, int]]:
    """What was found in each run, and the number of its first request."""
    exchanges: list[LintedRequest] = []
    owners: list[int] = []
    firsts: dict[int, int] = {}
    for i, each in done:
        firsts[i] = len(owners)
        exchanges += _exchanges(each, f"run {i}" if is_named else "")
        owners += [i] * len(each.talk)
    found: Found = {i: [] for i, _ in done}
    for finding in lint(sort_into_runs(exchanges, Meter())).findings:
        found[owners[finding.place.request]].append(finding)
    return found, firsts


def _exchanges(broken: Broken, session: str) -> list[LintedRequest]:
    """As they would be read from a file."""
    found = []
    for turn in broken.talk:
        body, answer = json.loads(json.dumps(turn.body)), parse_answer(turn.response or turn.answer, broken.api)
        found.append(LintedRequest(body=body, api=broken.api, answer=answer, session=session))
    return found


def _count(
    breaker: Breaker, done: Sequence[tuple[int, Broken]], found: Found, clean: Found, firsts: dict[int, int]
) -> Judged:
    missed, misplaced, false, num_notes = [], [], [], 0
    for i, each in done[breaker.is_between_runs :]:
        right = [finding for finding in found[i] if finding.rule == breaker.rule]
        worst = max((finding.severity for finding in right), default=None)
        known = {finding.place.path for finding in clean[i] if finding.rule == breaker.rule}
        if breaker.rule and not right:
            missed.append(f"run {i}: {each.spots[:1]}")
        elif wrong := _wrong_places(each.spots, right, known, firsts[i]):
            misplaced.append(f"run {i}: {wrong}")
        num_notes += worst is Severity.NOTE
        false += [f"run {i}: {_words(f)}" for f in found[i] if _is_false(f, breaker)]
    return Judged(breaker, len(done) - breaker.is_between_runs, missed, misplaced, num_notes, false)


def _is_false(finding: Finding, breaker: Breaker) -> bool:
    return finding.severity > Severity.NOTE and finding.rule != breaker.rule and finding.rule not in breaker.also


def _wrong_places(spots: Sequence[Spot], found: Sequence[Finding], known: Collection[str], first: int) -> str:
    """Spots that were not found, and places that are none, nor were found in the clean run; empty if all is well.

    Where there are warnings, what is noted elsewhere is let pass: another run may well begin otherwise.
    """
    worst = max((finding.severity for finding in found), default=None)
    places = [place for finding in found for place in finding.places]
    lost = [spot for spot in spots if not any(_is_at(spot, place, first) for place in places)]
    told = [place for finding in found if finding.severity is worst for place in finding.places]
    odd = [p for p in told if p.path not in known and not any(_is_at(spot, p, first) for spot in spots)]
    return f"{len(lost)} not found {lost[:1]}, {len(odd)} elsewhere {odd[:1]}" if lost or odd else ""


def _is_at(spot: Spot, place: TextPlace, first: int) -> bool:
    """The first request of a run, compared with another run's, may have it in the same place as the ones behind it."""
    is_there = place.path == spot.path and place.request - first in (spot.number, 0)
    return is_there and (not spot.end or spot.begin <= place.begin <= place.end <= spot.end)


def _words(finding: Finding) -> str:
    return f"{finding.rule} {finding.place}: {finding.words}"
