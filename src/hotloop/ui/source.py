"""Where the page's facts come from: the seam between the page and whoever serves it.

`live` is asked on the event loop, all else on threads, and may wait. The values are as the page gets them, field by
field: what is renamed here is renamed in static/*.js.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

End = Literal["done", "limit", "failed", "cancelled", "running", "lost", "none"]
"""How an agent's run ended; `running` has not, `lost` neither though nothing was heard of it for long, and `none` is a
plain client's.
"""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Whose page this is, and what it can tell."""

    title: str
    model: str = ""
    version: str = ""
    has_live: bool = False
    has_lint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTotals:
    """Since the process started: they only grow, so that the page can tell rates. None is not known."""

    num_prompt: int = 0
    num_cached: int = 0
    num_output: int | None = None
    num_sampled: int | None = None
    num_forced: int | None = None
    num_drafted: int | None = None
    num_accepted: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBlocks:
    """KV blocks of one session: held by its requests, and kept for when it comes back."""

    session: str | None
    """None: of several sessions."""
    num_used: int
    num_cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvUse:
    """The KV memory. `sessions` may leave out those with the least; they are then shown together."""

    num_blocks: int
    num_used: int
    num_cached: int
    block_size: int
    sessions: tuple[SessionBlocks, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """A request that is being answered."""

    session: str
    priority: str
    state: Literal["waiting", "reading", "writing"]
    num_prompt: int
    num_cached: int
    num_output: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReplica:
    name: str
    kind: str
    state: str
    why: str = ""
    models: tuple[str, ...] = ()
    num_running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What goes on at one moment. A server has no replicas, a router no memory."""

    at_s: float
    """On a clock that never goes back; differences of totals are divided by differences of this."""
    num_running: int
    max_running: int | None = None
    waiting: Mapping[str, int] = field(default_factory=dict)
    """By class."""
    totals: TokenTotals = field(default_factory=TokenTotals)
    kv: KvUse | None = None
    requests: tuple[LiveRequest, ...] = ()
    replicas: tuple[LiveReplica, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are listed, newest first."""

    text: str = ""
    """Part of the session, agent, model, or the beginning of the id; in any case."""
    end: End | None = None
    min_wall_s: float = 0.0
    has_errors: bool = False
    limit: int = 200
    before: str | None = None
    """What the page before this one said: go on there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A line of the list."""

    id: str
    start_ms: float
    wall_ms: float
    """As far as it is recorded."""
    running_ms: float | None
    """Since it began, if it goes on."""
    session: str
    agent: str
    model: str
    end: str
    """As `End`, and empty for `none`."""
    num_turns: int
    num_spans: int
    num_errors: int
    num_prompt: int
    num_cached: int
    num_again: int
    num_output: int
    money: float


@dataclass(frozen=True, slots=True)
class RunPage:
    runs: tuple[RunLine, ...]
    before: str | None
    """None: there are no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintLine:
    """A finding of the linter's: what is wrong, where, what it cost, and what to do about it."""

    rule: str
    severity: Literal["note", "warning", "error"]
    words: str
    fix: str
    place: str = ""
    num_tokens: int = 0
    ms: float | None = None
    money: float | None = None


class UiSource(Protocol):
    """Whoever serves the page."""

    def about(self) -> About: ...

    async def live(self) -> Live | None:
        """None where nothing runs, as with a file of recorded runs."""
        ...

    def runs(self, wanted: RunFilter) -> RunPage: ...

    def version(self, run_id: str) -> str | None:
        """Another whenever `run` would tell something else; cheap. None where there is none of that id."""
        ...

    def run(self, run_id: str) -> Json | None:
        """A run as `scene.draw_run` gives it, with `running_ms` as in a `RunLine`, its `end`, and whether it `is_open`:
        may go on. None where there is none of that id.
        """
        ...

    def lint(self, run_id: str) -> Sequence[LintLine] | None:
        """The linter's findings; None where there is no linter here, or no such run."""
        ...
