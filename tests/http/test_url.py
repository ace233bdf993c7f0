"""Addresses of servers."""

import pytest

from hotloop.core.errors import ConfigError
from hotloop.http.url import split_url


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
        split_url(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["https://me:secret@a", "ftp://secret@a:port"])
def test_credentials_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="credentials") as caught:
        split_url(url)
    assert "secret" not in str(caught.value)
