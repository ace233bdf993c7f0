"""Where each token of a prompt came from: which message, which tool, or the template itself.

A template may trim, reorder and leave out, so the conversation is rendered once more with a mark of one private
character around each part of it, and the marks are read off. If the text without the marks is not the prompt's, the
contents are searched for, one after the other. Worked out only when asked for.

    marked   <|im_start|>user⏎ [0 hi 0] <|im_end|>
    chars    0               17   17 19
    spans    [template ......][message 0][template
"""

import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Literal

from hotloop.chat.assembly.splice import Encoded
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Tool
from hotloop.models.tokenizer import Tokenizer

SpanKind = Literal["template", "system", "message", "call", "tool", "late_tools", "text"]
Spell = Callable[[int], bytes]
Reword = Callable[[tuple[Message, ...], tuple[Tool, ...]], str]

_OPEN, _CLOSE, _CALL, _TOOL, _NOTE = 0xF0000, 0xF4000, 0xF8000, 0xFC000, 0x100000
_MAX_MARKS = 0x3FFD  # of a kind: the last two of the plane are no characters
_MARK = re.compile("[\U000f0000-\U000ffffd\U00100000-\U00103fff]")
_MAX_GAP = 100  # characters between the name of a call and its arguments, or a tool's name and its first brace


@dataclass(frozen=True, slots=True)
class PromptPlace:
    """A part of a prompt's text. `index` is the message's, for a tool the tool's, and for tools that came late that of
    the message behind which they are told of; None for what nobody sent."""

    kind: SpanKind
    index: int | None
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """A part of a prompt in tokens, without gaps; `place` has its characters. A token is where it begins."""

    kind: SpanKind
    index: int | None
    begin: int
    end: int
    place: PromptPlace


def find_places(text: str, messages: Sequence[Message], tools: Sequence[Tool], reword: Reword) -> list[PromptPlace]:
    """The parts of a text that `reword` gave for these messages and tools, in order and without gaps."""
    found = [*_read_marks(text, messages, tools, reword)] or [*_search(text, messages, tools)]
    return [*_fill_gaps(found, len(text))]


def find_spans(places: Iterable[PromptPlace], encoded: Encoded, tokenizer: Tokenizer) -> tuple[PromptSpan, ...]:
    index = _TokenIndex(encoded, tokenizer)
    spans, begin = [], 0
    for place in places:
        end = index.token_at(place.end)
        spans.append(PromptSpan(place.kind, place.index, begin, end, place))
        begin = end
    return tuple(spans)


def _read_marks(text: str, messages: Sequence[Message], tools: Sequence[Tool], reword: Reword) -> Iterator[PromptPlace]:
    calls = [(i, call) for i, message in enumerate(messages) for call in message.tool_calls]
    if max(len(messages), len(calls), len(tools)) > _MAX_MARKS or _MARK.search(text):
        return
    try:
        marked_tools = tuple(replace(tool, name=chr(_TOOL + i) + tool.name) for i, tool in enumerate(tools))
        marked = reword(_mark_messages(messages), marked_tools)
    except RequestError:
        return
    if _MARK.sub("", marked) != text:
        return
    marks: dict[int, int] = {}
    for num_before, match in enumerate(_MARK.finditer(marked)):
        marks.setdefault(ord(match[0]), match.start() - num_before)
    for i, message in enumerate(messages):
        yield from _message_place(text, message, i, marks.get(_OPEN + i), marks.get(_CLOSE + i))
        if (at := marks.get(_NOTE + i)) is not None:
            yield PromptPlace("late_tools", i, at, at + num_common(message.note, text[at : at + len(message.note)]))
    for j, (i, call) in enumerate(calls):
        if (at := marks.get(_CALL + j)) is not None:
            yield PromptPlace("call", i, at, _call_end(text, at + len(call.name), call.arguments))
    edges = sorted({*marks.values(), len(text)})
    for i in range(len(tools)):
        if (at := marks.get(_TOOL + i)) is not None:
            begin, end = _object_around(text, at) or (at, edges[bisect_right(edges, at)])
            yield PromptPlace("tool", i, begin, end)


def _mark_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    marked, num_calls = [], 0
    for i, message in enumerate(messages):
        words = message.content.strip()
        # Inside the whitespace, which a template may trim; and none around nothing, which it may leave out.
        content = message.content.replace(words, f"{chr(_OPEN + i)}{words}{chr(_CLOSE + i)}", 1) if words else ""
        calls = tuple(
            replace(call, name=chr(_CALL + num_calls + j) + call.name) for j, call in enumerate(message.tool_calls)
        )
        num_calls += len(calls)
        note = chr(_NOTE + i) + message.note if message.note else ""
        marked.append(replace(message, content=content or message.content, tool_calls=calls, note=note))
    return tuple(marked)


