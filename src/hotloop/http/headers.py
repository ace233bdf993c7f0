"""Which headers go all the way, and which only to the next neighbour (RFC 9110, 7.6.1)."""

from collections.abc import Iterable

HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"})
HOP_BY_HOP |= {b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"}


def end_to_end(headers: Iterable[tuple[bytes, bytes]], *, keeps_length: bool = False) -> list[tuple[bytes, bytes]]:
    """Names in lower case, without the hop-by-hop ones and those that `connection` names. How long a body is, the next
    connection says itself, unless it is passed on byte for byte.
    """
    lowered = [(name.lower(), value) for name, value in headers]
    named = {option.strip().lower() for name, value in lowered if name == b"connection" for option in value.split(b",")}
    left_out = HOP_BY_HOP | named | (set() if keeps_length else {b"content-length"})
    return [header for header in lowered if header[0] not in left_out]
