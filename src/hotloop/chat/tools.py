"""Which tools an answer may call, and whether it must."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hotloop.core.message import Tool


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model must call a tool, and which, and how many at once."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    """The one tool that must be called, where the mode is `required`."""
    is_parallel: bool = True
    can_go_on: bool = False
    """Whether prose and reasoning may follow a call, and more calls these."""

    def select(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        return tuple(tool for tool in tools if self.name is None or tool.name == self.name)


@dataclass(frozen=True, slots=True)
class Calling:
    """The tools that may be called. Each has a name that every format can write without escaping, and an object for its
    arguments."""

    allowed: tuple[Tool, ...] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)
    places: Mapping[str, str] = field(default_factory=dict)
    """Where in the request a tool's schema is, by the tool's name."""
    strict_names: frozenset[str] = frozenset()
    """The tools of which the request says `strict: true`: these are enforced as a whole, or refused."""

    @property
    def is_possible(self) -> bool:
        """Whether the answer may hold calls. If not, whatever looks like one is text."""
        return bool(self.allowed) and self.choice.mode != "none"

    @property
    def is_required(self) -> bool:
        return self.choice.mode == "required"
