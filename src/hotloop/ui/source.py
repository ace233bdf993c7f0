"""What the dashboard is told, field by field: what is renamed here is renamed in static/*.js."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

End = Literal["done", "limit", "failed", "waiting", "paused", "cancelled", "running", "lost", "none"]
"""How an agent's run ended; `running` has not, `lost` neither though nothing was heard of it for long, and `none` is a
plain client's.
"""


MAX_TIME_S = 4e9
"""The year 2096; in nanoseconds it is still an integer of SQLite's."""


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
    state: Literal["waiting", "prefill", "decode"]
    num_prompt: int
    num_cached: int
    num_output: int
    age_s: float
    above: tuple[str, ...] = ()
    """The sessions that this one works for, the root first."""


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
    totals: Mapping[str, float] = field(default_factory=dict)
    """Tokens since the process started, by the names of `core.request.Usage`, as far as they are known. They only
    grow, so that the dashboard can tell rates.
    """
    kv: KvUse | None = None
    requests: tuple[LiveRequest, ...] = ()
    replicas: tuple[LiveReplica, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are listed, newest first."""

    text: str = ""
    """Part of the session, agent, model, tags, or the beginning of the id; in any case."""
    end: End | None = None
    min_wall_s: Annotated[float, Meta(ge=0)] = 0.0
    since_s: Annotated[float, Meta(gt=0)] | None = None
    """Only those that began so many seconds ago at most."""
    from_s: Annotated[float, Meta(ge=0, le=MAX_TIME_S)] | None = None
    """Only those that began at this moment or later, in unix time; `to_s`: only those that began before it."""
    to_s: Annotated[float, Meta(ge=0, le=MAX_TIME_S)] | None = None
    has_errors: bool = False
    limit: Annotated[int, Meta(ge=1)] = 200
    before: str | None = None
    """What the page before this one said: go on there."""


GroupBy = Literal["agent", "model", "session", "key", "tag", "replica"]
"""A run with several tags counts for each. By replica single requests are summed up, as the router passed them on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryFilter:
    """Which runs are summed up, and by what."""

    by: GroupBy = "agent"
    since_s: Annotated[float, Meta(gt=0, le=366 * 86_400)] = 86_400.0
    """So far back from `to_s`, unless there is a `from_s`."""
    from_s: Annotated[float, Meta(ge=0, le=MAX_TIME_S)] | None = None
    to_s: Annotated[float, Meta(ge=0, le=MAX_TIME_S)] | None = None


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
