"""One turn more translates to what there was, and more. What is only a mark changes no word of the prompt."""

from collections.abc import Callable
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


def assert_prefixes(
    translated: Callable[[Json], list[Any]], body: Json, num_least: int, *, must_grow: bool = False
) -> None:
    whole = translated(body)
    for num_turns in range(num_least, len(body["messages"])):
        shorter = translated({**body, "messages": body["messages"][:num_turns]})
        assert whole[: len(shorter)] == shorter
        assert not must_grow or len(shorter) < len(whole)


@given(message_bodies)
def test_a_longer_conversation_of_messages_begins_as_the_shorter_one(body: Json) -> None:
    assert_prefixes(to_chat, body, 1, must_grow=True)


@given(chat_bodies)
def test_a_longer_chat_begins_as_the_shorter_one(body: Json) -> None:
    assert_prefixes(to_blocks, body, 2)


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
