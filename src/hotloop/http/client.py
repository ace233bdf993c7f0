"""How an HTTP client of ours is set up, and what it says when a server breaks off."""

import os
import ssl
from collections.abc import Mapping
from functools import cache

import httpx

from hotloop.core.errors import RemoteError

_CONNECT_S = 10.0


def open_client(
    headers: Mapping[str, str] | None = None,
    *,
    read_s: float | None = 600.0,
    keepalive_s: float | None = 60.0,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """As many connections as are asked for. A server that is there takes one at once, but may think long."""
    return httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(read_s, connect=_CONNECT_S, pool=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=keepalive_s),
        transport=transport,
        verify=_tls(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
    )


@cache
def _tls(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """One for all clients that trust the same: it takes longer to read the certificates than to ask a question."""
    return httpx.create_ssl_context()


def bearer(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def broke_off(url: str, error: Exception) -> RemoteError:
    return RemoteError(f"{url} broke off: {str(error) or type(error).__name__}")
