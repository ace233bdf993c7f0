"""The three formats side by side: how each is parsed, rendered, read and written."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hotloop.core.errors import RemoteError
from hotloop.wire.chat.parse import parse_request as parse_chat
from hotloop.wire.chat.reader import ChatReader
from hotloop.wire.chat.render import render_request as render_chat
from hotloop.wire.chat.writer import ChatWriter
from hotloop.wire.errors import render_chat_failure, render_message_failure
from hotloop.wire.event import Event
from hotloop.wire.field import Json
from hotloop.wire.messages.parse import parse_request as parse_messages
from hotloop.wire.messages.reader import MessagesReader
from hotloop.wire.messages.render import render_request as render_messages
from hotloop.wire.messages.writer import MessagesWriter
from hotloop.wire.part import Api
from hotloop.wire.policy import Notes, RenderTarget
from hotloop.wire.reader import NameCall, Reader
from hotloop.wire.request import ApiRequest
from hotloop.wire.responses.parse import parse_request as parse_responses
from hotloop.wire.responses.reader import ResponsesReader
from hotloop.wire.responses.render import render_request as render_responses
from hotloop.wire.responses.writer import ResponsesWriter, ThoughtShape, render_head


class Writer(Protocol):
    """One answer in one shape, from its events."""

    def write(self, event: Event) -> Iterator[bytes]: ...

    def fail(self, error: RemoteError) -> bytes: ...

    def whole(self, events: Iterable[Event]) -> Json: ...


@dataclass(frozen=True, slots=True)
class Format:
    path: str
    parse: Callable[[Mapping[str, Any], Notes], ApiRequest]
    render: Callable[[ApiRequest, RenderTarget], Json]
    reader: Callable[[NameCall], Reader]
    writer: Callable[[ApiRequest, Mapping[str, Any]], Writer]
    render_failure: Callable[[RemoteError], tuple[int, Json]]


FORMATS: Mapping[Api, Format] = {
    "chat": Format(
        "/v1/chat/completions",
        parse_chat,
        render_chat,
        ChatReader,
        lambda request, body: ChatWriter(
            request.model, has_usage=request.has_usage, is_legacy=request.is_legacy, custom=request.custom_names
        ),
        render_chat_failure,
    ),
    "responses": Format(
        "/v1/responses",
        parse_responses,
        render_responses,
        ResponsesReader,
        lambda request, body: ResponsesWriter(render_head(body), request.tools, ThoughtShape.asked_for(request)),
        render_chat_failure,
    ),
    "messages": Format(
        "/v1/messages",
        parse_messages,
        render_messages,
        MessagesReader,
        lambda request, body: MessagesWriter(request.model, omits_thoughts=request.omits_thoughts),
        render_message_failure,
    ),
}
