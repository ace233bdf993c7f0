"""Models, tools and approvals that write down what they gave. Nothing else about them is different."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing

from hotloop.agent.agent import ToolSource
from hotloop.agent.model import Answered, Ask, Model, ModelEvent
from hotloop.agent.tape.lines import Failure, Offer, Outcome, TapeWriter, Verdict
from hotloop.agent.tools.context import Surroundings
from hotloop.agent.tools.dispatch import Approve
from hotloop.agent.tools.result import render_result
from hotloop.agent.tools.tool import AgentTool, ToolCrashed, ToolError
from hotloop.agent.wrapped import WrappedModel
from hotloop.core.errors import HotloopError, RemoteError
from hotloop.core.message import ToolCall


class RecordingModel(WrappedModel):
    """An answer that somebody stops listening to is not written down: nobody knows how it would have ended."""

    def __init__(self, model: Model, tape: TapeWriter) -> None:
        super().__init__(model)
        self._tape = tape

    async def stream(self, ask: Ask) -> AsyncGenerator[ModelEvent, None]:
        began_at = time.monotonic()
        events: list[tuple[float, ModelEvent]] = []
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
            if failure or (events and isinstance(events[-1][1], Answered)):
                self._tape.write_answer(ask, events, failure)


class RecordingTool:
    def __init__(self, tool: AgentTool, tape: TapeWriter) -> None:
        self.spec = tool.spec
        self.traits = tool.traits
        self._tool = tool
        self._tape = tape

    async def run(self, arguments: str, surroundings: Surroundings) -> str:
        began_at, number = time.monotonic(), next(self._tape.numbers)

        def write(text: str, failure: str | None = None) -> None:
            self._tape.write(Outcome(self.spec.name, arguments, time.monotonic() - began_at, text, failure, number))

        try:
            text = render_result(await self._tool.run(arguments, surroundings))
        except asyncio.CancelledError:
            timeout_s = self.traits.timeout_s
            if timeout_s is not None and time.monotonic() - began_at >= timeout_s:
                write(f"{self.spec.name} did not answer within {timeout_s:g} s", "crashed")
            raise
        except (Exception, SystemExit, BaseExceptionGroup) as error:  # carry_out decides what the model is told
            write(*_describe(error))
            raise
        write(text)
        return text


def _describe(error: BaseException) -> tuple[str, str]:
    """As `carry_out` words it, and whether it would try again."""
    match error:
        case ToolCrashed():
            return str(error) or type(error).__name__, "crashed"
        case ToolError() | HotloopError():
            return str(error) or type(error).__name__, "refused"
        case TimeoutError():
            return "TimeoutError", "crashed"
    return f"{type(error).__name__}: {error}", "crashed"


class RecordingSource:
    def __init__(self, source: ToolSource, tape: TapeWriter) -> None:
        self._source = source
        self._tape = tape

    async def open(self, stack: AsyncExitStack) -> Sequence[AgentTool]:
        tools = await self._source.open(stack)
        self._tape.write(*(Offer(tool.spec, tool.traits) for tool in tools))
        return [RecordingTool(tool, self._tape) for tool in tools]


def recording_approval(approve: Approve, tape: TapeWriter) -> Approve:
    async def recorded(call: ToolCall) -> bool | str:
        try:
            verdict = await approve(call)
        except Exception as error:
            tape.write(Verdict(call.name, call.arguments, str(error), is_failure=True))
            raise
        tape.write(Verdict(call.name, call.arguments, verdict))
        return verdict

    return recorded
