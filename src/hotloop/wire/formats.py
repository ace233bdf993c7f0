"""The three formats side by side: how each is parsed, rendered, read and written."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hotloop.core.errors import RemoteError
from hotloop.wire.chat import parse as chat_parse
from hotloop.wire.chat.reader import ChatReader
from hotloop.wire.chat.render import render_request as render_chat
from hotloop.wire.chat.writer import ChatWriter
from hotloop.wire.errors import render_chat_failure, render_message_failure
from hotloop.wire.event import Event
from hotloop.wire.field import Json
from hotloop.wire.messages import parse as messages_parse
from hotloop.wire.messages.reader import MessagesReader
from hotloop.wire.messages.render import render_request as render_messages
from hotloop.wire.messages.writer import MessagesWriter
from hotloop.wire.part import Api
from hotloop.wire.policy import Notes, Target
from hotloop.wire.reader import NameCall, Reader
from hotloop.wire.request import Request
from hotloop.wire.responses import parse as responses_parse
from hotloop.wire.responses.reader import ResponsesReader
from hotloop.wire.responses.render import render_request as render_responses
from hotloop.wire.responses.writer import ResponsesWriter, render_head


class Writer(Protocol):
    """One answer in one shape, from its events."""

    def write(self, event: Event) -> Iterator[bytes]: ...

    def fail(self, error: RemoteError) -> bytes: ...

    def whole(self, events: Iterable[Event]) -> Json: ...


@dataclass(frozen=True, slots=True)
class Format:
    path: str
    parse: Callable[[Mapping[str, Any], Notes], Request]
    check_portable: Callable[[Request], None]
    render: Callable[[Request, Target], Json]
    reader: Callable[[NameCall], Reader]
    writer: Callable[[Request, Mapping[str, Any]], Writer]
    """Given the request and its body."""
    render_failure: Callable[[RemoteError], tuple[int, Json]]


FORMATS: Mapping[Api, Format] = {
    "chat": Format(
        "/v1/chat/completions",
        chat_parse.parse_request,
        chat_parse.check_portable,
        render_chat,
        lambda name_call: ChatReader(name_call=name_call),
        lambda request, body: ChatWriter(request.model, has_usage=request.has_usage),
        render_chat_failure,
    ),
    "responses": Format(
        "/v1/responses",
        responses_parse.parse_request,
        responses_parse.check_portable,
        render_responses,
        lambda name_call: ResponsesReader(name_call=name_call),
        lambda request, body: ResponsesWriter(render_head(body), request.tools),
        render_chat_failure,
    ),
    "messages": Format(
        "/v1/messages",
        messages_parse.parse_request,
        messages_parse.check_portable,
        render_messages,
        lambda name_call: MessagesReader(name_call=name_call),
        lambda request, body: MessagesWriter(request.model),
        render_message_failure,
    ),
}
