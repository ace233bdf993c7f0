"""Models that write plans, and tools for them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from tests.agent.runs import check

from hotloop.agent.agent import Agent
from hotloop.agent.events import Event
from hotloop.agent.model import Ask
from hotloop.agent.scripted import ScriptedModel
from hotloop.agent.tools.tool import ToolError, tool
from hotloop.core.stream import TextDelta
from hotloop.wire.event import Ended, EndReason
from hotloop.wire.event import Event as WireEvent
from hotloop.wire.usage import ApiUsage


def plan(*steps: tuple[str, str, dict[str, Any]]) -> str:
    return json.dumps({"steps": [{"id": i, "tool": name, "arguments": arguments} for i, name, arguments in steps]})


@tool(read_only=True)
def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


@tool(read_only=True)
def find(name: str) -> dict[str, Any]:
    """Somebody's data."""
    return {"name": name, "ids": [3, 4]}


@tool
def fail(why: str) -> str:
    """Does not work."""
    raise ToolError(why)


TOOLS = [double, find, fail]


def planner(written: str, *answers: Any, end: EndReason = "stop", piece: int = 5) -> "Planner":
    return Planner(written, answers, end, piece)


class Planner(ScriptedModel):
    """Writes a plan when it is asked for one, in pieces; otherwise answers in turn."""

    def __init__(self, written: str, answers: Sequence[Any], end: EndReason, piece: int) -> None:
        lines = iter(answers)
        super().__init__(lambda ask: next(lines))
        self.has_read = asyncio.Event()
        self._written, self._end, self._piece = written, end, piece

    async def prefill(self, ask: Ask) -> None:
        await super().prefill(ask)
        self.has_read.set()

    async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
        if ask.schema is None:
            async for event in super().stream(ask):
                yield event
            return
        self.asks.append(ask)
        for i in range(0, len(self._written), self._piece):
            await asyncio.sleep(0)
            yield TextDelta(self._written[i : i + self._piece])
        yield Ended(self._end, usage=ApiUsage(num_prompt=100, num_output=10))


class Dictated(ScriptedModel):
    """Writes a plan as it is dictated, None being its end, and then answers."""

    def __init__(self, answer: str = "done") -> None:
        super().__init__(lambda ask: answer)
        self.words: asyncio.Queue[str | None] = asyncio.Queue()

    async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
        if ask.schema is None:
            async for event in super().stream(ask):
                yield event
            return
        while (piece := await self.words.get()) is not None:
            yield TextDelta(piece)
        yield Ended("stop")


async def listen(agent: Agent[Any], **fields: Any) -> list[Event]:
    events = [event async for event in agent.stream_plan("go", **fields)]
    check(events)
    return events


GOOD = ("a", "double", {"n": 1})
