"""What an answer consists of, in the order it is written: prose, and tool calls that open, grow and close.

A parser makes these from a model's text, a client from what came over a wire; their consumers know neither.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


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


StreamEvent = TextDelta | CallOpened | CallDelta | CallClosed
