"""Two translations as one, where no one leads straight to what a replica speaks."""

from hotloop.router.translate.field import Json
from hotloop.router.translate.translation import StreamTranslation, Translation


class Chain:
    """`near` is the client's side, `far` the replica's."""

    def __init__(self, near: Translation, far: Translation) -> None:
        self._near = near
        self._far = far
        self.notes = tuple(dict.fromkeys(near.notes + far.notes))

    def request(self) -> tuple[str, Json]:
        return self._far.request()

    def answer(self, status: int, body: bytes) -> tuple[int, bytes]:
        return self._near.answer(*self._far.answer(status, body))

    def stream(self) -> "StreamChain":
        return StreamChain(self._near.stream(), self._far.stream())


class StreamChain:
    def __init__(self, near: StreamTranslation, far: StreamTranslation) -> None:
        self._near = near
        self._far = far

    def feed(self, chunk: bytes) -> bytes:
        return self._near.feed(self._far.feed(chunk))

    def end(self, error: str | None = None) -> bytes:
        """Why it broke off is among the far side's last words."""
        return self._near.feed(self._far.end(error)) + self._near.end()
