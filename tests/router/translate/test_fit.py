"""What replicas are sent fits the types of the clients that usually send it, all the way down."""

from collections.abc import Iterator
from typing import Any

from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from hypothesis import given
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter
from tests.router.translate.conversations import Json, chat_bodies, message_bodies
from tests.router.translate.replicas import CHAT, MESSAGES
from tests.router.translate.test_untrusted import FULL, FULL_CHAT

from hotloop.router.translate import translate

CHAT_BODY: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
MESSAGES_BODY: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)


def look_through(value: Any) -> None:
    """Lists are checked while they are read."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, Iterator | list) else ():
        look_through(inner)


@given(message_bodies)
def test_messages_become_a_chat(body: Json) -> None:
    translation = translate("messages", CHAT, {**FULL, **body}, is_strict=True)
    look_through(CHAT_BODY.validate_python(translation.request()[1]))


@given(chat_bodies)
def test_a_chat_becomes_messages(body: Json) -> None:
    translation = translate("chat", MESSAGES, {**FULL_CHAT, **body})
    look_through(MESSAGES_BODY.validate_python(translation.request()[1]))
