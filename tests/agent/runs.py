"""Runs of agents, and what they told."""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from hotloop.agent.agent import Agent
from hotloop.agent.events import Event, RunEnded

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
