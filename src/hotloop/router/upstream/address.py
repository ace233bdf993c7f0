"""Where a replica is, read from its URL. Refuses what it cannot honour: credentials, queries, other schemes."""

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, urlsplit

from hotloop.core.errors import ConfigError

_DEFAULT_PORTS = {"http": 80, "https": 443}
_CREDENTIALS = re.compile(r"[^/]*//[^/]*@")
_PLAIN = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, and the path before every target."""

    is_encrypted: bool
    host: str
    port: int
    authority: str
    """What the host header says."""
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ConfigError if a replica cannot live there."""
        if _CREDENTIALS.match(url):
            raise ConfigError("an address of a replica holds credentials: they belong in its api_key")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is not an address: {error}") from None
        _check(url, parts)
        host = parts.hostname or ""
        name = f"[{host}]" if ":" in host else host
        default_port = _DEFAULT_PORTS[parts.scheme]
        return cls(
            is_encrypted=parts.scheme == "https",
            host=host,
            port=port or default_port,
            authority=name if port in (None, default_port) else f"{name}:{port}",
            prefix=parts.path.rstrip("/"),
        )

    def __str__(self) -> str:
        return f"{'https' if self.is_encrypted else 'http'}://{self.authority}{self.prefix}"


def _check(url: str, parts: SplitResult) -> None:
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ConfigError(f"{url!r} is not an address: it should look like http://host:port")
    if parts.query or parts.fragment:
        raise ConfigError(f"{url!r} is not a replica's address: it holds a query or a fragment")
    if not _PLAIN.fullmatch(parts.netloc + parts.path):
        raise ConfigError(f"{url!r} is not an address: it holds a space or a letter beyond ASCII")
