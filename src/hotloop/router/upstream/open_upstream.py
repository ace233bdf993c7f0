"""Connections to a replica, from its address: plain ones by hand, encrypted ones with HTTP/2 where it is offered."""

from hotloop.http.url import split_url
from hotloop.router.upstream.http1 import Http1Upstream
from hotloop.router.upstream.http2 import HttpxUpstream
from hotloop.router.upstream.wire import Timeouts, Upstream


def open_upstream(url: str, *, max_connections: int, timeouts: Timeouts) -> Upstream:
    """Nothing is connected before a request needs it. Raises ConfigError if it is no address."""
    parts = split_url(url)
    kind = HttpxUpstream if parts.scheme == "https" else Http1Upstream
    return kind(parts, max_connections=max_connections, timeouts=timeouts)
