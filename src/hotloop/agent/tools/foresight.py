"""The seam for guessing: which calls the model will make, told while it still writes.

Whoever guesses may run read-only tools ahead of time. What it found is used only if the model asks for exactly that
call; otherwise nobody ever sees it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from hotloop.agent.events import CallForeseen
from hotloop.agent.model import ModelEvent
from hotloop.agent.tools.carry_out import Outcome
from hotloop.agent.tools.context import Surroundings
from hotloop.agent.tools.tool import AgentTool
from hotloop.core.message import Message, ToolCall


class Glimpse(Protocol):
    """A call that runs already."""

    began_at: float

    async def outcome(self) -> Outcome: ...


class Vision(Protocol):
    """The guesses of one run."""

    def look(self, messages: Sequence[Message], turn: int) -> None:
        """The model is about to answer these messages: start what it will probably ask for."""
        ...

    def hear(self, event: ModelEvent, turn: int) -> None:
        """The model says more; once it has named a tool, its arguments may be easy to guess."""
        ...

    def claim(self, call: ToolCall) -> Glimpse | None:
        """The model asked for this. If it runs already, its outcome is the answer; a glimpse is given out once."""
        ...

    def settle(self, messages: Sequence[Message]) -> None:
        """The turn is over, and this is all that was said: learn from it, and drop what nobody asked for."""
        ...

    async def close(self) -> None:
        """The run is over: stop what still runs."""
        ...


class Foresight(Protocol):
    """Learns from run to run; one object serves many runs at once."""

    def open(
        self, tools: Sequence[AgentTool], surroundings: Surroundings, emit: Callable[[CallForeseen], None]
    ) -> Vision: ...


class _Blind:
    def look(self, messages: Sequence[Message], turn: int) -> None:
        pass

    def hear(self, event: ModelEvent, turn: int) -> None:
        pass

    def claim(self, call: ToolCall) -> Glimpse | None:
        return None

    def settle(self, messages: Sequence[Message]) -> None:
        pass

    async def close(self) -> None:
        pass


class NoForesight:
    """Guesses nothing."""

    def open(
        self, tools: Sequence[AgentTool], surroundings: Surroundings, emit: Callable[[CallForeseen], None]
    ) -> Vision:
        return _Blind()
