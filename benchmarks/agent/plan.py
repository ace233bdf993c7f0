"""One task of six calls in three levels, done in three ways: a call a turn, a level a turn, and by a plan.

    level 1   customer     catalogue    rates
    level 2       orders ◂ customer        price ◂ catalogue
    level 3           offer ◂ orders, price, rates

Every tool takes the same time. What the model says is given, so that the ways differ in nothing but when things happen.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.agent.paced import PacedModel
from hotloop.agent.agent import Agent
from hotloop.agent.events import CallDispatched, Event, PlanAbandoned, RunEnded
from hotloop.agent.model import Model
from hotloop.agent.tools.tool import FunctionTool, Traits
from hotloop.core.message import Message, ToolCall

Way = Literal["chained", "levels", "plan"]

_PROMPT = "Make Ann Miller an offer for another lamp, in francs, as good as her orders deserve."
_ANSWER = "Ann, as a good customer you get the lamp for 38.70 francs. The offer holds until Friday."

_LEVELS = (("customer", "catalogue", "rates"), ("orders", "price"), ("offer",))
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "customer": {"name": "Ann Miller"},
    "catalogue": {"query": "lamp"},
    "rates": {"currency": "CHF"},
    "orders": {"customer_id": "c-17"},
    "price": {"article_id": "l-4"},
    "offer": {"order_ids": ["o-1", "o-2"], "price": 43.0, "rate": 0.9},
}
_PLANNED: Mapping[str, Mapping[str, Any]] = {
    **_ARGUMENTS,
    "orders": {"customer_id": "${a.id}"},
    "price": {"article_id": "${b.articles[0].id}"},
    "offer": {"order_ids": "${d.ids}", "price": "${e.price}", "rate": "${c.rate}"},
}
_RESULTS: Mapping[str, Any] = {
    "customer": {"id": "c-17", "name": "Ann Miller"},
    "catalogue": {"articles": [{"id": "l-4", "name": "lamp"}]},
    "rates": {"rate": 0.9},
    "orders": {"ids": ["o-1", "o-2"]},
    "price": {"price": 43.0},
    "offer": {"offer": 38.7},
}


@dataclass(frozen=True, slots=True)
class PlanRun:
    wall_s: float
    tool_s: float
    """What one tool takes: three of these in a row are the least that any way can take."""
    num_turns: int
    num_calls: int


async def run_plan(
    way: Way, *, tool_s: float = 1.0, make_model: Callable[[Sequence[Message]], Model] = PacedModel
) -> PlanRun:
    """The task, done in one way. `make_model` makes a model that gives these answers, at whatever pace it has."""
    model = make_model(_answers(way))
    agent: Agent[str] = Agent(model, make_tools(tool_s), "You work for a shop.", can_prefill_ahead=False)
    stream = agent.stream_plan if way == "plan" else agent.stream
    events: list[Event] = [event async for event in stream(_PROMPT)]
    await agent.close()
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    if ended.error:
        raise ended.error
    assert not any(isinstance(event, PlanAbandoned) for event in events), "the plan is a good one"
    num_calls = sum(isinstance(event, CallDispatched) for event in events)
    return PlanRun(ended.at - events[0].at, tool_s, ended.spent.num_turns, num_calls)


def make_tools(tool_s: float) -> list[FunctionTool]:
    """Tools that take their time, and always find the same."""

    async def found(name: str) -> Any:
        await asyncio.sleep(tool_s)
        return _RESULTS[name]

    async def customer(name: str) -> Any:
        """Find a customer."""
        return await found("customer")

    async def catalogue(query: str) -> Any:
        """Find articles."""
        return await found("catalogue")

    async def rates(currency: str) -> Any:
        """What a currency is worth."""
        return await found("rates")

    async def orders(customer_id: str) -> Any:
        """A customer's orders."""
        return await found("orders")

    async def price(article_id: str) -> Any:
        """What an article costs."""
        return await found("price")

    async def offer(order_ids: list[str], price: float, rate: float) -> Any:
        """Work out an offer."""
        return await found("offer")

    functions = (customer, catalogue, rates, orders, price, offer)
    return [FunctionTool(function, traits=Traits(read_only=True)) for function in functions]


def _answers(way: Way) -> list[Message]:
    """What the model says, turn by turn."""
    match way:
        case "chained":
            turns = [_calling(name) for level in _LEVELS for name in level]
        case "levels":
            turns = [_calling(*level) for level in _LEVELS]
        case "plan":
            turns = [Message("assistant", json.dumps({"steps": _steps()}))]
    return [*turns, Message("assistant", _ANSWER)]


def _calling(*names: str) -> Message:
    calls = (ToolCall(f"call_{name}", name, json.dumps(_ARGUMENTS[name])) for name in names)
    return Message("assistant", tool_calls=tuple(calls))


def _steps() -> list[dict[str, Any]]:
    return [
        {"id": step_id, "tool": name, "arguments": arguments}
        for step_id, (name, arguments) in zip("abcdef", _PLANNED.items(), strict=True)
    ]
