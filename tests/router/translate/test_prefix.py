"""One turn more translates to what there was, and more. What is only a mark changes no word of the prompt."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.router.translate.conversations import Json, chat_bodies, message_bodies
from tests.router.translate.replicas import CHAT, MESSAGES

from hotloop.router.translate import translate

KEPT: Json = {"type": "ephemeral"}


def to_chat(body: Json) -> list[Json]:
    translation = translate("messages", CHAT, body)
    messages: list[Json] = translation.request()[1]["messages"]
    return messages


def to_blocks(body: Json) -> list[tuple[str, Json]]:
    """The system prompt and the turns, block for block."""
    translation = translate("chat", MESSAGES, body)
    asked = translation.request()[1]
    turns = [(turn["role"], block) for turn in asked["messages"] for block in turn["content"]]
    return [("system", block) for block in asked.get("system", ())] + turns


@given(message_bodies)
def test_a_longer_conversation_of_messages_begins_as_the_shorter_one(body: Json) -> None:
    whole = to_chat(body)
    for num_turns in range(1, len(body["messages"])):
        shorter = to_chat({**body, "messages": body["messages"][:num_turns]})
        assert whole[: len(shorter)] == shorter
        assert len(shorter) < len(whole)


@given(chat_bodies)
def test_a_longer_chat_begins_as_the_shorter_one(body: Json) -> None:
    whole = to_blocks(body)
    for num_messages in range(2, len(body["messages"])):
        shorter = to_blocks({**body, "messages": body["messages"][:num_messages]})
        assert whole[: len(shorter)] == shorter


@given(message_bodies)
def test_the_same_body_is_always_the_same_request(body: Json) -> None:
    assert to_chat(body) == to_chat(body)


def marked(turn: Json) -> Json:
    """As clients mark the end of what they send."""
    if isinstance(turn["content"], str):
        return turn
    return {**turn, "content": [*turn["content"][:-1], {**turn["content"][-1], "cache_control": KEPT}]}


def plain(message: Json) -> Any:
    """Without marks; a text is a list of one."""
    content = message["content"]
    if not isinstance(content, list):
        return message
    parts = [{name: value for name, value in part.items() if name != "cache_control"} for part in content]
    is_one_text = message["role"] == "tool" and len(parts) == 1
    return {**message, "content": parts[0]["text"] if is_one_text else parts}


@given(message_bodies, st.integers(0, 5))
def test_a_mark_that_moves_changes_no_word(body: Json, place: int) -> None:
    turns = [marked(turn) if i == place else turn for i, turn in enumerate(body["messages"])]
    assert [plain(message) for message in to_chat({**body, "messages": turns})] == to_chat(body)
