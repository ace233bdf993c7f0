"""An answer on its way from a replica to a client."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from hotloop.router.replicas.replica_set import Place
from hotloop.router.upstream.wire import Headers, UpstreamResponse
from hotloop.wire.usage import ApiUsage

MAX_TOKENS = 1 << 19
"""Of an answer with more, tokens are no longer noted, and it does not go on from them."""


@dataclass(slots=True)
class ProxiedAnswer:
    """One that has begun. Give it back with `Proxy.finish`."""

    place: Place
    """Where it is made now: a stream may go on elsewhere."""
    response: UpstreamResponse
    status: int
    body: AsyncGenerator[bytes, None]
    """Ends, or raises UpstreamFailed."""
    is_whole: bool
    headers: Headers = ()
    hides_usage: bool = False
    """Whether the router asked for the usage of a stream and the client did not."""
    render_end: Callable[[str], bytes] | None = None
    """Ends a stream that is translated, where it broke off for that reason; others end as the router's errors do."""
    token_ids: list[int] = field(default_factory=list)
    """The tokens of a stream so far, if its replica tells them."""
    usage: ApiUsage | None = None
    """What it took, where it was made at several replicas."""
