"""An agent: a model, its tools and its instructions. `run` it, `stream` it, or let it go several ways at once.

    agent = Agent("http://localhost:8700/v1", tools=[weather], instructions="Be brief.")
    print(agent.run_sync("Is it warmer in Paris or in Rome?").output)

What never changes comes first in every prompt (instructions, tools in one order), what changes with every run last, so
that a server reads only what is new.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from hotloop.agent.compaction import Compaction
from hotloop.agent.conversation import Conversation
from hotloop.agent.dispatch import Approve
from hotloop.agent.events import Event, RunEnded
from hotloop.agent.foresight import Foresight, NoForesight
from hotloop.agent.limits import Limits, Prices, Spent
from hotloop.agent.model import Model
from hotloop.agent.open_model import open_model
from hotloop.agent.output import FinalAnswer
from hotloop.agent.run import RunLoop, RunSettings
from hotloop.agent.tool import AgentTool, FunctionTool
from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.message import Message

T = TypeVar("T")


class ToolSource(Protocol):
    """Somewhere tools come from, such as an MCP server."""

    async def open(self, stack: AsyncExitStack) -> Sequence[AgentTool]:
        """Connect, for as long as the stack is open."""
        ...


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """What came of a run."""

    output: T
    conversation: Conversation
    spent: Spent


class Agent(Generic[T]):
    """`output` is the type of the final answer: text, or anything pydantic can check."""

    def __init__(
        self,
        model: Model | str,
        tools: Sequence[AgentTool | ToolSource | Callable[..., Any]] = (),
        instructions: str = "",
        *,
        output: type[T] | Any = str,
        limits: Limits | None = None,
        prices: Prices | None = None,
        approve: Approve | None = None,
        foresight: Foresight | None = None,
        compaction: Compaction | None = None,
        can_read_ahead: bool = True,
        max_tokens: int | None = None,
        temperature: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.instructions = instructions
        self.output = output
        self._own_tools = [each for each in tools if not hasattr(each, "open")]
        self._sources = [each for each in tools if hasattr(each, "open")]
        self.settings = RunSettings(
            model=open_model(model) if isinstance(model, str) else model,
            limits=limits or Limits(),
            prices=prices or Prices(),
            approve=approve,
            foresight=foresight or NoForesight(),
            compaction=compaction,
            can_read_ahead=can_read_ahead,
            max_tokens=max_tokens,
            temperature=temperature,
            extra=dict(extra or {}),
        )

    async def run(
        self, prompt: str, *, conversation: Conversation | None = None, context: Sequence[Any] = (), notes: str = ""
    ) -> Result[T]:
        """The final answer. Raises what ended the run before there was one; being cancelled stops everything."""
        conversation = conversation if conversation is not None else Conversation()
        events = self.stream(prompt, conversation=conversation, context=context, notes=notes)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, RunEnded):
                    return _result(event, conversation)
        raise AssertionError("a run did not end")

    def run_sync(
        self, prompt: str, *, conversation: Conversation | None = None, context: Sequence[Any] = (), notes: str = ""
    ) -> Result[T]:
        """`run`, for programs that do not await."""

        async def run() -> Result[T]:
            try:
                return await self.run(prompt, conversation=conversation, context=context, notes=notes)
            finally:
                await self.close()

        return asyncio.run(run())

    async def stream(
        self, prompt: str, *, conversation: Conversation | None = None, context: Sequence[Any] = (), notes: str = ""
    ) -> AsyncGenerator[Event, None]:
        """The run as it happens. Closing the iterator cancels the run.

        `conversation` is gone on with, and has all that was said when the run is over. `notes` is what is true now (the
        time, the open file): it is put behind the prompt, where it costs nothing that comes before it.
        """
        conversation = conversation if conversation is not None else Conversation()
        if not conversation.messages and self.instructions:
            conversation.add(Message("system", self.instructions))
        conversation.add(Message("user", f"{prompt}\n\n{notes}" if notes else prompt))
        events: asyncio.Queue[Event] = asyncio.Queue()
        async with AsyncExitStack() as stack:
            tools = await self._open_tools(stack)
            final = None if self.output is str else FinalAnswer(self.output)
            loop = RunLoop(self.settings, conversation, tools, context, final=final, emit=events.put_nowait)
            task = asyncio.create_task(loop.go())
            try:
                event: Event | None = None
                while not isinstance(event, RunEnded):
                    event = await events.get()
                    yield event
            finally:
                task.cancel()
                await asyncio.wait({task})

    async def fork(
        self, prompts: Sequence[str], *, conversation: Conversation | None = None, context: Sequence[Any] = ()
    ) -> "list[Result[T] | HotloopError]":
        """Several continuations of one conversation at once, in the order of the prompts; they share all before them.

        One that fails gives its error, and the others their results.
        """
        base = conversation if conversation is not None else Conversation()
        if not base.messages and self.instructions:
            base.add(Message("system", self.instructions))

        async def branch(prompt: str) -> Result[T] | HotloopError:
            try:
                return await self.run(prompt, conversation=base.fork(), context=context)
            except HotloopError as error:
                return error

        async with asyncio.TaskGroup() as group:
            branches = [group.create_task(branch(prompt)) for prompt in prompts]
        return [task.result() for task in branches]

    async def close(self) -> None:
        """Let go of the model's connections; they are made again when they are needed."""
        await self.settings.model.close()

    async def _open_tools(self, stack: AsyncExitStack) -> list[AgentTool]:
        tools: list[AgentTool] = [_as_tool(each) for each in self._own_tools]
        for source in self._sources:
            tools += await source.open(stack)
        names = [tool.spec.name for tool in tools]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"there are two tools named {name!r}")
        return tools


def _as_tool(each: Any) -> AgentTool:
    """A plain function is a tool nothing is said about."""
    return each if hasattr(each, "spec") else FunctionTool(each)


def _result(ended: RunEnded, conversation: Conversation) -> Result[Any]:
    if ended.error:
        raise ended.error
    return Result(ended.output, conversation, ended.spent)
