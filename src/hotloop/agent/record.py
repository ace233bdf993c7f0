"""A run that can be had again: `record` it, and `replay` it exactly, without the model and without running the tools.

    record(agent, "run.jsonl").run_sync("Is it warmer in Paris or in Rome?")
    replay(agent, "run.jsonl").run_sync("Is it warmer in Paris or in Rome?")

A replay that is asked something else, by other instructions, tools or a changed loop, fails and says where it departs.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hotloop.agent.agent import Agent
from hotloop.agent.model import Ask, Model, WrappedModel
from hotloop.agent.settings import RunSettings
from hotloop.agent.tape import Failure, OfferLine, OutcomeLine, Tape, TapeWriter, VerdictLine, WindowLine, parse_event
from hotloop.agent.tools.consent import Approve
from hotloop.agent.tools.dispatch import LATE, describe_failure, describe_timeout, run_tool
from hotloop.agent.tools.handoff import Handoff
from hotloop.agent.tools.result import Given, render_result, take_attachments
from hotloop.agent.tools.source import ToolSource
from hotloop.agent.tools.tool import (
    AgentTool,
    RunContext,
    ToolCrashed,
    ToolError,
    ToolExited,
    call_function,
    read_object,
)
from hotloop.core.errors import HotloopError, RemoteError
from hotloop.core.message import Attachment, ToolCall
from hotloop.wire.event import Ended, Event

T = TypeVar("T")

_FAILURES: dict[str, type[Exception]] = {"crashed": ToolCrashed, "exited": ToolExited}  # all others are a ToolError


def record(agent: Agent[T], path: Path | str) -> Agent[T]:
    """The same agent, whose runs are written to a new tape."""
    tape = TapeWriter(path)

    def change(settings: RunSettings) -> RunSettings:
        approve = _record_approval(settings.approve, tape) if settings.approve else None
        return replace(settings, model=RecordingModel(settings.model, tape), approve=approve)

    def wrap(tool: AgentTool | ToolSource) -> AgentTool | ToolSource:
        return RecordingSource(tool, tape) if isinstance(tool, ToolSource) else RecordingTool(tool, tape)

    return _rebuild(agent, change, wrap, {})


def replay(agent: Agent[T], path: Path | str, *, is_paced: bool = False) -> Agent[T]:
    """The same agent, on a tape, without speculation. `is_paced`: it takes as long as it did then."""
    tape = Tape(path, is_paced=is_paced)

    def change(settings: RunSettings) -> RunSettings:
        return replace(settings, model=ReplayModel(tape), approve=tape.approve, speculation=None)

    def wrap(tool: AgentTool | ToolSource) -> AgentTool | ToolSource | None:
        return None if isinstance(tool, ToolSource) else ReplayTool(tool, tape)

    replayed = _rebuild(agent, change, wrap, {})
    replayed.tools += [ReplayTool(offer, tape) for offer in tape.offers.values()]
    return replayed


def _rebuild(
    agent: Agent[T],
    change: Callable[[RunSettings], RunSettings],
    wrap: Callable[[AgentTool | ToolSource], AgentTool | ToolSource | None],
    made: dict[int, Agent[Any]],
) -> Agent[T]:
    """The agent and those it hands over to, each once, with all of their tools wrapped."""
    if id(agent) not in made:
        made[id(agent)] = rebuilt = agent.rebuild(change(agent.settings), [])
        for each in agent.tools:
            if isinstance(each, Handoff):
                other = _rebuild(each.agent, change, wrap, made)
                rebuilt.tools.append(Handoff(other, each.spec.name, each.spec.description))
            elif wrapped := wrap(each):
                rebuilt.tools.append(wrapped)
    return made[id(agent)]


class RecordingModel(WrappedModel):
    """An answer that somebody stops listening to is not written down: nobody knows how it would have ended."""

    def __init__(self, model: Model, tape: TapeWriter) -> None:
        super().__init__(model)
        self._tape = tape

    async def find_window(self) -> int | None:
        """Recorded, since results are cut by it."""
        window = await self._model.find_window()
        self._tape.write(WindowLine(window))
        return window

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        began_at = time.monotonic()
        events: list[tuple[float, Event]] = []
        failure = None
        try:
            async with aclosing(self._model.stream(ask)) as stream:
                async for event in stream:
                    events.append((time.monotonic() - began_at, event))
                    yield event
        except HotloopError as error:
            status = error.status if isinstance(error, RemoteError) else None
            failure = Failure(type(error).__name__, str(error), status)
            raise
        finally:
            if failure or (events and isinstance(events[-1][1], Ended)):
                self._tape.write_answer(ask, events, failure)


class RecordingTool:
    def __init__(self, tool: AgentTool, tape: TapeWriter) -> None:
        self.spec = tool.spec
        self.options = tool.options
        self.wants = tool.wants
        self.check = tool.check
        self.tool = tool
        self._tape = tape

    async def run(self, arguments: str, run_context: RunContext) -> Any:
        began_at, number = time.monotonic(), next(self._tape.numbers)

        def write(text: str, failure: str | None = None, attachments: tuple[Attachment, ...] = ()) -> None:
            taken_s = time.monotonic() - began_at
            line = OutcomeLine(self.spec.name, arguments, taken_s, text, failure, attachments, number)
            self._tape.write(line)

        try:
            value, attachments = take_attachments(await run_tool(self.tool, arguments, run_context))
            text = render_result(value)
        except asyncio.CancelledError as cancelled:
            if LATE in cancelled.args:
                write(describe_timeout(self.tool), "crashed")
            raise
        except ToolExited as error:
            write(str(error), "exited")
            raise
        except (Exception, BaseExceptionGroup) as error:
            reason, can_retry = describe_failure(error)
            write(reason, "crashed" if can_retry else "refused")
            raise
        write(text, attachments=attachments)
        return Given(text, attachments)


class RecordingSource:
    def __init__(self, source: ToolSource, tape: TapeWriter) -> None:
        self._source = source
        self._tape = tape

    async def open(self, stack: AsyncExitStack) -> Sequence[AgentTool]:
        tools = await self._source.open(stack)
        self._tape.write(*(OfferLine(tool.spec, tool.options) for tool in tools))
        return [RecordingTool(tool, self._tape) for tool in tools]

    async def is_alive(self, tools: Sequence[AgentTool]) -> bool:
        return await self._source.is_alive([each.tool for each in tools if isinstance(each, RecordingTool)])


def _record_approval(approve: Approve, tape: TapeWriter) -> Approve:
    async def recorded(call: ToolCall) -> bool | str:
        try:
            verdict: bool | str = await call_function(approve, call)
        except Exception as error:
            tape.write(VerdictLine(call.name, call.arguments, str(error), is_failure=True))
            raise
        tape.write(VerdictLine(call.name, call.arguments, verdict))
        return verdict

    return recorded


class ReplayModel:
    """Says what the tape has."""

    name = "replay"
    can_prefill_ahead = False

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    async def find_window(self) -> int | None:
        return self._tape.window

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        answer = self._tape.answer(ask)
        now_s = 0.0
        for at_s, event in map(parse_event, answer.events):
            await asyncio.sleep(max(at_s - now_s, 0) if self._tape.is_paced else 0)
            now_s = at_s
            yield event
        if (failure := answer.failure) and failure.kind == RemoteError.__name__:
            raise RemoteError(failure.message, status=failure.status)
        if failure:
            raise HotloopError(failure.message)

    async def prefill(self, ask: Ask) -> None:
        pass

    async def close(self) -> None:
        pass


class ReplayTool:
    """Gives what the tape has; the tool itself is not run. A tool that was late then is not waited for now."""

    wants = ()

    def __init__(self, tool: AgentTool | OfferLine, tape: Tape) -> None:
        self.spec = tool.spec
        self._checked = None if isinstance(tool, OfferLine) else tool
        self.options = replace(tool.options, timeout_s=None)
        self._tape = tape

    def check(self, arguments: str) -> None:
        if self._checked:
            self._checked.check(arguments)
        else:
            read_object(arguments)

    async def run(self, arguments: str, run_context: RunContext) -> Given:
        outcome = self._tape.outcome(self.spec.name, arguments)
        await asyncio.sleep(outcome.duration_s if self._tape.is_paced else 0)
        if outcome.failure:
            raise _FAILURES.get(outcome.failure, ToolError)(outcome.text)
        return Given(outcome.text, outcome.attachments)
