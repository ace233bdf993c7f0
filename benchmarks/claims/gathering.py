"""An agent that looks things up: all at once, one after the other, a call a turn with the model reasoning after each,
and by a plan. Calls and answers are the model's own; a run of the same kind stands before each, as its example.

at once    | the model writes call 1 · call 2 · call 3 |  answer
tools                 |═══ 1 ═══|  |═══ 2 ═══|  ...       begin as soon as they are written
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.claims.bench import Bench
from benchmarks.claims.published import COMPILER, GATHER, LINEAR, TOOLS
from benchmarks.claims.result import Figure, Result, size_of
from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, CallFinished, PlanAbandoned, RunEnded
from hotloop.agent.limits import Limits
from hotloop.agent.model import Ask, Model, WrappedModel
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import FunctionTool, ToolOptions
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.core.message import Message, ToolCall
from hotloop.trace.tracer import NullTracer
from hotloop.wire.event import Event

Way = Literal["at once", "one by one", "a call a turn", "planned"]
WAYS: tuple[Way, ...] = ("at once", "one by one", "a call a turn", "planned")

_CITIES = (
    ("Paris", "Rome", "Oslo"),
    ("Vienna", "Prague", "Warsaw"),
    ("Berlin", "Madrid", "London"),
    ("Tokyo", "Lima", "Cairo"),
    ("Dublin", "Athens", "Lisbon"),
)
_EXAMPLE = ("Bern", "Kiev", "Quito")
_INSTRUCTIONS = "Call the tool for each city."
_MOST = 8


@dataclass(frozen=True, slots=True)
class Gathered:
    """One run: what was waited for tools once all calls were written, how long it took, and which calls were made."""

    tools_s: float
    wall_s: float
    cities: tuple[str, ...]
    is_abandoned: bool = False
    """The plan."""


class DrivenModel(WrappedModel):
    """Must call until as many results are there as things were asked for, and then answer. Where a loop waits for whole
    answers, nothing is heard of one before its end."""

    def __init__(self, model: Model, *, num_calls: int, is_whole: bool, is_planned: bool = False) -> None:
        super().__init__(model)
        self._num_calls = num_calls
        self._is_whole = is_whole
        self._is_planned = is_planned
        self.called_at = 0.0  # when the last of its calls was written

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        num_results = sum(message.role == "tool" for message in ask.messages) - len(_EXAMPLE)
        must_call = num_results < self._num_calls
        is_driven = not (self._is_planned and must_call)  # a plan has a schema of its own
        asked = replace(ask, choice="required" if must_call else "none") if is_driven else ask
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

    is_eager = way in ("at once", "planned")
    driven = DrivenModel(model, num_calls=len(cities), is_whole=not is_eager, is_planned=way == "planned")
    agent: Agent[str] = Agent(
        driven,
        [FunctionTool(weather, options=ToolOptions(read_only=True))],
        _INSTRUCTIONS,
        limits=Limits(turns=len(cities) + 3, concurrency=16 if is_eager else 1),
        can_prefill_ahead=is_eager,
        max_tokens=160,
        temperature=0.0,
        extra={"parallel_tool_calls": way != "a call a turn", "cache_salt": way},
        tracer=NullTracer(),
    )
    start = agent.stream_plan if way == "planned" else agent.stream
    events = [event async for event in start(_ask(cities), conversation=Conversation(_example()))]
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    if ended.error:
        raise ended.error
    called = [event for event in events if isinstance(event, CallDispatched)]
    done = [event.at for event in events if isinstance(event, CallFinished)]
    named = tuple(str(json.loads(call.arguments).get("city")) for call in called)
    is_abandoned = any(isinstance(event, PlanAbandoned) for event in events)
    return Gathered(max(done) - driven.called_at, ended.at - events[0].at, named, is_abandoned)


def _ask(cities: Sequence[str]) -> str:
    *others, last = cities
    return f"What is the weather in {', '.join(others)} and {last}?" if others else f"What is the weather in {last}?"


def _example() -> list[Message]:
    calls = [ToolCall(f"call_{city}", "weather", json.dumps({"city": city})) for city in _EXAMPLE]
    results = [Message("tool", f"{city}: 18 degrees", tool_call_id=f"call_{city}") for city in _EXAMPLE]
    answer = f"It is 18 degrees in {', '.join(_EXAMPLE[:-1])} and {_EXAMPLE[-1]}."
    asked = Message("user", _ask(_EXAMPLE))
    return [asked, Message("assistant", tool_calls=tuple(calls)), *results, Message("assistant", answer)]


def measure_gathering(bench: Bench) -> list[Result]:
    """All ways for one question, then for the next; each way has asked one before, which is not counted."""
    tool_s, words = bench.scale.tool_s, bench.supplies.words

    async def run(url: str) -> dict[Way, list[Gathered]]:
        model = OpenAIModel(f"{url}/v1")
        found: dict[Way, list[Gathered]] = {way: [] for way in WAYS}
        for cities in _CITIES[: bench.scale.repeats + 1]:
            for way in WAYS:
                found[way].append(await gather(model, cities, way, tool_s))
        await model.close()
        return {way: each[1:] for way, each in found.items()}

    found = asyncio.run(run(bench.serve(model=words)))
    return results_of(found, f"a tool of {tool_s:g} s; calls and answers are those of a model of {size_of(words)}")


def results_of(found: Mapping[Way, Sequence[Gathered]], about: str) -> list[Result]:
    num_questions = len(found["at once"])
    what = f"{num_questions} questions about three cities, {about}"
    asked = _CITIES[1 : 1 + num_questions]

    def right(way: Way) -> Figure:
        shares = [len({*cities} & {*each.cities}) / len(cities) for each, cities in zip(found[way], asked, strict=True)]
        return Figure(f"cities called {way}", "share", shares)

    def against(name: str, field: Literal["tools_s", "wall_s"], ours: Way, way: Way) -> Figure:
        return Figure(name, "s", *([getattr(each, field) for each in found[which]] for which in (ours, way)))

    chain: Way = "a call a turn"
    carried_out = Figure("plans carried out", "share", [float(not each.is_abandoned) for each in found["planned"]])
    return [
        Result(
            claim=TOOLS,
            what=what,
            figures=[
                against("tools", "tools_s", "at once", "one by one"),
                against("whole task", "wall_s", "at once", "one by one"),
            ],
        ),
        Result(
            claim=COMPILER,
            what=f"{what}, planned by `agent.plan`",
            figures=[against("task", "wall_s", "planned", chain), carried_out, right("planned"), right(chain)],
        ),
        Result(
            claim=GATHER,
            what=f"{what}: three calls and their reasoning in one turn each, and the answer",
            figures=[against("task", "wall_s", "at once", chain), right("at once"), right(chain)],
        ),
    ]


def measure_many(bench: Bench) -> Result:
    """1 to 8 calls of one answer. They are by script: what is measured is how the runtime runs them."""
    tool_s = bench.scale.short_tool_s
    names = [f"City {i}" for i in range(_MOST)]

    def say(ask: Ask) -> str | list[ScriptedCall]:
        wanted = ask.messages[-1].content.count("City")
        return "Done." if ask.choice == "none" else [ScriptedCall("weather", city=name) for name in names[:wanted]]

    async def take(count: int) -> tuple[float, float]:
        ways: tuple[Way, Way] = ("at once", "one by one")
        ours, others = [await gather(ScriptedModel(say), names[:count], way, tool_s) for way in ways]
        return ours.tools_s, others.tools_s

    async def run() -> list[list[tuple[float, float]]]:
        return [[await take(count) for _ in range(bench.scale.repeats)] for count in range(1, _MOST + 1)]

    figures = [
        Figure(f"{count} tools" if count > 1 else "1 tool", "s", *map(list, zip(*pairs, strict=True)))
        for count, pairs in enumerate(asyncio.run(run()), start=1)
    ]
    return Result(
        claim=LINEAR, what=f"1 to {_MOST} calls in one answer, by script; tools of {tool_s:g} s", figures=figures
    )
