"""Addresses of replicas, and what opens from them."""

import pytest

from hotloop.core.errors import ConfigError
from hotloop.router.upstream.address import Address
from hotloop.router.upstream.http1 import Http1Upstream
from hotloop.router.upstream.http2 import HttpxUpstream
from hotloop.router.upstream.open_upstream import open_upstream
from hotloop.router.upstream.wire import Timeouts


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://a", Address(False, "a", 80, "a")),
        ("http://A:8000/", Address(False, "a", 8000, "a:8000")),
        ("https://a.b:443/v1/", Address(True, "a.b", 443, "a.b", "/v1")),
        ("http://[::1]:8000/x/y", Address(False, "::1", 8000, "[::1]:8000", "/x/y")),
    ],
)
def test_an_address(url: str, address: Address) -> None:
    assert Address.parse(url) == address
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:8000",
        "ftp://a",
        "http://",
        "http://a:port",
        "http://a:99999",
        "http://a?b",
        "http://a#b",
        "http://[::1",
        "http://a/b c",
        "http://ä",
    ],
)
def test_no_address(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.parse(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["https://me:secret@a", "ftp://secret@a:port"])
def test_credentials_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="credentials") as caught:
        Address.parse(url)
    assert "secret" not in str(caught.value)


def test_the_scheme_decides() -> None:
    options = {"max_connections": 1, "timeouts": Timeouts()}
    assert isinstance(open_upstream("http://a", **options), Http1Upstream)
    assert isinstance(open_upstream("https://a", **options), HttpxUpstream)
