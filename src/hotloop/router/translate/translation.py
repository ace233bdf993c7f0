"""What a translation is: from the API a client speaks to the one a replica speaks, and back."""

from typing import Protocol

from hotloop.router.translate.field import Json


class StreamTranslation(Protocol):
    """A replica's stream in the client's shape. Nothing is held back but what is cut off in the middle."""

    def feed(self, chunk: bytes) -> bytes: ...

    def end(self, error: str | None = None) -> bytes:
        """After the replica's last byte; `error` says why, if it broke off. Every stream ends exactly once."""
        ...


class Translation(Protocol):
    """One per request; pure, no I/O. Made by `translate`, which refuses what cannot be said."""

    notes: tuple[str, ...]
    """What could not be carried over, in words."""

    def request(self) -> tuple[str, Json]:
        """The path and the body for the replica."""
        ...

    def answer(self, status: int, body: bytes) -> tuple[int, bytes]:
        """A whole answer or an error."""
        ...

    def stream(self) -> StreamTranslation: ...
