"""Four tools with pydantic-ai: python with_pydantic_ai.py URL EFFECTS. After it was killed it begins anew."""

import asyncio
import sys
import time
from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

url, effects = sys.argv[1], Path(sys.argv[2])
failures = [ConnectionError("unreachable")]
model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key="none"))
agent = Agent(model, instructions="You keep a shop.", output_type=[str, DeferredToolRequests])


@agent.tool_plain
def stock() -> str:
    """What is there."""
    time.sleep(1)
    return "12 lamps"


@agent.tool_plain
def price() -> str:
    """What a lamp costs."""
    if failures:
        raise ModelRetry(str(failures.pop()))  # any other exception ends the run
    return "30 euros"


@agent.tool_plain
def archive() -> str:
    """All earlier orders."""
    return "order of a lamp, sent. " * 500


@agent.tool_plain(requires_approval=True)
def pay(amount: int) -> str:
    """Pay the supplier."""
    with effects.open("a") as file:
        file.write(f"paid {amount}\n")
    return f"paid {amount}"


async def main() -> None:
    result = await agent.run("Order lamps.")
    while isinstance(result.output, DeferredToolRequests):
        approvals = DeferredToolResults(approvals={call.tool_call_id: True for call in result.output.approvals})
        result = await agent.run(message_history=result.all_messages(), deferred_tool_results=approvals)
    sys.stdout.write(f"{result.output}\n")


asyncio.run(main())
