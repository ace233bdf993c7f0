"""A model that writes at the pace of a real one: a pause before its first token, and then so many a second.

The clock is the event loop's own, so that the sum of many short pauses does not drift.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Sequence

from hotloop.agent.model import Ask
from hotloop.agent.scripted import Part, ScriptedCall, ScriptedModel
from hotloop.core.message import Message
from hotloop.core.stream import CallDelta, TextDelta
from hotloop.wire.event import Event

_CHARS_A_TOKEN = 4


class PacedModel(ScriptedModel):
    """Gives its answers in order, token by token. There is no prefill, ahead or otherwise."""

    can_prefill_ahead = False

    def __init__(self, answers: Sequence[Message], *, tokens_per_s: float = 60.0, ttft_s: float = 0.3) -> None:
        super().__init__([_parts(answer) for answer in answers])
        self._token_s = 1 / tokens_per_s
        self._ttft_s = ttft_s

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        clock = asyncio.get_running_loop()
        due = clock.time() + self._ttft_s
        async for event in super().stream(ask):
            for token in _tokens(event):
                await asyncio.sleep(due - clock.time())
                yield token
                due += self._token_s


def _parts(answer: Message) -> list[Part]:
    calls = [ScriptedCall(call.name, **json.loads(call.arguments)) for call in answer.tool_calls]
    return [*([answer.content] if answer.content else []), *calls]


def _tokens(event: Event) -> Iterator[Event]:
    """Pieces as long as a token; how a call opens and closes is taken for a token each."""
    match event:
        case TextDelta():
            for i in range(0, len(event.text), _CHARS_A_TOKEN):
                yield TextDelta(event.text[i : i + _CHARS_A_TOKEN])
        case CallDelta():
            for i in range(0, len(event.arguments), _CHARS_A_TOKEN):
                yield CallDelta(event.index, event.arguments[i : i + _CHARS_A_TOKEN])
        case _:
            yield event
