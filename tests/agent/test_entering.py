"""`async with agent`: once at a time, and an error in words otherwise."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from hotloop.agent.agent import Agent
from hotloop.agent.scripted import ScriptedModel
from hotloop.agent.tools.tool import AgentTool, FunctionTool
from hotloop.core.errors import ConfigError


class Source:
    """Counts how often it was opened, and how often closed."""

    def __init__(self) -> None:
        self.num_opened = self.num_closed = 0
        self.may_open = asyncio.Event()

    async def open(self, stack: AsyncExitStack) -> Sequence[AgentTool]:
        await self.may_open.wait()
        self.num_opened += 1
        stack.callback(self._close)
        return [FunctionTool(lambda: "here", name="look")]

    async def is_alive(self, tools: Sequence[AgentTool]) -> bool:
        return True

    def _close(self) -> None:
        self.num_closed += 1


async def test_one_within_the_other() -> None:
    source = Source()
    source.may_open.set()
    agent = Agent(ScriptedModel(["ok"]), [source])
    async with agent:
        with pytest.raises(ConfigError, match="already entered"):
            async with agent:
                pass
        assert (await agent.run("go")).output == "ok", "the first is not closed by the second"
        assert (source.num_opened, source.num_closed) == (1, 0)
    assert source.num_closed == 1
    async with agent:
        assert source.num_opened == 2


async def test_two_at_once() -> None:
    source = Source()
    agent = Agent(ScriptedModel(["ok"]), [source])
    first = asyncio.create_task(agent.__aenter__())
    second = asyncio.create_task(agent.__aenter__())
    with pytest.raises(ConfigError, match="already entered"):
        await asyncio.wait_for(second, 30)
    source.may_open.set()
    await first
    await agent.__aexit__()
    assert (source.num_opened, source.num_closed) == (1, 1)


async def test_run_sync_of_one_that_is_entered() -> None:
    async with Agent(ScriptedModel(["ok"])) as agent:
        with pytest.raises(ConfigError, match="already entered"):
            await asyncio.to_thread(agent.run_sync, "go")


async def test_one_that_could_not_be_entered_can_be_tried_again() -> None:
    class Broken(Source):
        async def open(self, stack: AsyncExitStack) -> Sequence[AgentTool]:
            if not self.may_open.is_set():
                raise ConfigError("not yet")
            return await super().open(stack)

    source = Broken()
    agent = Agent(ScriptedModel(["ok"]), [source])
    with pytest.raises(ConfigError, match="not yet"):
        await agent.__aenter__()
    source.may_open.set()
    async with agent:
        assert source.num_opened == 1
