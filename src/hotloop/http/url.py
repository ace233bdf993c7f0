"""The address of a server, as a person gives it. Refuses what nobody here can honour, and never repeats a secret."""

import re
from urllib.parse import SplitResult, urlsplit

from hotloop.core.errors import ConfigError

_SCHEMES = ("http", "https")
_CREDENTIALS = re.compile(r"[^/]*//[^/]*@")
_PLAIN = re.compile(r"[!-~]*")


def check_url(url: str) -> str:
    """The address without its last slash, as it may be shown. Raises ConfigError."""
    split_url(url)
    return url.rstrip("/")


def split_url(url: str) -> SplitResult:
    """Raises ConfigError where it is not the address of a server, or more than that."""
    if _CREDENTIALS.match(url):
        raise ConfigError("URLs must not contain credentials (they would be logged): pass an API key instead")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not an address: {error}") from None
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ConfigError(f"{url!r} is not an address: write http://host:port or https://host")
    if parts.query or parts.fragment:
        raise ConfigError(f"{url!r} is not an address of a server: it holds a query or a fragment")
    if not _PLAIN.fullmatch(parts.netloc + parts.path):
        raise ConfigError(f"{url!r} is not an address: it holds a space or a letter beyond ASCII")
    return parts
