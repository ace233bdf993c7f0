"""What passes between the router and a replica: an `Ask` out, an `Answer` back, an `UpstreamFailed` when neither works.

Bytes are never touched: a body goes out as it was given and comes back piece by piece as it arrives. How a failure is
described decides what may follow it: before "body" nothing was heard of an answer, so another replica may be asked.
Nothing here knows what the bytes mean, or which replica was chosen and why.
"""

import os
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Protocol, Self

from hotloop.core.errors import HotloopError, RequestError

Headers = Sequence[tuple[bytes, bytes]]
Stage = Literal["connect", "send", "head", "body"]

_LINE_BREAK = re.compile(rb"[\0\r\n]")
_TARGET = re.compile(r"/[!-~]*")
_WHAT_FAILED: dict[Stage, str] = {
    "connect": "no connection to the replica",
    "send": "the replica did not take the request",
    "head": "the replica did not answer",
    "body": "the replica's answer broke off",
}


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """What a replica is sent."""

    method: str
    target: str
    """Path and query, such as `/v1/chat/completions`; the path of the replica's own address goes before it."""
    headers: Headers
    """All of them but host, content-length, connection and transfer-encoding, which are the connection's business."""
    body: bytes = b""


class UpstreamResponse(Protocol):
    """What a replica answered: a head, and a body still arriving."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers:
        """Names in lower case; without those that concern only the connection, and without content-length."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, nothing merged or held back. Raises UpstreamFailed if it breaks off."""
        ...

    async def aclose(self) -> None:
        """Read no more. Unless the body had come to its end, the connection is closed. May be called twice."""
        ...


class Upstream(Protocol):
    """Pooled connections to one replica."""

    @property
    def num_open(self) -> int:
        """Connections open or being opened, idle ones too; where answers share connections, answers under way."""
        ...

    async def send(self, ask: UpstreamRequest) -> UpstreamResponse:
        """The answer, once its head is there. Waits while all connections are taken. Raises UpstreamFailed."""
        ...

    async def aclose(self) -> None:
        """Close every connection, those in use too: drain first."""
        ...


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a replica may take. Waiting for a free connection is the caller's to bound."""

    connect_s: float = 2.0
    head_s: float = 600.0
    """From the first byte sent to the whole of the answer's head: a long prompt is read in this time."""
    idle_s: float = 300.0
    """Between two pieces of a body."""

    def expired(self, stage: Stage) -> "UpstreamFailed":
        """The failure of a replica that took longer than it may."""
        if stage == "connect":
            reason = f"it did not accept one in {self.connect_s:g} s"
        else:
            reason = f"nothing came for {self.idle_s if stage == 'body' else self.head_s:g} s"
        return UpstreamFailed(reason, stage=stage, is_timeout=True)


class UpstreamFailed(HotloopError):
    """A replica could not be reached, did not answer, or broke off.

    `stage`: "connect" (nothing was sent), "send" and "head" (nothing was answered), "body" (the answer had begun).
    The message names no address, so that it can be shown to a client.
    """

    def __init__(self, reason: str, *, stage: Stage, is_timeout: bool = False) -> None:
        super().__init__(f"{_WHAT_FAILED[stage]}: {reason}")
        self.stage: Stage = stage
        self.is_timeout = is_timeout

    @classmethod
    def removed(cls) -> Self:
        return cls("it was taken out of the fleet", stage="connect")


def describe(error: Exception) -> str:
    """In words, without the address that the system's own words hold."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__


def check_ask(ask: UpstreamRequest) -> None:
    """Raises RequestError if the replica could read it as something else than one request."""
    if not _TARGET.fullmatch(ask.target):
        raise RequestError("the target of a request is no path, or holds a space or a letter beyond ASCII")
    if _LINE_BREAK.search(b"".join(chain.from_iterable(ask.headers))):
        raise RequestError("a header of a request holds a line break")
