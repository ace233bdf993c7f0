"""A request of Anthropic's messages, carried to a replica that speaks chat completions."""

from collections.abc import Mapping
from typing import Any

import msgspec

from hotloop.core.errors import RemoteError
from hotloop.router.translate.chat_shapes import read_completion
from hotloop.router.translate.failures import read_failure, render_message_failure
from hotloop.router.translate.field import Field, Json
from hotloop.router.translate.messages_to_chat.answer import render_message
from hotloop.router.translate.messages_to_chat.request import render_request
from hotloop.router.translate.messages_to_chat.stream import MessageComposer
from hotloop.router.translate.messages_to_chat.writing import Writing
from hotloop.router.translate.notes import Notes
from hotloop.router.translate.stream import EventTranslation

PATH = "/v1/chat/completions"


class MessagesToChat:
    """Raises RequestError for a body that is wrong, or says what a chat cannot."""

    def __init__(self, body: Mapping[str, Any], *, is_strict: bool) -> None:
        notes = Notes()
        self._body = render_request(Field(dict(body)), Writing(notes, is_strict))
        self.notes = notes.all

    def request(self) -> tuple[str, Json]:
        return PATH, self._body

    def answer(self, status: int, body: bytes) -> tuple[int, bytes]:
        try:
            if status >= 300:
                raise read_failure(status, body)
            return status, msgspec.json.encode(render_message(read_completion(body), self._body["model"]))
        except RemoteError as error:
            refused, shape = render_message_failure(error)
            return refused, msgspec.json.encode(shape)

    def stream(self) -> EventTranslation:
        return EventTranslation(MessageComposer(self._body["model"]))
