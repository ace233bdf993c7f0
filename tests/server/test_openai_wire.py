"""How the fields both endpoints share are read."""

from typing import Any

import pytest

from hotloop.core.message import Thought
from hotloop.core.request import Priority
from hotloop.server.openai.chat import ChatBody, parse_chat_sampling, parse_messages
from hotloop.server.openai.wire import parse_priority, parse_session_id


def body(**fields: Any) -> ChatBody:
    return ChatBody(messages=[], **fields)


@pytest.mark.parametrize(
    ("fields", "headers", "priority"),
    [
        ({}, {}, Priority.INTERACTIVE),
        ({"priority": "workflow"}, {}, Priority.WORKFLOW),
        ({}, {"x-hotloop-priority": "background"}, Priority.BACKGROUND),
        ({"priority": "workflow"}, {"x-hotloop-priority": "background"}, Priority.WORKFLOW),
        ({"service_tier": "flex"}, {}, Priority.BACKGROUND),
        ({"service_tier": "flex", "priority": "interactive"}, {}, Priority.INTERACTIVE),
        ({"service_tier": "auto"}, {}, Priority.INTERACTIVE),
    ],
)
def test_priority(fields: dict[str, Any], headers: dict[str, str], priority: Priority) -> None:
    assert parse_priority(body(**fields), headers) is priority


@pytest.mark.parametrize(
    ("fields", "headers", "session_id"),
    [
        ({}, {}, ""),
        ({"user": "u"}, {}, "u"),
        ({"user": "u", "prompt_cache_key": "k"}, {}, "k"),
        ({"prompt_cache_key": "k"}, {"x-session-affinity": "a"}, "a"),
        ({}, {"x-claude-code-session-id": "c"}, "c"),
        ({}, {"session-id": "s"}, "s"),
        ({}, {"thread-id": "t"}, "t"),
        ({}, {"x-dynamo-session-id": "d"}, "d"),
        ({}, {"x-session-id": "x", "x-dynamo-session-id": "d"}, "x"),
        ({"session_id": "b"}, {"x-session-id": "x"}, "b"),
        ({"session_id": "b" * 999}, {}, "b" * 256),
    ],
)
def test_session_id(fields: dict[str, Any], headers: dict[str, str], session_id: str) -> None:
    assert parse_session_id(body(**fields), headers) == session_id


def test_sampling_parameters_reach_the_engine_under_its_own_names() -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {5: 1.0},
        "seed": 9,
        "min_tokens": 2,
        "ignore_eos": True,
        "shortcuts": False,
    }
    others = {"max_tokens": 3, "max_completion_tokens": 4, "stop": "x", "stop_token_ids": [1], "logprobs": True}
    sampling = parse_chat_sampling(body(**fields, **others, include_stop_str_in_output=True), 10)
    assert {name: getattr(sampling, name) for name in fields} == fields
    assert (sampling.max_tokens, sampling.stop, sampling.stop_token_ids) == (4, ("x",), {1})
    assert (sampling.include_stop, sampling.logprobs) == (True, 0)


def test_an_answer_in_parts_was_one_text_and_other_parts_are_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [{"role": "assistant", "content": parts}, {"role": "user", "content": parts}]
    messages = parse_messages(given)
    assert [message.content for message in messages] == ["ab", "a\nb"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_a_model_thought_is_not_dropped(name: str) -> None:
    [message] = parse_messages([{"role": "assistant", "content": "Hi.", name: "Hm."}])
    assert (message.content, message.thoughts) == ("Hi.", (Thought("Hm."),))
