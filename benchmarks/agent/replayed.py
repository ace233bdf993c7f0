"""A model that costs what a real one costs and says what was recorded.

The server behind it reads every prompt and writes as many tokens as the record has; what it writes is thrown away, and
the record's words are given out at its pace. So every way to run a job sees the same conversation.
"""

import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from hotloop.agent.model import Ask, Model
from hotloop.core.message import Message
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta
from hotloop.wire.event import Ended, Event

_CHARS_A_TOKEN = 4
_PIECE = 12  # characters of the record that are given out at a time


class ReplayedModel:
    """One job's answers, in order, at the pace of `server`."""

    can_prefill_ahead = True

    def __init__(self, server: Model, answers: Sequence[Message], *, max_tokens: int, is_late: bool = False) -> None:
        self.name = server.name
        self._server = server
        self._answers = answers
        self._max_tokens = max_tokens
        self._is_late = is_late
        """Whether calls are given out only when the answer is whole, as most loops do."""

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        answer = self._answers[sum(message.role == "assistant" for message in ask.messages)]
        events = [*_events(answer)]
        num_tokens = max(8, min(self._max_tokens, _num_chars(answer) // _CHARS_A_TOKEN))
        asked = replace(ask, max_tokens=num_tokens, choice="none", extra={**ask.extra, "ignore_eos": True})
        num_given, num_written = 0, 0.0
        end = Ended("stop")
        async with aclosing(self._server.stream(asked)) as written:
            async for each in written:
                if isinstance(each, Ended):
                    end = each
                elif isinstance(each, TextDelta) and not self._is_late:
                    num_written += max(1.0, len(each.text) / _CHARS_A_TOKEN)
                    num_due = math.ceil(len(events) * min(1.0, num_written / num_tokens))
                    for event in events[num_given:num_due]:
                        yield event
                    num_given = max(num_given, num_due)
        for event in events[num_given:]:
            yield event
        yield Ended("calls" if answer.tool_calls else "stop", usage=end.usage)

    async def find_window(self) -> int | None:
        return await self._server.find_window()

    async def prefill(self, ask: Ask) -> None:
        if self._server.can_prefill_ahead:
            await self._server.prefill(replace(ask, choice="none"))

    async def close(self) -> None:
        await self._server.close()


def _events(answer: Message) -> Iterator[Event]:
    for i in range(0, len(answer.content), _PIECE):
        yield TextDelta(answer.content[i : i + _PIECE])
    for index, call in enumerate(answer.tool_calls):
        yield CallOpened(index, call.id, call.name)
        for i in range(0, len(call.arguments), _PIECE):
            yield CallDelta(index, call.arguments[i : i + _PIECE])
        yield CallClosed(index)


def _num_chars(answer: Message) -> int:
    return len(answer.content) + sum(len(call.name) + len(call.arguments) for call in answer.tool_calls)
