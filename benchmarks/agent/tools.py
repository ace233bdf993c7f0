"""Three tools of two seconds each: together, and one after the other as most loops have it."""

import asyncio
from dataclasses import dataclass

from hotloop.agent.agent import Agent
from hotloop.agent.events import CallDispatched, CallOpened, Event
from hotloop.agent.limits import Limits
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import FunctionTool, Traits


@dataclass(frozen=True, slots=True)
class ToolsRun:
    wall_s: float
    """From the first tool's beginning to the end of the run."""
    first_began_s: float
    last_opened_s: float
    """When the model began to write the last call; both on the clock of the run."""


async def run_tools(*, num_tools: int = 3, tool_s: float = 2.0, pace_s: float = 0.02, is_parallel: bool) -> ToolsRun:
    """A model that writes `1 / pace_s` pieces a second asks for some tools at once."""

    async def look(n: int) -> str:
        """Look something up."""
        await asyncio.sleep(tool_s)
        return f"found {n}"

    tool = FunctionTool(look, traits=Traits(read_only=True))
    model = ScriptedModel([[ScriptedCall("look", n=n) for n in range(num_tools)], "That is all."], pace_s=pace_s)
    agent = Agent(model, [tool], limits=Limits(concurrency=16 if is_parallel else 1))
    events: list[Event] = [event async for event in agent.stream("Look.")]
    began = [event.at for event in events if isinstance(event, CallDispatched)]
    opened = [event.at for event in events if isinstance(event, CallOpened)]
    return ToolsRun(events[-1].at - began[0], began[0] - events[0].at, opened[-1] - events[0].at)
