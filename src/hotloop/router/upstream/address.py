"""Where a replica is, read from its URL."""

from dataclasses import dataclass
from typing import Self

from hotloop.border.url import split_url

_DEFAULT_PORTS = {"http": 80, "https": 443}


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
        parts = split_url(url)
        host, port = parts.hostname or "", parts.port
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
