"""The events of a run, each with the seconds since the run began, and the `time.monotonic` at which it happened.

    RunStarted (TurnStarted (Text | CallOpened | CallArguments | CallDispatched | CallFinished)* TurnFinished)* RunEnded

A run has exactly one `RunEnded`, and it is the last. A call of turn 3 may finish while the model still writes turn 3;
all have finished before its `TurnFinished`.
"""

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from hotloop.agent.limits import RunUsage
from hotloop.core.errors import HotloopError
from hotloop.wire.usage import ApiUsage

RunEnd = Literal["done", "waiting", "paused", "limit", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    at: float = field(default_factory=time.monotonic)
    at_s: float = 0.0
    """Seconds since its run began."""


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    run_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class TurnStarted(Event):
    turn: int


@dataclass(frozen=True, slots=True)
class MessageJoined(Event):
    """A message that was sent to the run is said now."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Text(Event):
    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEvent(Event):
    turn: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallOpened(CallEvent):
    """The model has begun to write a call."""


@dataclass(frozen=True, slots=True)
class CallArguments(Event):
    turn: int
    call_id: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallDispatched(CallEvent):
    """A call's arguments are whole, and its tool has begun, or had begun before (`was_speculative`)."""

    arguments: str
    was_speculative: bool = False
    reused: Literal["", "cached", "joined"] = ""
    """Whether the result is that of the same call, made before or under way; then the tool did not run for this one."""


@dataclass(frozen=True, slots=True)
class CallFinished(CallEvent):
    result: str
    is_error: bool
    duration_s: float
    """What the tool took; with `was_speculative`, part of it passed before the model had asked."""
    num_tries: int = 1
    num_chars_cut: int = 0
    """Characters left out of a result that was too long for the model's window."""
    saved_s: float = 0.0
    """What the tool would have taken, of a result that was reused."""
    traceback: str = ""
    """Of a tool that crashed, without the error's message, which the log has."""


@dataclass(frozen=True, slots=True)
class CallSpeculated(Event):
    """A read-only tool was started because the model will probably ask for it."""

    turn: int
    name: str
    arguments: str
    confidence: float


@dataclass(frozen=True, slots=True)
class PartialOutput(Event):
    """An answer that has a type, as far as it is written: JSON values, not checked yet."""

    turn: int
    value: Any


@dataclass(frozen=True, slots=True)
class SubAgentEvent(Event):
    """An event of a sub-agent's run, which is a call of this run. Events of its own sub-agents are nested: `inner` is
    then a SubAgentEvent, too."""

    turn: int
    call_id: str
    agent: str
    """Its name as a tool."""
    run_id: str
    """Of the sub-agent's run."""
    inner: Event


@dataclass(frozen=True, slots=True)
class Compacted(Event):
    """The conversation was shortened to fit the window."""

    turn: int
    num_messages_before: int
    num_messages_after: int
    usage: ApiUsage
    """What the summary cost; beside it, all that changed has to be read anew."""
    num_results_cut: int = 0
    """How many of the remaining tool results were too long and cut."""


@dataclass(frozen=True, slots=True)
class TurnRestarted(Event):
    """The model's answer broke off, and what it says instead is another: forget what was told of this turn."""

    turn: int
    reason: str


@dataclass(frozen=True, slots=True)
class ModelPassedOver(Event):
    """One of several models could not answer, and the next one is asked."""

    turn: int
    model: str
    reason: str
    kind: str
    """The reason in a word or two: `unreachable`, `rate limited`, `refused`, or a status."""


@dataclass(frozen=True, slots=True)
class HandedOver(Event):
    """Another agent answers from the next turn on."""

    turn: int
    agent: str
    """The name of the tool that it was handed the conversation by."""


@dataclass(frozen=True, slots=True)
class PlanAbandoned(Event):
    """A plan could not be followed to its end; the run goes on without one, with what was done of it."""

    turn: int
    reason: str


@dataclass(frozen=True, slots=True)
class TurnFinished(Event):
    """The model's answer is whole and the results of its calls are here."""

    turn: int
    usage: ApiUsage
    num_calls: int


@dataclass(frozen=True, slots=True)
class RunEnded(Event):
    """The end, always. `output` is set where the run is done. One that is `waiting` goes on with `Agent.resume` once
    somebody has decided on its calls, one that is `paused` at any time."""

    end: RunEnd
    output: Any = None
    is_cut: bool = False
    """Whether the output was cut off by `max_tokens` or the model's window."""
    error: HotloopError | None = None
    spent: RunUsage = field(default_factory=RunUsage)
