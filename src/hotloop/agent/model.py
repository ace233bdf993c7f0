"""The seam to a model: one prompt in, its answer out as it is written.

An answer is a stream of `StreamEvent`s, `Thought`s and, last and once, an `Answered`. What goes wrong raises a
`HotloopError`; what it was about to say is then lost. Nothing here knows a wire.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hotloop.core.message import Message, Thought, Tool
from hotloop.core.stream import StreamEvent
from hotloop.trace.span import TraceContext

Choice = Literal["auto", "none", "required"]
AnswerEnd = Literal["stop", "calls", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUsage:
    """What answers cost, in tokens, as far as the server says."""

    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0

    def __add__(self, other: "ModelUsage") -> "ModelUsage":
        return ModelUsage(
            num_prompt=self.num_prompt + other.num_prompt,
            num_cached=self.num_cached + other.num_cached,
            num_output=self.num_output + other.num_output,
        )

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_output


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer is whole, or was cut (`length`)."""

    end: AnswerEnd
    usage: ModelUsage = field(default_factory=ModelUsage)
    answer_id: str = ""
    """What the server calls it, if it says."""


ModelEvent = StreamEvent | Thought | Answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Everything an answer depends on.

    messages  [ system | what was said before ...... | what is new ]
              [ the same in every run | the same in every turn     ]
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    choice: Choice = "auto"
    schema: Mapping[str, Any] | None = None
    """If given, the answer is JSON of this schema, and no call."""
    max_tokens: int | None = None
    temperature: float | None = None
    session_id: str = ""
    """The same for all turns of a run, so that a server can keep what it has read for them."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields for the wire."""
    trace: TraceContext | None = None
    """What this is part of, for a server that tells what it does."""


class Model(Protocol):
    """Whoever answers. One object serves many runs at once."""

    @property
    def name(self) -> str: ...

    @property
    def can_read_ahead(self) -> bool:
        """Whether `read` saves the next turn anything."""
        ...

    def stream(self, ask: Ask) -> AsyncGenerator[ModelEvent, None]:
        """The answer. Closing the iterator stops the model."""
        ...

    async def read(self, ask: Ask) -> None:
        """Have the model read a prompt that will go on, and answer nothing."""
        ...

    async def close(self) -> None: ...
