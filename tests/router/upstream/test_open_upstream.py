"""What opens from an address."""

from hotloop.router.upstream.http1 import Http1Upstream
from hotloop.router.upstream.http2 import HttpxUpstream
from hotloop.router.upstream.open_upstream import open_upstream
from hotloop.router.upstream.wire import Timeouts


def test_the_scheme_decides() -> None:
    options = {"max_connections": 1, "timeouts": Timeouts()}
    assert isinstance(open_upstream("http://a", **options), Http1Upstream)
    assert isinstance(open_upstream("https://a", **options), HttpxUpstream)
