"""Answers made of messages with headers, as gpt-oss writes them: reasoning, text and calls are messages of their own.

    <|channel|>analysis<|message|> reasoning <|end|> <|start|>assistant<|channel|>final<|message|> text
    <|channel|>commentary to=functions.f <|constrain|>json<|message|> arguments <|call|>

What is addressed to nobody is text, unless its channel is that of reasoning. Invariant: as in `stream`, how the text is
cut changes nothing but how the deltas are cut.
"""

import re
import secrets
from collections.abc import Iterator
from typing import Literal

from hotloop.chat.stream import num_held
from hotloop.core.message import Thought
from hotloop.core.nesting import Nesting
from hotloop.core.stream import (
    CallClosed,
    CallDelta,
    CallOpened,
    StreamEvent,
    TextDelta,
    ThoughtClosed,
    ThoughtDelta,
)

START, CHANNEL, CONSTRAIN, MESSAGE, END = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"
MARKS = (START, CHANNEL, MESSAGE, END, "<|call|>", "<|return|>")
"""Spelt out they are marks as well, but for those in a string of a call's arguments."""

_MARK = re.compile("|".join(map(re.escape, MARKS)))
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]{1,64})")

Kind = Literal["reasoning", "text", "call"]


class HarmonyParser:
    """Told an answer's text piece by piece, tells what its messages say."""

    def __init__(self, *, can_call: bool = True) -> None:
        self.num_calls = 0
        self._can_call = can_call
        self._pending = ""  # might be the beginning of a mark
        self._header = ""
        self._kind: Kind | None = None  # of the message whose body is being read; None: its header is
        self._reasoning: list[str] = []
        self._arguments = Nesting()  # of the call that is being read

    @property
    def is_calling(self) -> bool:
        return self._kind == "call"

    def push(self, text: str) -> list[StreamEvent]:
        self._pending += text
        events: list[StreamEvent] = []
        while mark := _MARK.search(self._pending):
            events += self._say(self._pending[: mark.start()])
            self._pending = self._pending[mark.end() :]
            is_quoted = self._kind == "call" and self._arguments.is_in_string
            events += self._say(mark[0]) if is_quoted else self._meet(mark[0])
        num_final = len(self._pending) - num_held(self._pending, MARKS)
        said, self._pending = self._pending[:num_final], self._pending[num_final:]
        return [*events, *self._say(said)]

    def finish(self, *, is_cut: bool = False) -> list[StreamEvent]:
        events = [*self._say(self._pending), *self._close(is_cut=is_cut)]
        if self._header.strip() and CHANNEL not in self._header:  # the model left out all headers
            events += [] if self.num_calls else [TextDelta(self._header)]
        self._pending = self._header = ""
        return events

    def _say(self, text: str) -> Iterator[StreamEvent]:
        if not text:
            return
        match self._kind:
            case None:
                self._header += text
            case "reasoning":
                self._reasoning.append(text)
                yield ThoughtDelta(text)
            case "call":
                for char in text:
                    self._arguments.push(char)
                yield CallDelta(self.num_calls - 1, text)
            case "text" if not self.num_calls:
                yield TextDelta(text)

    def _meet(self, mark: str) -> Iterator[StreamEvent]:
        if mark == MESSAGE and self._kind is None:
            yield from self._open()
        elif mark == CHANNEL and self._kind is None:
            self._header += mark
        else:
            yield from self._close()
            self._header = mark if mark == CHANNEL else ""

    def _open(self) -> Iterator[StreamEvent]:
        recipient = _RECIPIENT.search(self._header)
        channel = self._header.rpartition(CHANNEL)[2]
        self._kind = "reasoning" if recipient or channel.strip().startswith("analysis") else "text"
        if recipient and self._can_call:
            self._kind, self._arguments = "call", Nesting()
            yield CallOpened(self.num_calls, f"call_{secrets.token_hex(12)}", recipient[1])
            self.num_calls += 1
        self._header = ""

    def _close(self, *, is_cut: bool = False) -> Iterator[StreamEvent]:
        kind, self._kind = self._kind, None
        reasoning, self._reasoning = "".join(self._reasoning), []
        if kind == "reasoning" and reasoning:
            yield ThoughtClosed(Thought(reasoning))
        elif kind == "call" and not is_cut:
            yield CallClosed(self.num_calls - 1)
