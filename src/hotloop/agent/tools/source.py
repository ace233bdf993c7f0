"""Where tools come from other than this program, such as an MCP server, and keeping that open from run to run."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol, runtime_checkable

from hotloop.agent.tools.tool import AgentTool


@runtime_checkable
class ToolSource(Protocol):
    """Somewhere tools come from, such as an MCP server."""

    async def open(self, stack: AsyncExitStack) -> Sequence[AgentTool]:
        """Connect, for as long as the stack is open."""
        ...

    async def is_alive(self, tools: Sequence[AgentTool]) -> bool:
        """Whether the tools that `open` gave can still be called. If not, it is opened again for the next run."""
        ...


class OpenTools:
    """Tools, and the sources that some of them come from, which are open until `close`."""

    def __init__(self, tools: Iterable[AgentTool | ToolSource]) -> None:
        self._each = [_OpenSource(each) if isinstance(each, ToolSource) else each for each in tools]

    async def refresh(self) -> list[AgentTool]:
        """All tools. Sources that are not open, or have died since, are opened."""
        tools: list[AgentTool] = []
        for each in self._each:
            tools += await each.refresh() if isinstance(each, _OpenSource) else [each]
        return tools

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            for each in self._each:
                if isinstance(each, _OpenSource):
                    stack.push_async_callback(each.close)


class _OpenSource:
    def __init__(self, source: ToolSource) -> None:
        self._source = source
        self._tools: Sequence[AgentTool] = ()
        self._stack: AsyncExitStack | None = None
        self._opening = asyncio.Lock()  # runs that begin at the same time open it once

    async def refresh(self) -> Sequence[AgentTool]:
        if await self._is_alive():
            return self._tools
        async with self._opening:
            if not await self._is_alive():
                await self.close()
                async with AsyncExitStack() as stack:
                    self._tools = await self._source.open(stack)
                    self._stack = stack.pop_all()
        return self._tools

    async def _is_alive(self) -> bool:
        return self._stack is not None and await self._source.is_alive(self._tools)

    async def close(self) -> None:
        stack, self._stack = self._stack, None
        if stack:
            await stack.aclose()