def _message_place(
    text: str, message: Message, index: int, begin: int | None, end: int | None
) -> Iterator[PromptPlace]:
    """A template may have cut off one end of the content, and its mark with it: thoughts, for one."""
    words = message.content.strip()
    if begin is None and end is not None:
        begin = end - num_common(words[::-1], text[:end][::-1])
    elif begin is not None and end is None:
        end = begin + num_common(words, text[begin:])
    if begin is not None and end is not None:
        yield PromptPlace("system" if message.role == "system" else "message", index, begin, end)


def num_common(one: str | bytes, other: str | bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _call_end(text: str, name_end: int, arguments: str) -> int:
    begin = text.find(arguments, name_end, name_end + _MAX_GAP + len(arguments))
    return name_end if begin < 0 else begin + len(arguments)


def _object_around(text: str, at: int) -> tuple[int, int] | None:
    """The outermost JSON object that has a tool's name near its beginning."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", text[max(0, at - _MAX_GAP) : at]):
        begin = max(0, at - _MAX_GAP) + match.start()
        try:
            _, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            continue
        if end > at:
            return begin, end
    return None


def _search(text: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Iterator[PromptPlace]:
    cursor = 0
    for i, message in enumerate(messages):
        words = message.content.strip()
        begin = text.find(words, cursor) if words else -1
        if begin >= 0:
            cursor = begin + len(words)
            yield PromptPlace("system" if message.role == "system" else "message", i, begin, cursor)
        if message.note and (begin := text.find(message.note, cursor)) >= 0:
            cursor = begin + len(message.note)
            yield PromptPlace("late_tools", i, begin, cursor)
    for i, tool in enumerate(tools):
        at = text.find(json.dumps(tool.name))
        if at >= 0 and (around := _object_around(text, at)):
            yield PromptPlace("tool", i, *around)


def _fill_gaps(places: Iterable[PromptPlace], num_chars: int) -> Iterator[PromptPlace]:
    cursor = 0
    for place in sorted(places, key=lambda place: (place.begin, place.end)):
        begin = max(place.begin, cursor)
        if place.end <= begin:
            continue
        if begin > cursor:
            yield PromptPlace("template", None, cursor, begin)
        yield replace(place, begin=begin)
        cursor = place.end
    if cursor < num_chars:
        yield PromptPlace("template", None, cursor, num_chars)


def speller(tokenizer: Tokenizer) -> Spell:
    """Every token as the text has it, special ones too."""

    @cache
    def spell(token_id: int) -> bytes:
        is_special = tokenizer.is_special(token_id)
        return tokenizer.token_text(token_id).encode() if is_special else tokenizer.token_bytes(token_id)

    return spell


class _TokenIndex:
    """From a character of a text to the first token that begins at it or behind it."""

    def __init__(self, encoded: Encoded, tokenizer: Tokenizer) -> None:
        self._encoded = encoded
        self._spell = speller(tokenizer)
        self._chars = [char for char, _ in encoded.starts]
        self._tokens = [token for _, token in encoded.starts]
        self._offsets: tuple[int, list[int]] = -1, []

    def token_at(self, char: int) -> int:
        text, token_ids = self._encoded.text, self._encoded.token_ids
        if char >= len(text):
            return len(token_ids)
        i = bisect_right(self._chars, char) - 1
        offsets = self._piece_offsets(i)
        piece_end = self._chars[i + 1] if i + 1 < len(self._chars) else len(text)
        before, piece = text[self._chars[i] : char], text[self._chars[i] : piece_end]
        if len(piece.encode()) != offsets[-1]:  # the tokenizer has normalised it
            before = unicodedata.normalize("NFC", before)
        return self._tokens[i] + bisect_left(offsets, len(before.encode()))

    def _piece_offsets(self, i: int) -> list[int]:
        """The byte at which each token of a piece begins, and where the last one ends."""
        if self._offsets[0] != i:
            end = self._tokens[i + 1] if i + 1 < len(self._tokens) else None
            token_ids = self._encoded.token_ids[self._tokens[i] : end]
            self._offsets = i, [0, *accumulate(len(self._spell(token_id)) for token_id in token_ids)]
        return self._offsets[1]
