"""Four tools with hotloop: python with_hotloop.py URL EFFECTS. Begun again after it was killed, it goes on."""

import asyncio
import sys
import time
from pathlib import Path

from hotloop import Agent, tool
from hotloop.agent.events import RunStarted

url, effects = sys.argv[1], Path(sys.argv[2])
run_file = effects.with_suffix(".run")
failures = [ConnectionError("unreachable")]


@tool(read_only=True)
def stock() -> str:
    """What is there."""
    time.sleep(1)
    return "12 lamps"


@tool(read_only=True)
def price() -> str:
    """What a lamp costs."""
    if failures:
        raise failures.pop()
    return "30 euros"


@tool(read_only=True)
def archive() -> str:
    """All earlier orders."""
    return "order of a lamp, sent. " * 500


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay the supplier."""
    with effects.open("a") as file:
        file.write(f"paid {amount}\n")
    return f"paid {amount}"


agent = Agent(f"{url}#m", [stock, price, archive, pay], "You keep a shop.", approve=lambda call: True)


async def main() -> None:
    run = agent.stream_resume(run_file.read_text()) if run_file.exists() else agent.stream("Order lamps.")
    async with agent:
        async for event in run:
            if isinstance(event, RunStarted):
                run_file.write_text(event.run_id)
        sys.stdout.write(f"{(await run.result()).output}\n")


asyncio.run(main())
