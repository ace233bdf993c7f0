"""A request of OpenAI's chat completions, carried to a replica that speaks Anthropic's messages."""

from collections.abc import Mapping
from typing import Any

import msgspec

from hotloop.core.errors import RemoteError
from hotloop.router.translate.chat_to_messages.answer import render_completion
from hotloop.router.translate.chat_to_messages.request import render_request
from hotloop.router.translate.chat_to_messages.stream import ChunkComposer
from hotloop.router.translate.failures import read_failure, render_chat_failure
from hotloop.router.translate.field import Field, Json, read_flag
from hotloop.router.translate.message_shapes import read_message
from hotloop.router.translate.notes import Notes
from hotloop.router.translate.stream import EventTranslation

PATH = "/v1/messages"


class ChatToMessages:
    """Raises RequestError for a body that is wrong, or says what messages cannot."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        notes, given = Notes(), Field(dict(body))
        self._body = render_request(given, notes)
        options = given.get("stream_options")
        self._has_usage = options is not None and read_flag(options, "include_usage")
        self.notes = notes.all

    def request(self) -> tuple[str, Json]:
        return PATH, self._body

    def answer(self, status: int, body: bytes) -> tuple[int, bytes]:
        try:
            if status >= 300:
                raise read_failure(status, body)
            return status, msgspec.json.encode(render_completion(read_message(body), self._body["model"]))
        except RemoteError as error:
            refused, shape = render_chat_failure(error)
            return refused, msgspec.json.encode(shape)

    def stream(self) -> EventTranslation:
        return EventTranslation(ChunkComposer(self._body["model"], has_usage=self._has_usage))
