"""A stream from one API to another: events in, events out, and exactly one end, whatever happens.

What the events mean is the composer's business; it never sees a byte.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from hotloop.border.sse import EventReader, ServerEvent
from hotloop.core.errors import RemoteError
from hotloop.router.translate.failures import bad_answer


class Composer(Protocol):
    """One answer in the client's shape, composed from a replica's events. It raises RemoteError to fail."""

    is_whole: bool
    """Whether the last word has been said."""

    def push(self, event: ServerEvent) -> Iterator[bytes]: ...

    def finish(self) -> Iterator[bytes]:
        """There are no more events: the last words, or RemoteError if the answer is not whole."""
        ...

    def fail(self, error: RemoteError) -> bytes: ...


class EventTranslation:
    """Told the bytes of a stream."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer
        self._reader = EventReader()
        self._is_over = False

    def feed(self, chunk: bytes) -> bytes:
        return self._write(self._pass_on(self._reader.push(chunk)))

    def end(self, error: str | None = None) -> bytes:
        if error is not None and not self._composer.is_whole:
            return self._fail(RemoteError(error, status=502))
        ending = self._write(self._pass_on(self._reader.finish()))
        if not self._composer.is_whole:
            ending += self._write(self._composer.finish())
        self._is_over = True
        return ending

    def _pass_on(self, events: Iterable[ServerEvent]) -> Iterator[bytes]:
        for event in events:
            if self._composer.is_whole:
                return
            yield from self._composer.push(event)

    def _write(self, pieces: Iterator[bytes]) -> bytes:
        """What there is to say, up to and with a failure, after which there is nothing."""
        written: list[bytes] = []
        try:
            for piece in () if self._is_over else pieces:
                written.append(piece)  # noqa: PERF402 (what came before a failure is kept)
        except RemoteError as error:
            written.append(self._fail(error))
        return b"".join(written)

    def _fail(self, error: RemoteError) -> bytes:
        if self._is_over:
            return b""
        self._is_over = True
        return self._composer.fail(error)


def broke_off() -> RemoteError:
    return bad_answer("it ended before it was whole")
