"""What was answered, by any API, whole or as it was streamed: its parts, its id and what it says of its tokens."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from hotloop.core.errors import RemoteError
from hotloop.lint.part import Json, Part, listing, mapping
from hotloop.lint.shapes.chat import message_parts
from hotloop.lint.shapes.messages import turn_parts
from hotloop.lint.shapes.responses import item_parts
from hotloop.wire.chat.writer import ChatWriter
from hotloop.wire.event import Event, gather
from hotloop.wire.formats import FORMATS, Writer
from hotloop.wire.messages.writer import MessagesWriter
from hotloop.wire.part import Api
from hotloop.wire.reader import name_call
from hotloop.wire.responses.writer import ResponsesWriter
from hotloop.wire.sse import EventReader, ServerEvent
from hotloop.wire.usage import Usage, read_usage

_WRITERS: Mapping[Api, Callable[[], Writer]] = {
    "chat": lambda: ChatWriter(""),
    "messages": lambda: MessagesWriter(""),
    "responses": lambda: ResponsesWriter({"model": ""}),
}


@dataclass(frozen=True, slots=True)
class Answer:
    parts: tuple[Part, ...] = ()
    usage: Usage | None = None
    id: str = ""


def parse_answer(body: Any, api: Api) -> Answer:
    """The answer that a whole body is; an assistant's message alone will do."""
    given = mapping(body)
    parts = (replace(part, path=f"answer: {part.path}") for part in _parts(given, api))
    return Answer(tuple(parts), read_usage(given.get("usage")), str(given.get("id", "")))


def parse_stream(data: bytes, api: Api) -> Answer:
    """The answer that was streamed as these server-sent events, as far as it came."""
    return _parse_events(EventReader().push(data), api)


def join_events(events: Iterable[Json], api: Api) -> Answer:
    return _parse_events((ServerEvent("", msgspec.json.encode(event)) for event in events), api)


def _parse_events(events: Iterable[ServerEvent], api: Api) -> Answer:
    reader, heard = FORMATS[api].reader(name_call), list[Event]()
    try:
        for event in events:
            heard += reader.push(event)
        heard += reader.finish()
    except RemoteError:
        pass  # it broke off
    body = _WRITERS[api]().whole(heard)
    return replace(parse_answer(body, api), usage=reader.usage, id=gather(heard).id)


def _parts(body: Json, api: Api) -> Iterator[Part]:
    """An answer has no place in a request until it is sent back: its paths are its own."""
    if api == "messages":
        yield from turn_parts({"role": "assistant"} | body, 0)
    elif api == "responses":
        for i, item in enumerate(listing(body.get("output"))):
            yield from item_parts(mapping(item), i, f"output[{i}]")
    else:
        message = mapping(mapping(next(iter(listing(body.get("choices"))), body)).get("message")) or body
        yield from message_parts({"role": "assistant"} | message, 0)
