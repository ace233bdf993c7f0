"""A request of OpenAI's responses, carried to a replica that speaks chat completions."""

from collections.abc import Mapping
from typing import Any

import msgspec

from hotloop.core.errors import RemoteError
from hotloop.router.translate.chat_shapes import read_completion
from hotloop.router.translate.failures import bad_answer, read_failure, render_chat_failure
from hotloop.router.translate.field import Field, Json, read_flag
from hotloop.router.translate.notes import Notes
from hotloop.router.translate.responses_to_chat.request import render_request
from hotloop.router.translate.responses_to_chat.stream import ResponseComposer
from hotloop.router.translate.responses_to_chat.tools import parse_toolbox
from hotloop.router.translate.stream import EventTranslation

PATH = "/v1/chat/completions"

_REPEATED = ("instructions", "max_output_tokens", "temperature", "top_p", "tools", "tool_choice", "metadata", "user")


class ResponsesToChat:
    """Raises RequestError for a body that is wrong, or says what a chat cannot."""

    def __init__(self, body: Mapping[str, Any], *, is_strict: bool) -> None:
        notes, given = Notes(), Field(dict(body))
        self._toolbox = parse_toolbox(given, notes)
        self._body = render_request(given, self._toolbox, notes, is_strict=is_strict)
        self._head = _render_head(given)
        self.notes = notes.all

    def request(self) -> tuple[str, Json]:
        return PATH, self._body

    def answer(self, status: int, body: bytes) -> tuple[int, bytes]:
        try:
            if status >= 300:
                raise read_failure(status, body)
            return status, msgspec.json.encode(self._compose(body))
        except RemoteError as error:
            refused, shape = render_chat_failure(error)
            return refused, msgspec.json.encode(shape)

    def stream(self) -> EventTranslation:
        return EventTranslation(ResponseComposer(self._head, self._toolbox))

    def _compose(self, body: bytes) -> Json:
        completion = read_completion(body)
        if completion.first is None or completion.first.message is None:
            raise bad_answer("it has no message")
        composer = ResponseComposer(self._head, self._toolbox)
        for _ in (*composer.take(completion), *composer.close()):
            pass
        return composer.response


def _render_head(body: Field) -> Json:
    """What the object says about its request, as it was given."""
    usual: Json = {"tools": [], "tool_choice": "auto", "metadata": {}, "temperature": 1.0, "top_p": 1.0}
    given = {name: body.object()[name] for name in _REPEATED if body.get(name) is not None}
    parallel = body.get("parallel_tool_calls")
    return {
        "object": "response",
        "model": body.need("model").text(),
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        **usual,
        **given,
        "parallel_tool_calls": parallel is None or read_flag(body, "parallel_tool_calls"),
        "previous_response_id": None,
        "store": False,
        "background": False,
    }
