"""Four tools with the OpenAI Agents SDK: python with_agents_sdk.py URL EFFECTS. After it was killed it begins anew."""

import asyncio
import sys
import time
from pathlib import Path

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)  # it sends traces to OpenAI otherwise
url, effects = sys.argv[1], Path(sys.argv[2])
failures = [ConnectionError("unreachable")]


@function_tool
def stock() -> str:
    """What is there."""
    time.sleep(1)
    return "12 lamps"


@function_tool
def price() -> str:
    """What a lamp costs."""
    if failures:
        raise failures.pop()
    return "30 euros"


@function_tool
def archive() -> str:
    """All earlier orders."""
    return "order of a lamp, sent. " * 500


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay the supplier."""
    with effects.open("a") as file:
        file.write(f"paid {amount}\n")
    return f"paid {amount}"


model = OpenAIChatCompletionsModel(model="m", openai_client=AsyncOpenAI(base_url=url, api_key="none"))
agent = Agent(name="shop", instructions="You keep a shop.", tools=[stock, price, archive, pay], model=model)


async def main() -> None:
    result = await Runner.run(agent, "Order lamps.")
    while result.interruptions:
        state = result.to_state()
        for interruption in result.interruptions:
            state.approve(interruption)
        result = await Runner.run(agent, state)
    sys.stdout.write(f"{result.final_output}\n")


asyncio.run(main())
