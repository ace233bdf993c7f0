"""Where two chat requests really part, worked out from their bodies alone, and whether an explanation says the same.

An explanation is right if it names the cause, the part of the prompt, and words that do stand there: the first ones
that are new in the request, and those that stood in their place before.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from benchmarks.cache.script import Json
from benchmarks.cache.wire import CauseBody, Explanation

_DIVERGED, _RETOKENISED = "diverged", "retokenised"
_MAX_SHIFT = 40  # characters: words begin where a token does, or with a word, which is a little before the difference
_NO_TEXT = "\N{REPLACEMENT CHARACTER}"
_BAR = "|"  # stands between the tokens of a text that was only cut otherwise
_NUM_CHARS = 12  # of the words that are compared; further on they may run into the next part


@dataclass(frozen=True, slots=True)
class Told:
    """A request, and the message it was answered with."""

    body: Json
    answer: Json

    @property
    def messages(self) -> list[Json]:
        return [*self.body["messages"], self.answer]


@dataclass(frozen=True, slots=True)
class Fault:
    """The first part in which a request differs from one before it, and at which character of either text."""

    kind: str
    index: int
    offset: int
    previous: str
    current: str


def find_fault(before: Told, body: Json) -> Fault | None:
    """None if the request only goes on where the one before it, and its answer, ended."""
    return next(_faults(before, body), None)


def _faults(before: Told, body: Json) -> Iterator[Fault]:
    """In the order of a prompt: the system message that begins it, the tools, the other messages."""
    then, now = before.messages, body["messages"]
    is_system = bool(now) and now[0]["role"] == "system"
    if is_system:
        yield from _part("system", 0, _content(then[:1]), _content(now[:1]))
    tools = zip_longest(before.body.get("tools", ()), body.get("tools", ()))
    for i, pair in enumerate(tools):
        yield from _part("tool", i, *(json.dumps(tool["function"]) if tool else "" for tool in pair))
    for i, (old, new) in enumerate(zip(then, now, strict=False)):
        if i or not is_system:
            kind = "system" if new["role"] == "system" else "message"
            yield from _part(kind, i, _content([old]), _content([new]))
            yield from _part("call", i, _calls(old), _calls(new))


def _part(kind: str, index: int, previous: str, current: str) -> Iterator[Fault]:
    if previous != current:
        pairs = enumerate(zip(previous, current, strict=False))
        offset = next((i for i, (a, b) in pairs if a != b), min(len(previous), len(current)))
        yield Fault(kind, index, offset, previous, current)


def _content(messages: Sequence[Json]) -> str:
    return "".join(message.get("content") or "" for message in messages)


def _calls(message: Json) -> str:
    return "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))


def is_explained(explanation: Explanation, fault: Fault | None, messages: Sequence[Json]) -> bool:
    """Whether the explanation of a request with these messages is right about its fault.

    Without one nothing has changed but how an answer of the model was cut into tokens, or what in it is no text.
    """
    cause = _told_cause(explanation.causes)
    if cause is None or cause.span is None:
        return False
    if fault is None:
        return _is_about_answer(cause, cause.span.index, messages)
    if (cause.cause, cause.span.kind, cause.span.index) != (_DIVERGED, fault.kind, fault.index):
        return False
    words = ((cause.previous, fault.previous), (cause.current, fault.current))
    return all(_stands_at(told or "", text, fault.offset) for told, text in words)


def _told_cause(causes: Iterable[CauseBody]) -> CauseBody | None:
    return next((cause for cause in causes if cause.cause in (_DIVERGED, _RETOKENISED)), None)


def _is_about_answer(cause: CauseBody, index: int | None, messages: Sequence[Json]) -> bool:
    """Whether it is about words that the model wrote. Bytes that are no text cannot come back as they were."""
    if index is None or not 0 <= index < len(messages) or messages[index]["role"] != "assistant":
        return False
    text = (_content([messages[index]]) + _calls(messages[index])).replace(_BAR, "")
    opening = (cause.current or "").replace(_BAR, "").strip()[:_NUM_CHARS]
    stands_there = opening in text or any(text.endswith(opening[:size]) for size in range(1, len(opening)))
    return bool(opening) and stands_there and cause.cause == (_DIVERGED if _NO_TEXT in text else _RETOKENISED)


def _stands_at(words: str, text: str, offset: int) -> bool:
    begin = max(0, offset - _MAX_SHIFT)
    opening = words.strip()[:_NUM_CHARS]
    return bool(opening) and opening in text[begin : offset + _MAX_SHIFT]
