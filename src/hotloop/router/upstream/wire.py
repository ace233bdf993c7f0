"""What passes between the router and a replica: an `UpstreamRequest` out, an `UpstreamResponse` back.

Bytes are never touched: a body goes out as it was given and comes back piece by piece as it arrives. The stage of an
`UpstreamFailed` decides what may follow: before "body" nothing of a response was seen, so another replica may be asked.
"""

import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Protocol, Self, TypeVar

import msgspec

from hotloop.core.errors import HotloopError, RequestError

T = TypeVar("T")

Headers = Sequence[tuple[bytes, bytes]]
Stage = Literal["connect", "send", "head", "body"]

_TCP = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
SOCKET_OPTIONS: Sequence[tuple[int, int, int]] = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _TCP.items() if hasattr(socket, name)),
)
"""Small writes leave at once, and a machine that vanished is noticed. Minutes of silence are ordinary during a prefill,
so keepalive probes and unacknowledged bytes decide, not silence."""

_LINE_BREAK = re.compile(rb"[\0\r\n]")
TARGET = re.compile(r"/[!-~]*")
_WHAT_FAILED: dict[Stage, str] = {
    "connect": "no connection to the replica",
    "send": "the replica did not take the request",
    "head": "the replica did not answer",
    "body": "the replica's answer broke off",
}


MayResend = Callable[[], bool]


def always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """`target` is path and query, behind the path of the replica's own address. `headers` are all but host,
    content-length, connection and transfer-encoding, which are the connection's business."""

    method: str
    target: str
    headers: Headers
    body: bytes = b""


class UpstreamResponse(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers:
        """Names in lower case; without hop-by-hop headers and content-length."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The body as it arrives: what has come since the last piece, nothing held back. Raises UpstreamFailed if it
        breaks off."""

    async def aclose(self) -> None:
        """Read no more. Unless the body had come to its end, the connection is closed. May be called twice."""


class Upstream(Protocol):
    """Pooled connections to one replica."""

    @property
    def num_open(self) -> int:
        """Connections open or being opened, idle ones too; where responses share connections, open responses."""

    async def send(self, request: UpstreamRequest, may_resend: MayResend = always) -> UpstreamResponse:
        """The response, once its head is there. Waits while all connections are taken. Raises UpstreamFailed.

        `may_resend` is asked before a request is sent once more because a kept connection was closed without an
        answer: whether the replica has run it by then cannot be known."""

    async def aclose(self) -> None:
        """Close every connection, those in use too: drain first."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a replica may take. Waiting for a free connection is the caller's to bound."""

    connect_s: float = 2.0
    head_s: float = 600.0
    """From the first byte sent to the whole of the head, which comes after the prefill of a long prompt."""
    idle_s: float = 300.0

    def expired(self, stage: Stage) -> "UpstreamFailed":
        if stage == "connect":
            reason = f"it did not accept one in {self.connect_s:g} s"
        else:
            reason = f"nothing came for {self.idle_s if stage == 'body' else self.head_s:g} s"
        return UpstreamFailed(reason, stage=stage, is_timeout=True)


class UpstreamFailed(HotloopError):
    """A replica could not be reached, did not answer, or broke off. The message names no address, so that it can be
    shown to a client."""

    def __init__(self, reason: str, *, stage: Stage, is_timeout: bool = False) -> None:
        super().__init__(f"{_WHAT_FAILED[stage]}: {reason}")
        self.reason = reason
        self.stage: Stage = stage
        self.is_timeout = is_timeout

    @classmethod
    def removed(cls) -> Self:
        return cls("it was taken out", stage="connect")

    @property
    def is_gone(self) -> bool:
        """Whether nobody listens there."""
        return self.stage == "connect" and not self.is_timeout


async def read_body(response: UpstreamResponse, max_bytes: int) -> bytes:
    """All of it. Raises UpstreamFailed, also where it is longer."""
    body = bytearray()
    async for chunk in response:
        body += chunk
        if len(body) > max_bytes:
            raise UpstreamFailed(f"it is larger than the {max_bytes} bytes that are held", stage="body")
    return bytes(body)


async def fetch(upstream: Upstream, request: UpstreamRequest, max_bytes: int) -> tuple[int, Headers, bytes]:
    response = await upstream.send(request)
    try:
        return response.status, response.headers, await read_body(response, max_bytes)
    finally:
        await response.aclose()


def parse_json(body: bytes, kind: type[T]) -> T | None:
    """What a replica said, if it is of that kind: None for bad UTF-8, numbers out of range, and nesting too deep."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError):  # those of msgspec are ValueErrors
        return None


def describe(error: Exception) -> str:
    """In words, without the address that the system's own words hold."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__


def check_request(request: UpstreamRequest) -> None:
    """Raises RequestError if the replica could read it as something else than one request."""
    if not TARGET.fullmatch(request.target):
        raise RequestError("the target of a request is no path, or holds a space or a letter beyond ASCII")
    if _LINE_BREAK.search(b"".join(chain.from_iterable(request.headers))):
        raise RequestError("a header of a request holds a line break")
