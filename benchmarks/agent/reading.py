"""Results read while others are on their way: how long the next turn's first word takes after the last result.

Some tools end one after the other, each with a long result; the model is a real server.
"""

import asyncio
import random
from dataclasses import dataclass

from benchmarks.agent.replayed import ReplayedModel
from hotloop.agent.agent import Agent
from hotloop.agent.events import CallFinished, Event, Text, TurnStarted
from hotloop.agent.model import Model
from hotloop.agent.tools.tool import FunctionTool, Traits
from hotloop.core.message import Message, ToolCall

_WORDS = (
    "order",
    "parcel",
    "late",
    "paid",
    "Ada",
    "street",
    "seven",
    "blue",
    "refund",
    "north",
    "the",
    "of",
    "and",
    "to",
)


@dataclass(frozen=True, slots=True)
class ReadingRun:
    ttft_s: float
    """From the last result to the first word of the next turn."""
    num_prompt: int
    num_cached: int


async def run_reading(
    model: Model,
    *,
    num_tools: int = 3,
    apart_s: float = 0.3,
    result_words: int = 750,
    can_prefill_ahead: bool,
    seed: int,
) -> ReadingRun:
    """One run of two turns; other seeds have other results, so that nothing is known from before."""
    dice = random.Random(seed)
    results = [" ".join(dice.choices(_WORDS, k=result_words)) for _ in range(num_tools)]

    async def look(n: int) -> str:
        """Look something up."""
        await asyncio.sleep((n + 1) * apart_s)
        return results[n]

    calls = tuple(ToolCall(f"call_{seed}_{n}", "look", f'{{"n": {n}}}') for n in range(num_tools))
    answers = [Message("assistant", tool_calls=calls), Message("assistant", "That is all there is to say about it.")]
    agent = Agent(
        ReplayedModel(model, answers, max_tokens=32),
        [FunctionTool(look, traits=Traits(read_only=True))],
        can_prefill_ahead=can_prefill_ahead,
        temperature=0.0,
    )
    events: list[Event] = [event async for event in agent.stream(f"Look up {seed}.")]
    return _measure(events)


def _measure(events: list[Event]) -> ReadingRun:
    last_result = max(event.at for event in events if isinstance(event, CallFinished))
    turns = [event for event in events if isinstance(event, TurnStarted)]
    first_word = next(event.at for event in events if isinstance(event, Text) and event.at >= turns[-1].at)
    usage = events[-1].spent.usage  # type: ignore[attr-defined]
    return ReadingRun(first_word - last_result, usage.num_prompt, usage.num_cached or 0)
