"""Requests as they come, put into the conversations they belong to, each beside the one it should have continued.

Clients seldom say which conversation a request is of. It goes on with the one that it has most of its words from; one
without a turn of the assistant begins a conversation, and so does one that goes on from an earlier point of another. A
live proxy and a file are sorted alike.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

from hotloop.lint.change import count_common, find_changes
from hotloop.lint.meter import Meter
from hotloop.lint.parts import Part
from hotloop.lint.requests import LintedRequest
from hotloop.lint.reuse import Reach, Seen, count_lost
from hotloop.lint.run import LintedRun, LintedStep

_SENTENCES = re.compile(r"\s*\n\s*|(?<=[.!?,;:])\s+")
_MAX_THREADS = 256  # conversations that a request may go on with
_MAX_KIN = 32
_MAX_STATES = 100_000
_MIN_SHARED = 0.3  # of the characters of the shorter history
_MIN_SURE = 20  # characters of the newest there was and its answer
_MIN_ALIKE = 0.6  # of the characters of a system text
_MIN_SYSTEM = 200


class Texts:
    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    def begins(self, other: "Texts") -> bool:
        """Whether the other goes on where this ends."""
        pairs = zip(self._parts, other._parts, strict=False)
        return 0 < len(self) <= len(other) and all(one.key == two.key for one, two in pairs)

    def share(self, other: "Texts") -> float:
        """Of the shorter one, how much is in the longer."""
        num_chars = min(self._num_chars, other._num_chars)
        return self._count_shared(other) / num_chars if num_chars else 0.0

    def likeness(self, other: "Texts") -> float:
        """From 0 to 1, how much of both is the same; what they begin with counts twice."""
        num_chars = self._num_chars + other._num_chars
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(self._pieces, other._pieces, strict=False))
        num_leading = sum(len(piece) for (_, piece), _ in pairs)
        return (self._count_shared(other) + num_leading) / num_chars if num_chars else 0.0

    def _count_shared(self, other: "Texts") -> int:
        return sum(len(piece) for _, piece in self._pieces.keys() & other._pieces.keys())

    @cached_property
    def _pieces(self) -> dict[tuple[str, str], None]:
        """In the order in which they first come."""
        pieces = ((part.role, piece) for part in self._parts for piece in _SENTENCES.split(part.text))
        return {key: None for key in pieces if key[1]}

    @cached_property
    def _num_chars(self) -> int:
        return sum(len(piece) for _, piece in self._pieces)


def split_newest(history: Sequence[Part]) -> tuple[Sequence[Part], Sequence[Part]]:
    """What came before the assistant last spoke, and what it said then."""
    end = next((i + 1 for i in reversed(range(len(history))) if history[i].role == "assistant"), 0)
    begin = next((i + 1 for i in reversed(range(end)) if history[i].role != "assistant"), 0)
    return history[:begin], history[begin:end]


def is_same(one: Sequence[Part], other: Sequence[Part]) -> bool:
    """Whether both have the same parts, and any words at all."""
    return any(part.text for part in one) and [part.key for part in one] == [part.key for part in other]


def count_chars(parts: Sequence[Part]) -> int:
    return sum(len(part.text) for part in parts)


class _Coming:
    """A request whose conversation is looked for."""

    def __init__(self, request: LintedRequest) -> None:
        self.history, self.beginning = Texts(request.history), Texts(request.beginning)
        self.before_answer, self.answer = split_newest(request.history)
        self.states = {_state(request, self.before_answer), _state(request, (*self.before_answer, *self.answer))}


@dataclass(slots=True)
class _Thread:
    """A conversation: its latest request, and the texts that the next one should begin with."""

    id: str
    session: str
    last: LintedRequest
    beginning: Texts
    texts: Texts

    def follow(self, request: LintedRequest) -> None:
        if request.beginning != self.last.beginning:
            self.beginning = Texts(request.beginning)
        self.last = request
        self.texts = Texts(request.continued)

    def goes_on(self, coming: _Coming) -> tuple[bool, bool]:
        """Whether a request goes on from the newest there was, and from its answer: whatever else is forgotten or
        rewritten, these two are there.
        """
        newest, answer = self.last.history[-1:], self.last.answer.parts
        return is_same(newest, coming.before_answer[-1:]), is_same(answer, coming.answer[-len(answer) :])

    def likeness(self, coming: _Coming) -> float:
        """How much a request looks like the next one; 0 where there is too little to go by."""
        is_next, is_answered = self.goes_on(coming)
        num_sure = is_next * count_chars(self.last.history[-1:]) + is_answered * count_chars(self.last.answer.parts)
        if num_sure < _MIN_SURE and self.texts.share(coming.history) < _MIN_SHARED:
            return 0.0
        likeness = self.texts.likeness(coming.history) + self.beginning.likeness(coming.beginning)
        return round(likeness + is_next + is_answered, 1)  # of much the same, the latest


class ConversationSorter:
    """Puts each request into a run, beside the request before it there."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._seen = Seen()
        self._threads: dict[str, _Thread] = {}
        self._states: dict[int, None] = {}
        self._firsts: deque[LintedRequest] = deque(maxlen=_MAX_KIN)
        self._num_requests = 0
        self._num_runs = 0

    def step(self, request: LintedRequest) -> tuple[str, LintedStep]:
        request = replace(request, index=self._num_requests)
        self._num_requests += 1
        thread = self._find_thread(request)
        before, is_first = (thread.last, False) if thread else (self._find_kin(request), True)
        if thread is None:
            thread = self._begin_thread(request)
        step = self._compare(request, before, is_first=is_first)
        self._seen.add((*request.parts, *request.answer.parts))
        self._threads[thread.id] = self._threads.pop(thread.id)  # the latest used last
        thread.follow(request)
        self._states[_state(request, request.continued)] = None
        if len(self._states) > _MAX_STATES:
            del self._states[next(iter(self._states))]
        return thread.id, step

    def _compare(self, request: LintedRequest, before: LintedRequest | None, *, is_first: bool) -> LintedStep:
        usage = request.answer.usage
        scale = self._meter.scale(request.parts, usage.num_prompt if usage and not request.is_chained else None)
        if before is None:
            return LintedStep(request=request, before=None, is_first=True, scale=scale)
        changes = find_changes(before, request, is_kin=is_first)
        reach = self._seen.reach(request.parts) if changes else Reach(len(request.parts))
        num_lost = count_lost(before, request, changes, reach, scale)
        return LintedStep(
            request=request, before=before, is_first=is_first, scale=scale, changes=changes, num_lost=num_lost
        )

    def _find_thread(self, request: LintedRequest) -> _Thread | None:
        if request.run:
            return self._threads.get(request.run)
        place = request.session, request.source
        threads = [each for each in reversed(self._threads.values()) if (each.session, each.last.source) == place]
        if request.is_chained:
            before = request.body["previous_response_id"]
            return next((thread for thread in threads if thread.last.answer.id == before), None)
        if not any(part.role == "assistant" for part in request.history):
            return None
        coming = _Coming(request)
        going_on = [thread for thread in threads if thread.texts.begins(coming.history)]
        if going_on:
            return max(going_on, key=lambda thread: len(thread.texts))
        scored = ((thread.likeness(coming), thread) for thread in threads)
        likeness, best = max(scored, key=lambda pair: pair[0], default=(0.0, None))
        is_branch = bool(coming.states & self._states.keys())  # all before what is new now has been said just so
        if best and likeness and (not is_branch or all(best.goes_on(coming))):
            return best
        if is_branch:
            return None
        # Whoever names a session, and begins as it did, goes on with it however little is left of it.
        return next((t for t in threads if request.session and _is_alike(t.last, request)), None)

    def _begin_thread(self, request: LintedRequest) -> _Thread:
        self._num_runs += 1
        id_ = request.run or "/".join(filter(None, (request.session, f"run-{self._num_runs}")))
        thread = self._threads[id_] = _Thread(id_, request.session, request, Texts(request.beginning), Texts(()))
        self._firsts.append(request)
        if len(self._threads) > _MAX_THREADS:
            del self._threads[next(iter(self._threads))]
        return thread

    def _find_kin(self, request: LintedRequest) -> LintedRequest | None:
        """A beginning of another conversation of the same file that is much like this one's."""
        firsts = (each for each in reversed(self._firsts) if (each.api, each.source) == (request.api, request.source))
        return next((first for first in firsts if _is_alike(first, request)), None)


def sort_into_runs(exchanges: Iterable[LintedRequest], meter: Meter) -> list[LintedRun]:
    sorter = ConversationSorter(meter)
    runs: dict[str, list[LintedStep]] = {}
    for exchange in exchanges:
        run, step = sorter.step(exchange)
        runs.setdefault(run, []).append(step)
    return [LintedRun(id_, tuple(steps)) for id_, steps in runs.items()]


def _state(request: LintedRequest, history: Sequence[Part]) -> int:
    """A hash of all that was said up to some point."""
    return hash((request.session, request.source, *(part.key for part in (*request.beginning, *history))))


def _is_alike(one: LintedRequest, other: LintedRequest) -> bool:
    names = [[tool.label for tool in request.tools] for request in (one, other)]
    if len(names[0]) > 1 and {*names[0]} == {*names[1]}:
        return True
    then, now = ("\n".join(part.text for part in request.system) for request in (one, other))
    if min(len(then), len(now)) < _MIN_SYSTEM:
        return False
    num_same = count_common(then, now)
    num_same += count_common(then[num_same:][::-1], now[num_same:][::-1])
    return num_same >= _MIN_ALIKE * max(len(then), len(now))
