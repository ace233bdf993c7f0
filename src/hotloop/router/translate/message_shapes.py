"""The answers of Anthropic's messages, whole and as the events of a stream, as far as they are carried over."""

from typing import Any, TypeVar

import msgspec

from hotloop.router.translate.failures import bad_answer, read_event_failure
from hotloop.router.translate.usage import MessageUsage


class Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage | None = None
    type: str = ""
    error: Any = None


class Delta(msgspec.Struct):
    """Of a block, or of the message."""

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class MessageEvent(msgspec.Struct):
    type: str
    message: Message | None = None
    content_block: Block | None = None
    delta: Delta | None = None
    usage: MessageUsage | None = None
    error: Any = None


Shape = TypeVar("Shape", bound=msgspec.Struct)

_message = msgspec.json.Decoder(Message)
_event = msgspec.json.Decoder(MessageEvent)


def read_message(data: bytes) -> Message:
    """Raises RemoteError if it makes no sense, or tells of a failure."""
    message = _read(_message, data)
    if message.type == "error":
        raise read_event_failure({"error": message.error})
    return message


def read_message_event(data: bytes) -> MessageEvent:
    event = _read(_event, data)
    if event.type == "error":
        raise read_event_failure({"error": event.error})
    return event


def _read(decoder: msgspec.json.Decoder[Shape], data: bytes) -> Shape:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_answer(error) from None
