"""An agent that looks three things up: at once, one after the other, and a call a turn. The calls and the answer are
the model's own; a run of the same kind stands before each, as its example.

at once    | the model writes call 1 · call 2 · call 3 |  answer
tools                 |═══ 1 ═══|  |═══ 2 ═══|  ...       begin as soon as they are written
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.claims.published import COMPILER, GATHER, TOOLS
from benchmarks.claims.result import Figure, Result
from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, CallFinished, RunEnded
from hotloop.agent.limits import Limits
from hotloop.agent.model import Ask, Model, WrappedModel
from hotloop.agent.tools.tool import FunctionTool, ToolOptions
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.bench.serving import ChildServer
from hotloop.core.message import Message, ToolCall
from hotloop.trace.tracer import NullTracer
from hotloop.wire.event import Event

Way = Literal["at once", "one by one", "a call a turn"]
WAYS: tuple[Way, ...] = ("at once", "one by one", "a call a turn")

_CITIES = (
    ("Paris", "Rome", "Oslo"),
    ("Vienna", "Prague", "Warsaw"),
    ("Berlin", "Madrid", "London"),
    ("Tokyo", "Lima", "Cairo"),
)
_EXAMPLE = ("Bern", "Kiev", "Quito")
_INSTRUCTIONS = "Call the tool for each city."


@dataclass(frozen=True, slots=True)
class Gathered:
    """One run: what was waited for tools once all calls were written, how long it took, and which calls were made."""

    tools_s: float
    wall_s: float
    cities: tuple[str, ...]


class DrivenModel(WrappedModel):
    """Must call until as many results are there as things were asked for, and then answer. Where a loop waits for whole
    answers, nothing is heard of one before its end."""

    def __init__(self, model: Model, *, num_calls: int, is_whole: bool) -> None:
        super().__init__(model)
        self._num_calls = num_calls
        self._is_whole = is_whole
        self.called_at = 0.0  # when the last of its calls was written

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        num_results = sum(message.role == "tool" for message in ask.messages) - len(_EXAMPLE)
        must_call = num_results < self._num_calls
        asked = replace(ask, choice="required" if must_call else "none")
        async with aclosing(self._model.stream(asked)) as events:
            whole = [event async for event in events] if self._is_whole else []
            self.called_at = time.monotonic() if must_call else self.called_at
            for event in whole:
                yield event
            async for event in events:
                self.called_at = time.monotonic() if must_call else self.called_at
                yield event


async def gather(model: Model, cities: Sequence[str], way: Way, tool_s: float) -> Gathered:
    async def weather(city: str) -> str:
        """The weather in a city now."""
        await asyncio.sleep(tool_s)
        return f"{city}: {len(city)} degrees"

    driven = DrivenModel(model, num_calls=len(cities), is_whole=way != "at once")
    agent: Agent[str] = Agent(
        driven,
        [FunctionTool(weather, traits=ToolOptions(read_only=True))],
        _INSTRUCTIONS,
        limits=Limits(turns=6, concurrency=16 if way == "at once" else 1),
        can_prefill_ahead=way == "at once",
        max_tokens=120,
        temperature=0.0,
        extra={"parallel_tool_calls": way != "a call a turn", "cache_salt": way},
        tracer=NullTracer(),
    )
    events = [event async for event in agent.stream(_ask(cities), conversation=Conversation(_example()))]
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    if ended.error:
        raise ended.error
    called = [event for event in events if isinstance(event, CallDispatched)]
    done = [event.at for event in events if isinstance(event, CallFinished)]
    named = tuple(str(json.loads(call.arguments).get("city")) for call in called)
    return Gathered(max(done) - driven.called_at, ended.at - events[0].at, named)


def _ask(cities: Sequence[str]) -> str:
    return f"What is the weather in {', '.join(cities[:-1])} and {cities[-1]}?"


def _example() -> list[Message]:
    calls = [ToolCall(f"call_{city}", "weather", json.dumps({"city": city})) for city in _EXAMPLE]
    results = [Message("tool", f"{city}: 18 degrees", tool_call_id=f"call_{city}") for city in _EXAMPLE]
    answer = f"It is 18 degrees in {', '.join(_EXAMPLE[:-1])} and {_EXAMPLE[-1]}."
    asked = Message("user", _ask(_EXAMPLE))
    return [asked, Message("assistant", tool_calls=tuple(calls)), *results, Message("assistant", answer)]


def measure_gathering(tool_s: float, num_repeats: int) -> list[Result]:
    """All ways for one question, then for the next; each way has asked one before, which is not counted."""

    async def run(url: str) -> dict[Way, list[Gathered]]:
        model = OpenAIModel(f"{url}/v1")
        found: dict[Way, list[Gathered]] = {way: [] for way in WAYS}
        for cities in _CITIES[: num_repeats + 1]:
            for way in WAYS:
                found[way].append(await gather(model, cities, way, tool_s))
        await model.close()
        return {way: each[1:] for way, each in found.items()}

    with ChildServer(("--disable", "drafts")) as server:
        found = asyncio.run(run(server.url))
    return results_of(found, tool_s)


def results_of(found: dict[Way, list[Gathered]], tool_s: float) -> list[Result]:
    what = (
        f"{len(found['at once'])} questions about three cities, a tool of {tool_s:g} s; calls and answers the model's"
    )
    asked = _CITIES[1 : 1 + len(found["at once"])]

    def right(way: Way) -> Figure:
        shares = [len({*cities} & {*each.cities}) / len(cities) for each, cities in zip(found[way], asked, strict=True)]
        return Figure(f"cities called {way}", "share", shares)

    def against(name: str, field: Literal["tools_s", "wall_s"], way: Way) -> Figure:
        return Figure(name, "s", *([getattr(each, field) for each in found[which]] for which in ("at once", way)))

    return [
        Result(claim=TOOLS, what=what, figures=[against("tools", "tools_s", "one by one")]),
        Result(
            claim=COMPILER,
            what=what,
            figures=[against("task", "wall_s", "a call a turn"), right("at once"), right("a call a turn")],
        ),
        Result(claim=GATHER, what=what, figures=[against("task", "wall_s", "one by one"), right("at once")]),
    ]
