"""How the fields all endpoints share are read."""

from collections.abc import Mapping
from typing import Any

import pytest

from hotloop.core.message import Message, Thought
from hotloop.core.request import Priority
from hotloop.server.chat_input import parse_chat_input
from hotloop.server.options import Options, parse_hints, parse_options, parse_sampling
from hotloop.server.turns import parse_turns
from hotloop.wire.chat.parse import parse_request
from hotloop.wire.policy import Notes
from hotloop.wire.request import ApiRequest


def read(**fields: Any) -> tuple[ApiRequest, Options]:
    request = parse_request({"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}, Notes())
    return request, parse_options(request, Options)


def parse_messages(messages: list[Any]) -> tuple[Message, ...]:
    return parse_turns(parse_request({"model": "m", "messages": messages}, Notes()).turns, "chat").messages


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
    assert parse_hints(*read(**fields), headers).priority is priority


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
        ({"session_id": "b" * 256}, {}, "b" * 256),
    ],
)
def test_session_id(fields: dict[str, Any], headers: dict[str, str], session_id: str) -> None:
    assert parse_hints(*read(**fields), headers).session == session_id


def test_sampling_parameters_reach_the_engine_under_its_own_names() -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"5": 1.0},
        "seed": 9,
        "min_tokens": 2,
        "ignore_eos": True,
        "shortcuts": False,
    }
    others = {"max_tokens": 3, "max_completion_tokens": 4, "stop": "x", "stop_token_ids": [1]}
    request, options = read(**fields, **others, include_stop_str_in_output=True)
    sampling = parse_sampling(request, options, 10, max_tokens=request.max_tokens)
    assert {name: getattr(sampling, name) for name in fields} == fields | {"logit_bias": {5: 1.0}}
    assert (sampling.max_tokens, sampling.stop, sampling.stop_token_ids) == (4, ("x",), {1})
    assert sampling.include_stop


def test_an_answer_in_parts_was_one_text_and_other_parts_are_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [{"role": "assistant", "content": parts}, {"role": "user", "content": parts}]
    messages = parse_messages(given)
    assert [message.content for message in messages] == ["ab", "a\nb"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_a_model_thought_is_not_dropped(name: str) -> None:
    [message] = parse_messages([{"role": "assistant", "content": "Hi.", name: "Hm."}])
    assert (message.content, message.thoughts) == ("Hi.", (Thought("Hm."),))


def template_variables(**fields: Any) -> Mapping[str, Any]:
    request, options = read(**fields)
    given = parse_chat_input(request, options, is_strict=True)
    return {**given.reasoning.variables("{{ enable_thinking }}"), **given.extra}


@pytest.mark.parametrize(
    ("kind", "expected"), [("enabled", True), ("adaptive", True), ("between_tools", None), ("disabled", False)]
)
def test_thinking_can_be_asked_for_and_forbidden(kind: str, expected: bool | None) -> None:
    variables = template_variables(thinking={"type": kind, "budget_tokens": 1024})
    assert variables == ({} if expected is None else {"enable_thinking": expected})


def test_a_template_is_told_what_the_request_says() -> None:
    variables = template_variables(thinking={"type": "disabled"}, chat_template_kwargs={"a": 1})
    assert variables == {"enable_thinking": False, "a": 1}
