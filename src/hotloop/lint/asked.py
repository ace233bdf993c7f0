"""A request as it was found: its parts in the order of the prompt, and its answer."""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

from hotloop.lint.part import Json, Part
from hotloop.lint.shapes.answer import Answer
from hotloop.wire.part import Api


@dataclass(frozen=True, kw_only=True)
class LintedRequest:
    """One request. `index` counts requests of the whole input, `line` is its line there; `at` is in unix seconds."""

    index: int
    api: Api
    body: Json
    parts: tuple[Part, ...]
    answer: Answer = field(default_factory=Answer)
    session: str = ""
    source: str = ""
    line: int = 0
    at: float | None = None
    ttft_ms: float | None = None
    row: Json = field(default_factory=dict)

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def is_chained(self) -> bool:
        """Whether what was said before lies with the server and is not sent again."""
        return bool(self.body.get("previous_response_id"))

    @cached_property
    def tools(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.kind == "tool")

    @cached_property
    def system(self) -> tuple[Part, ...]:
        """The system texts that begin the prompt."""
        return tuple(takewhile(lambda part: part.kind == "system", (p for p in self.parts if p.kind != "tool")))

    @property
    def beginning(self) -> tuple[Part, ...]:
        """What comes before anything is said."""
        return self.system + self.tools

    @cached_property
    def history(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.kind != "tool")[len(self.system) :]

    @property
    def continued(self) -> tuple[Part, ...]:
        """The history that the next request should begin with."""
        return self.history + self.answer.parts
