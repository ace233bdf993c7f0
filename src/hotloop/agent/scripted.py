"""A model that says what it was told to say, for tests of agents: no server, no waiting, always the same.

    ScriptedModel(["Let me look.", [ScriptedCall("weather", city="Rome"), ScriptedCall("news")], "It is warm."])

The n-th answer of a conversation is the n-th of the script, so forks and retries get what they should. Or give a
function from what is asked to the answer.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import Any

from hotloop.agent.model import Ask
from hotloop.core.errors import RequestError
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta
from hotloop.wire.event import Ended, Event
from hotloop.wire.usage import ApiUsage

_PIECE = 8  # characters of arguments that come at a time


class ScriptedCall:
    """A call the model makes: `ScriptedCall("weather", city="Paris")`."""

    def __init__(self, name: str, /, **arguments: Any) -> None:
        self.name = name
        self.arguments = json.dumps(arguments)


Part = str | ScriptedCall
Script = Sequence[Part | Sequence[Part]] | Callable[[Ask], Part | Sequence[Part]]


class ScriptedModel:
    """Says its lines. `asks` has what it was asked, in order."""

    name = "scripted"
    can_prefill_ahead = True

    def __init__(self, script: Script, *, pace_s: float = 0.0, window_tokens: int | None = None) -> None:
        self.asks: list[Ask] = []
        self.reads: list[Ask] = []
        self._script = script
        self._pace_s = pace_s
        self._window_tokens = window_tokens

    async def find_window(self) -> int | None:
        return self._window_tokens

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        self.asks.append(ask)
        parts = self._parts(ask)
        num_output = 0
        for event in _events(parts, len(ask.messages)):
            await asyncio.sleep(self._pace_s)
            num_output += 1
            yield event
        num_prompt = sum(len(message.content) for message in ask.messages) // 4
        has_calls = any(isinstance(part, ScriptedCall) for part in parts)
        yield Ended("calls" if has_calls else "stop", usage=ApiUsage(num_prompt, num_output=num_output))

    async def prefill(self, ask: Ask) -> None:
        self.reads.append(ask)

    async def close(self) -> None:
        pass

    def _parts(self, ask: Ask) -> Sequence[Part]:
        if callable(self._script):
            answer = self._script(ask)
        else:
            index = sum(message.role == "assistant" for message in ask.messages)
            if index >= len(self._script):
                raise RequestError(f"the script has {len(self._script)} answers, and one more was asked for")
            answer = self._script[index]
        return [answer] if isinstance(answer, str | ScriptedCall) else answer


def _events(parts: Iterable[Part], salt: int) -> Iterator[Event]:
    index = 0
    for part in parts:
        if isinstance(part, str):
            yield from (TextDelta(piece) for piece in part.splitlines(keepends=True))
            continue
        yield CallOpened(index, f"call_{salt}_{index}", part.name)
        for i in range(0, len(part.arguments), _PIECE):
            yield CallDelta(index, part.arguments[i : i + _PIECE])
        yield CallClosed(index)
        index += 1
