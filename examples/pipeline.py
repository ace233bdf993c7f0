"""A travel desk that uses the whole pipeline: a class and a task for each step, tools in parallel, results that are
kept, calls that run ahead, a sub-agent, and a summary by a smaller model when the conversation grows.

    hotloop run examples/pipeline.py "Is it warmer in Rome or in Oslo, and how do I get there from Paris?"
    hotloop trace show

Behind a router with tiers, with `--url http://localhost:8780/v1#auto`, the sub-agent's task goes to the medium model
and the summary to the smallest. To see what a part is worth, leave it out and compare two runs (`hotloop trace diff`):
without `cache_s` results are fetched again, and with `speculation=None` tools wait until the model asks.
"""

import asyncio
from typing import Literal

from hotloop import Agent, Limits, tool
from hotloop.agent.compaction import Compaction
from hotloop.agent.speculation import SpeculativeTools

URL = "http://localhost:8700/v1"
City = Literal["Berlin", "Oslo", "Paris", "Rome"]
WARMTH = {"Berlin": 14, "Oslo": 6, "Paris": 17, "Rome": 23}
SLOW_S = 0.3  # as somebody's API would be


@tool(read_only=True, cache_s=600, cache_scope="session", group="weather")
async def weather(city: City) -> dict[str, object]:
    """This week's weather in a city: the mean in degrees Celsius."""
    await asyncio.sleep(SLOW_S)
    return {"city": city, "celsius": WARMTH[city]}


@tool(read_only=True, cache_s=600, cache_scope="session", group="trains")
async def trains(origin: City, destination: City) -> list[dict[str, object]]:
    """Trains from one city to another, the quickest first."""
    await asyncio.sleep(SLOW_S)
    hours = abs(WARMTH[origin] - WARMTH[destination]) + 3
    return [{"from": origin, "to": destination, "hours": hours, "price": 19 + 4 * hours}]


@tool(idempotent=True, group="trains", needs_approval=True)
async def book(origin: City, destination: City) -> str:
    """Book the quickest train. The user is asked first."""
    return f"booked: {origin} to {destination}"


advisor = Agent(
    URL,
    tools=[weather],
    instructions="You say in one sentence what to pack for a trip. Look at the weather first.",
    task="simple_qa",
    max_tokens=80,
    limits=Limits(turns=4),
).as_tool("what_to_pack", "What to pack for a trip to a city.")

agent = Agent(
    URL,
    tools=[weather, trains, book, advisor],
    instructions="You plan trips by train. Look up what you do not know, and ask for all you need at once.",
    speculation=SpeculativeTools(),
    compaction=Compaction(window_tokens=8_000, task="summary"),
    max_tokens=200,
    limits=Limits(turns=8),
    name="travel",
)
