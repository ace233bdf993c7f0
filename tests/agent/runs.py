"""Runs of agents, and what they told."""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from hotloop.agent.agent import Agent
from hotloop.agent.events import Event, RunEnded
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.speculation import RunSpeculation, SpeculativeTools
from hotloop.agent.tools.results import ResultCache
from hotloop.agent.tools.tool import AgentTool, RunContext

T = TypeVar("T")


async def listen(agent: Agent[Any], prompt: str = "go", **fields: Any) -> list[Event]:
    """All events of a run, which are in order and end once."""
    events = [event async for event in agent.stream(prompt, **fields)]
    check(events)
    return events


def check(events: Sequence[Event]) -> None:
    assert [isinstance(event, RunEnded) for event in events].count(True) == 1
    assert isinstance(events[-1], RunEnded)
    assert [event.at for event in events] == sorted(event.at for event in events)


def of(kind: type[T], events: Sequence[Event]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


def end_of(events: Sequence[Event]) -> RunEnded:
    assert isinstance(events[-1], RunEnded)
    return events[-1]


def num_tasks() -> int:
    return len(asyncio.all_tasks())


def speculating(predictor: Predictor | None = None, **settings: Any) -> SpeculativeTools:
    """It does not weigh how long tools take: those of tests take no time, so that none would be worth it."""
    return SpeculativeTools(predictor, **({"threshold": 0.8, "wasted_call_s": 0.0} | settings))


def speculate(speculation: SpeculativeTools, tools: Sequence[AgentTool]) -> RunSpeculation:
    """What runs ahead in a run of its own."""
    named = {tool.spec.name: tool for tool in tools}
    return speculation.open(named, RunContext(), lambda event: None, ResultCache().open("run", "session"))
