"""The calls of a run, from the moment each is whole to the moment its result is known.

    model  ──[call a]──[call b]────[call c]──┐
    a           └─────────────┐              │
    b                    └────┼─────┐        │
    c                         │     │   └────┼──┐
    results                   1     2        │  3   given to the model in the order of its calls

Calls run at once, as far as the limits allow; one that fails is a result like any other.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from hotloop.agent.events import CallDispatched, CallFinished, Event
from hotloop.agent.tools.carry_out import Outcome, carry_out
from hotloop.agent.tools.context import Surroundings
from hotloop.agent.tools.foresight import Vision
from hotloop.agent.tools.result import render_result
from hotloop.agent.tools.tasks import stop
from hotloop.agent.tools.tool import AgentTool
from hotloop.core.message import Message, ToolCall

log = logging.getLogger(__name__)

Approve = Callable[[ToolCall], Awaitable[bool | str]]
"""Asked before a tool that needs approval runs: True lets it; False, or words for the model, does not."""

_BROKEN_OFF = "Error: this call was broken off; it is not known whether it did anything"


@dataclass(slots=True)
class Pending:
    """A call that was given out."""

    call: ToolCall
    task: "asyncio.Task[Outcome]"

    @property
    def num_tries(self) -> int:
        """How often the tool was run for it; one that was broken off may have been."""
        is_over = self.task.done() and not self.task.cancelled() and not self.task.exception()
        return self.task.result().num_tries if is_over else 1

    @property
    def message(self) -> Message:
        """The result; only once the task is done."""
        return self._as_message(self.task.result().text)

    @property
    def last_word(self) -> Message:
        """The result, or that there will be none: for a run that is over."""
        is_known = self.task.done() and not self.task.cancelled() and not self.task.exception()
        return self.message if is_known else self._as_message(_BROKEN_OFF)

    def _as_message(self, text: str) -> Message:
        return Message("tool", text, tool_call_id=self.call.id, name=self.call.name)


class Dispatcher:
    """Starts calls, and waits for them."""

    def __init__(
        self,
        tools: Mapping[str, AgentTool],
        surroundings: Surroundings,
        *,
        emit: Callable[[Event], None],
        vision: Vision,
        count: Callable[[], None],
        concurrency: int,
        approve: Approve | None = None,
    ) -> None:
        self._tools = tools
        self._surroundings = surroundings
        self._emit = emit
        self._vision = vision
        self._count = count
        self._approve = approve
        self._room = asyncio.Semaphore(concurrency)
        self._rooms = {
            name: asyncio.Semaphore(tool.traits.max_concurrency)
            for name, tool in tools.items()
            if tool.traits.max_concurrency
        }
        self._running: set[asyncio.Task[Outcome]] = set()

    def start(self, call: ToolCall, turn: int) -> Pending:
        """Give out a call; it begins before this turn of the event loop is over, or as soon as there is room.

        Raises LimitReached if there were too many.
        """
        self._count()
        task = asyncio.create_task(self._run(call, turn), name=f"tool {call.name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return Pending(call, task)

    async def close(self) -> None:
        """Stop everything. What does not stop is left behind, and said so."""
        await stop(self._running)

    async def _run(self, call: ToolCall, turn: int) -> Outcome:
        tool = self._tools.get(call.name)
        refusal = await self._refusal(tool, call) if tool else f"there is no tool {call.name!r}; {self._offer()}"
        began_at = time.monotonic()
        if refusal or tool is None:
            outcome = Outcome(render_result(f"Error: {refusal}"), is_error=True, num_tries=0)
        elif glimpse := self._vision.claim(call):  # what runs already needs no room
            began_at = glimpse.began_at
            self._emit(CallDispatched(turn, call.id, call.name, call.arguments, was_foreseen=True))
            outcome = await glimpse.outcome()
        else:
            async with self._rooms.get(call.name, nullcontext()), self._room:
                began_at = time.monotonic()
                self._emit(CallDispatched(turn, call.id, call.name, call.arguments))
                outcome = await carry_out(tool, call.arguments, self._surroundings)
        duration_s = time.monotonic() - began_at
        self._emit(
            CallFinished(turn, call.id, call.name, outcome.text, outcome.is_error, duration_s, outcome.num_tries)
        )
        return outcome

    def _offer(self) -> str:
        return f"there are: {', '.join(sorted(self._tools)) or 'none'}"

    async def _refusal(self, tool: AgentTool, call: ToolCall) -> str:
        """Why a call may not run; empty if it may."""
        if not tool.traits.needs_approval:
            return ""
        if self._approve is None:
            return "this tool needs approval, and nobody is there to give it"
        try:
            verdict = await self._approve(call)
        except Exception as error:
            log.exception("the approval of %s failed", call.name)
            return f"the call could not be approved: {error}"
        if verdict is True:
            return ""
        return f"the call was not approved{': ' + verdict if isinstance(verdict, str) and verdict else ''}"
