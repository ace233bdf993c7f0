"""A request in the API a client speaks, for a replica that speaks only another; and its answer back.

Pure functions of the body and of the bytes that come back. The same conversation one turn longer translates to what it
was, and more: this stands before a prefix cache.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from hotloop.core.errors import RemoteError
from hotloop.router.kinds import Api
from hotloop.wire.arguments import answer_stem
from hotloop.wire.errors import read_failure
from hotloop.wire.event import Event, gather
from hotloop.wire.field import Field, Json
from hotloop.wire.formats import FORMATS, Writer
from hotloop.wire.part import Api as Format
from hotloop.wire.policy import RenderTarget, check_portable
from hotloop.wire.readable import Reading
from hotloop.wire.reader import Reader
from hotloop.wire.responses.compact import ask_summary, render_compaction
from hotloop.wire.responses.writer import NO_SUMMARY, ResponsesWriter
from hotloop.wire.sse import EventReader, ServerEvent

# The first that a replica speaks is taken.
_WAYS: Mapping[Api, tuple[Format, ...]] = {
    "chat": ("responses", "messages"),
    "responses": ("chat", "messages"),
    "messages": ("chat", "responses"),
    "compaction": ("responses", "chat", "messages"),
}
# Said here already: the router has read them.
_ROUTED = ("priority", "session_id")


def can_translate(api: Api, spoken: frozenset[Api]) -> bool:
    return not spoken.isdisjoint(_WAYS.get(api, ()))


def translate(api: Api, spoken: frozenset[Api], body: Mapping[str, Any], *, is_strict: bool = False) -> "Translation":
    """From the API of a request to one the replica speaks, if it `can_translate`. `is_strict`: the replica refuses
    fields it does not know. Raises RequestError for a body that is wrong, or says what the replica's API cannot."""
    assert can_translate(api, spoken)
    far = next(way for way in _WAYS[api] if way in spoken)
    target = RenderTarget(is_strict=is_strict)
    if api == "compaction":
        return Compaction(far, body, target)
    assert api == "chat" or api == "responses" or api == "messages"
    return Translation(api, far, body, target)


class Translation:
    """One request. `near` is the client's API, `far` the replica's. `on_items` hears of the items that a response puts
    out, once it is whole."""

    def __init__(self, near: Format, far: Format, body: Mapping[str, Any], target: RenderTarget) -> None:
        self._near, self._far = FORMATS[near], FORMATS[far]
        self.on_items: Callable[[list[Json]], None] = lambda items: None
        self._given = body
        request = self._near.parse(body, target.notes)
        check_portable(request)
        fields = {name: value for name, value in request.fields.items() if name not in _ROUTED}
        reading = Reading(is_for_other_api=True)
        reading.check(request.turns)
        own = dict(request.own)
        if own.pop("reasoning.summary", None):
            target.notes.add(NO_SUMMARY)
        self._request = replace(request, fields=fields, turns=reading.read(request.turns))
        for change in reading.changes:
            target.notes.add(change)
        self._body = self._far.render(replace(self._request, own=own), target)
        self._call_word = "toolu" if near == "messages" else "call"
        self.notes = target.notes.all

    def request(self) -> tuple[str, Json]:
        return self._far.path, self._body

    def answer(self, status: int, body: bytes) -> tuple[int, bytes]:
        try:
            if status >= 300:
                raise read_failure(status, body)
            return status, msgspec.json.encode(self._write(self._reader().whole(body)))
        except RemoteError as error:
            refused, shape = self._near.render_failure(error)
            return refused, msgspec.json.encode(shape)

    def stream(self) -> "StreamTranslation":
        writer = self._writer()
        return StreamTranslation(self._reader(), writer, lambda: self._tell_items(writer))

    def _write(self, events: Iterable[Event]) -> Json:
        writer = self._writer()
        written = writer.whole(events)
        self._tell_items(writer)
        return written

    def _tell_items(self, writer: Writer) -> None:
        if isinstance(writer, ResponsesWriter):
            self.on_items(writer.render()["output"])

    def _reader(self) -> Reader:
        return self._far.reader(lambda stem, number: f"{self._call_word}_{stem}_{number}")

    def _writer(self) -> Writer:
        return self._near.writer(self._request, self._given)


class Compaction(Translation):
    """A conversation that a replica makes shorter by answering a request for a summary."""

    def __init__(self, far: Format, body: Mapping[str, Any], target: RenderTarget) -> None:
        given = Field(body).need("input")
        said = {"role": "user", "content": given.value}
        self._items = [said] if given.is_text else [item.object() for item in given.each()]
        super().__init__("responses", far, ask_summary(dict(body), self._items), target)

    def _write(self, events: Iterable[Event]) -> Json:
        answer = gather(events)
        if not answer.text.strip():
            raise RemoteError("the model wrote no summary: the conversation is as long as it was", status=502)
        return render_compaction(answer_stem(answer.id), self._items, answer.text.strip(), answer.ended.usage)


class StreamTranslation:
    """A replica's stream in the client's shape: exactly one end, whatever happens. `on_end` is called where it came to
    its own."""

    def __init__(self, reader: Reader, writer: Writer, on_end: Callable[[], None] = lambda: None) -> None:
        self._events = EventReader()
        self._reader = reader
        self._writer = writer
        self._is_over = False
        self._on_end = on_end

    def feed(self, chunk: bytes) -> bytes:
        return self._translate(self._events.push(chunk))

    def end(self, error: str | None = None) -> bytes:
        """After the replica's last byte; `error` says why, if it broke off."""
        if error is not None and not self._reader.is_over:
            return self._fail(RemoteError(error, status=502))
        ending = self._translate(self._events.finish()) + self._write(self._reader.finish())
        if not self._is_over:
            self._on_end()
        self._is_over = True
        return ending

    def _translate(self, events: Iterable[ServerEvent]) -> bytes:
        return self._write(read for event in events for read in self._reader.push(event))

    def _write(self, events: Iterator[Event]) -> bytes:
        """What there is to say, up to and with a failure, after which there is nothing."""
        written: list[bytes] = []
        try:
            for event in () if self._is_over else events:
                written += self._writer.write(event)
        except RemoteError as error:
            written.append(self._fail(error))
        return b"".join(written)

    def _fail(self, error: RemoteError) -> bytes:
        if self._is_over:
            return b""
        self._is_over = True
        return self._writer.fail(error)
