"""A run as its caller has it: told as it happens, spoken to while it goes on, and its result.

run = agent.stream("Sort my mail.")
async for event in run:
    if isinstance(event, TurnFinished) and event.turn == 3:
        run.send("Leave out what is older than a week.")
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypedDict

from typing_extensions import TypeVar

from hotloop.agent.conversation import Conversation, Prompt, user_message
from hotloop.agent.events import Event, RunEnded
from hotloop.agent.limits import RunUsage
from hotloop.core.errors import ConfigError
from hotloop.core.message import Message
from hotloop.trace.journal import StopEnd

T = TypeVar("T", default=str)


class RunOptions(TypedDict, total=False):
    """What a run may be given beside its prompt."""

    conversation: Conversation | None
    """Gone on with; it has all that was said when the run is over."""
    context: Sequence[Any]
    """What tools find by type."""
    notes: str
    """What is true now (the time, the open file): put behind the prompt, where it costs nothing that comes before."""
    fresh: bool
    """Whether no result of a tool is reused."""


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """What a run came to."""

    output: T
    conversation: Conversation
    spent: RunUsage
    is_cut: bool = False
    """Whether the output was cut off by `max_tokens` or the model's window."""


class Steered(Protocol):
    """A run that goes on."""

    @property
    def conversation(self) -> Conversation: ...

    def send(self, message: Message) -> None: ...

    def stop(self, end: StopEnd) -> None: ...


class RunStream(AsyncIterator[Event], Generic[T]):
    """The events of a run, which begins when the first is asked for. Closing it ends the run at once."""

    def __init__(self, tell: "Callable[[Callable[[Steered], None]], AsyncGenerator[Event, None]]") -> None:
        """`tell` runs it; it hands over the run as soon as there is one."""
        self._events = tell(self._begin)
        self._run: Steered | None = None
        self._wanted: list[Callable[[Steered], None]] = []  # before there was a run
        self._ended: RunEnded | None = None

    def send(self, prompt: Prompt) -> None:
        """Say something to the model: it joins at the next turn, and an answer that was given before is not the last.
        Raises ConfigError once the run is over."""
        if self._ended:
            raise ConfigError("the run has ended: send the message with the conversation's next run")
        message = user_message(prompt)
        self._want(lambda run: run.send(message))

    def pause(self) -> None:
        """End the run when this turn and its calls are over; `agent.resume` goes on with it."""
        self._want(lambda run: run.stop("paused"))

    def cancel(self) -> None:
        """End the run now, but for calls that have begun and may change something, which come to their end."""
        self._want(lambda run: run.stop("cancelled"))

    async def result(self) -> Result[T]:
        """Read to the end. Raises what ended the run before there was an answer."""
        async with aclosing(self):
            async for _ in self:
                pass
        assert self._ended and self._run, "a run has an end"
        if self._ended.error:
            raise self._ended.error
        return Result(self._ended.output, self._run.conversation, self._ended.spent, self._ended.is_cut)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await anext(self._events)
        if isinstance(event, RunEnded):
            self._ended = event
        return event

    async def aclose(self) -> None:
        await self._events.aclose()

    def _begin(self, run: Steered) -> None:
        self._run = run
        for want in self._wanted:
            want(run)

    def _want(self, want: Callable[[Steered], None]) -> None:
        if self._run:
            want(self._run)
        else:
            self._wanted.append(want)
