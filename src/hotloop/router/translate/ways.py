"""Which translation carries a request, if any does."""

from collections.abc import Mapping
from typing import Any

from hotloop.router.kinds import Api
from hotloop.router.translate.chain import Chain
from hotloop.router.translate.chat_to_messages.translation import ChatToMessages
from hotloop.router.translate.messages_to_chat.translation import MessagesToChat
from hotloop.router.translate.responses_to_chat.translation import ResponsesToChat
from hotloop.router.translate.translation import Translation

_WAYS: Mapping[Api, frozenset[Api]] = {
    "messages": frozenset({"chat"}),
    "chat": frozenset({"messages"}),
    "responses": frozenset({"chat", "messages"}),
}


def can_translate(api: Api, spoken: frozenset[Api]) -> bool:
    """Whether there is a way from the API of a request to one the replica speaks."""
    return not _WAYS.get(api, frozenset()).isdisjoint(spoken)


def translate(
    api: Api, spoken: frozenset[Api], body: Mapping[str, Any], *, is_strict: bool = False
) -> Translation | None:
    """From the API of a request to one the replica speaks; None if there is no way.

    `is_strict`: the replica refuses fields it does not know, as OpenAI's own API does and engines do not. Raises
    RequestError for a body that is wrong, or that says what the replica's API cannot.
    """
    assert api not in spoken
    match api:
        case "messages" if "chat" in spoken:
            return MessagesToChat(body, is_strict=is_strict)
        case "chat" if "messages" in spoken:
            return ChatToMessages(body)
        case "responses" if "chat" in spoken:
            return ResponsesToChat(body, is_strict=is_strict)
        case "responses" if "messages" in spoken:
            near = ResponsesToChat(body, is_strict=True)
            return Chain(near, ChatToMessages(near.request()[1]))
    return None
