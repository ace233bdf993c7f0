"""Where a process listens."""

import socket

from hotloop.core.errors import ConfigError


def bind(host: str, port: int) -> socket.socket:
    """Raises ConfigError where that is not possible; port 0 takes a free one."""
    if not 0 <= port < 1 << 16:  # the resolver would quietly take the remainder
        raise ConfigError(f"cannot listen on {host}:{port}: port must be between 0 and 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


def url_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    host, port = listener.getsockname()[:2]
    return f"http{'s' * is_tls}://" + (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
