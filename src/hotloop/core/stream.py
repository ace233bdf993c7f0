"""What an answer consists of, in the order it is written: thoughts, prose, and tool calls that open, grow and close.

A parser makes these from a model's text, a client from what came over a wire; their consumers know neither.
"""

from dataclasses import dataclass

from hotloop.core.message import Thought


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtClosed:
    """A thought is whole: the text of its deltas, and its signature."""

    thought: Thought


@dataclass(frozen=True, slots=True)
class CallOpened:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of a call's arguments: JSON, character for character what the model wrote where it writes JSON."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """The call's arguments are whole. A call that was cut off is never closed."""

    index: int


StreamEvent = TextDelta | ThoughtDelta | ThoughtClosed | CallOpened | CallDelta | CallClosed
