"""What an OpenAI client asks, as a replica that speaks Anthropic's messages hears it."""

from typing import Any

import msgspec
import pytest
from tests.router.translate.replicas import MESSAGES, Json

from hotloop.core.errors import RequestError
from hotloop.router.translate import translate

KEPT: Json = {"type": "ephemeral"}
TOOL: Json = {"type": "function", "function": {"name": "f", "description": "does", "parameters": {"properties": {}}}}
CALL: Json = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def ask(*messages: Json, **fields: Any) -> tuple[Json, tuple[str, ...]]:
    given = list(messages) or [{"role": "user", "content": "hi"}]
    translation = translate("chat", MESSAGES, {"model": "m", "max_tokens": 5, "messages": given, **fields})
    path, rendered = translation.request()
    assert path == "/v1/messages"
    return rendered, translation.notes


def text(words: str, **more: Any) -> Json:
    return {"type": "text", "text": words, **more}


def test_the_plainest_request_loses_nothing() -> None:
    system, user = {"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}
    fields: Json = {
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": "a",
        "n": 1,
        "user": "u",
        "stream": True,
        "logprobs": False,
    }
    body, notes = ask(system, user, **fields)
    assert body == {
        "model": "m",
        "max_tokens": 5,
        "system": [text("be kind")],
        "messages": [{"role": "user", "content": [text("hi")]}],
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["a"],
        "stream": True,
        "metadata": {"user_id": "u"},
    }
    assert notes == ()


def test_results_of_one_turn_and_the_users_words_are_one_turn() -> None:
    body, _ = ask(
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "b"}]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": [text("2")]},
        {"role": "user", "content": "and?"},
    )
    _, called, answered = body["messages"]
    first = {"type": "tool_use", "id": "functions_f_0", "name": "f", "input": {"a": 1}}
    assert called == {"role": "assistant", "content": [first, {**first, "id": "b"}]}
    assert answered["content"] == [
        {"type": "tool_result", "tool_use_id": "functions_f_0", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": [text("2")]},
        text("and?"),
    ]


def test_a_late_system_message_stays_where_it_is() -> None:
    late = {"role": "developer", "content": "now in French"}
    body, notes = ask({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, late)
    assert body["messages"][2] == {"role": "user", "content": [text("now in French")]}
    assert "system" not in body
    assert len(notes) == 1


def test_pictures_and_files() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,BB"}},
    ]
    body, _ = ask({"role": "user", "content": parts})
    data, link, file = body["messages"][0]["content"]
    assert data["source"] == {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    assert link["source"] == {"type": "url", "url": "https://x/y.png"}
    assert file == {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "BB"},
        "title": "a.pdf",
    }


def test_texts_with_nothing_in_them_are_left_out() -> None:
    parts = [text(" "), text("a")]
    body, _ = ask({"role": "system", "content": ""}, {"role": "user", "content": parts})
    assert body["messages"] == [{"role": "user", "content": [text("a")]}]
    assert "system" not in body


def test_marks_are_kept() -> None:
    tool = {**TOOL, "cache_control": KEPT}
    body, notes = ask(
        {"role": "user", "content": [text("a", prompt_cache_breakpoint={"mode": "explicit", "ttl": "30m"}), text("b")]},
        {"role": "assistant", "content": "c", "cache_control": KEPT, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "x", "content": "d", "cache_control": KEPT},
        tools=[tool],
    )
    assert body["tools"][0]["cache_control"] == KEPT
    user, assistant, result = (turn["content"] for turn in body["messages"])
    assert user == [text("a", cache_control={"type": "ephemeral", "ttl": "1h"}), text("b")]
    assert ["cache_control" in block for block in assistant] == [False, True]
    assert result[0]["cache_control"] == KEPT
    assert notes == ()


@pytest.mark.parametrize(
    ("fields", "control", "num_notes"),
    [
        ({}, None, 0),
        ({"prompt_cache_key": "k"}, {"type": "ephemeral"}, 0),
        ({"prompt_cache_retention": "in_memory"}, {"type": "ephemeral", "ttl": "5m"}, 0),
        ({"prompt_cache_retention": "24h"}, {"type": "ephemeral", "ttl": "1h"}, 1),
        ({"prompt_cache_options": {"ttl": "30m"}}, {"type": "ephemeral", "ttl": "1h"}, 0),
        ({"prompt_cache_options": {"mode": "explicit"}}, None, 0),
        ({"cache_control": {"type": "ephemeral", "ttl": "5m"}}, {"type": "ephemeral", "ttl": "5m"}, 0),
    ],
)
def test_a_chat_that_speaks_of_its_cache_is_kept(fields: Json, control: Json | None, num_notes: int) -> None:
    body, notes = ask(**fields)
    assert body.get("cache_control") == control
    assert len(notes) == num_notes


def test_tools_always_have_an_object_for_a_schema() -> None:
    body, _ = ask(tools=[TOOL, {"type": "function", "function": {"name": "g", "strict": True}}])
    assert body["tools"] == [
        {"name": "f", "description": "does", "input_schema": {"type": "object", "properties": {}}},
        {"name": "g", "input_schema": {"type": "object", "properties": {}}, "strict": True},
    ]
    assert "tool_choice" not in body


@pytest.mark.parametrize(
    ("choice", "is_parallel", "told"),
    [
        ("auto", True, None),
        ("none", False, {"type": "none"}),
        ("required", True, {"type": "any"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"type": "function", "function": {"name": "f"}}, True, {"type": "tool", "name": "f"}),
    ],
)
def test_tool_choice(choice: Any, is_parallel: bool, told: Json | None) -> None:
    body, _ = ask(tools=[TOOL], tool_choice=choice, parallel_tool_calls=is_parallel)
    assert body.get("tool_choice") == told


def test_allowed_tools_are_the_only_ones_shown() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}
    body, notes = ask(tools=[TOOL, other], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert [tool["name"] for tool in body["tools"]] == ["g"]
    assert body["tool_choice"] == {"type": "any"}
    assert len(notes) == 1


def test_what_has_no_counterpart_is_told() -> None:
    body, notes = ask(
        max_tokens=None, temperature=1.7, seed=4, stop=["\n", "x"], service_tier="flex", metadata={"a": "b"}
    )
    assert (body["max_tokens"], body["temperature"], body["stop_sequences"]) == (8192, 1.0, ["x"])
    assert notes == (
        "not known to the replica's API: metadata, seed",
        "max_tokens is not given: 8192",
        "temperature: 1.7 becomes 1, the highest there is",
        "stop: whitespace alone is not supported there",
        "service_tier: there is no flex there",
    )


def test_thinking_goes_back_signed_or_not_at_all() -> None:
    signed = {"type": "thinking", "thinking": "hm", "signature": "s"}
    user = {"role": "user", "content": "a"}
    answer = {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    body, notes = ask(user, {**answer, "thinking_blocks": [signed]}, user)
    assert body["messages"][1]["content"] == [signed, text("b")]
    assert notes == ()
    body, notes = ask(user, answer, user)
    assert body["messages"][1]["content"] == [text("b")]
    assert len(notes) == 1


def test_the_shape_of_the_answer_and_its_effort() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body, _ = ask(response_format=form, reasoning_effort="minimal")
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    assert ask(reasoning_effort="none")[0]["thinking"] == {"type": "disabled"}
    assert len(ask(response_format={"type": "json_object"})[1]) == 1


def test_arguments_that_are_no_json_do_not_end_a_session() -> None:
    bad = {**CALL, "function": {"name": "f", "arguments": '{"a'}}
    body, notes = ask({"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [bad]})
    assert body["messages"][1]["content"][0]["input"] == {}
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"n": 2}, "n"),
        ({"functions": {"name": "f"}}, "functions"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop": [1]}, "stop[0]"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"stream_options": 1}, "stream_options"),
    ],
)
def test_what_is_wrong_is_named(fields: Json, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**fields)
    assert caught.value.param == param


def test_of_more_marks_than_there_may_be_the_last_are_kept() -> None:
    parts = [text(str(i), cache_control=KEPT) for i in range(6)]
    body, notes = ask({"role": "user", "content": parts}, tools=[{**TOOL, "cache_control": KEPT}], cache_control=KEPT)
    blocks = body["messages"][0]["content"]
    assert [block["text"] for block in blocks if "cache_control" in block] == ["3", "4", "5"]
    assert "cache_control" not in body["tools"][0]
    assert notes == ("cache_control: only the last 4 are kept",)


def test_the_system_prompt_keeps_its_mark() -> None:
    system = {"role": "system", "content": [text("s", cache_control=KEPT)]}
    assert ask(system, {"role": "user", "content": "a"})[0]["system"] == [text("s", cache_control=KEPT)]


def test_a_mark_on_nothing_is_told() -> None:
    empty = {"role": "user", "content": [text(" ", cache_control=KEPT)]}
    body, notes = ask({"role": "user", "content": "a"}, empty)
    assert "cache_control" not in str(body)
    assert notes == ("cache_control left out: there is no content to cache",)


def test_what_the_replicas_api_has_no_word_for_becomes_a_short_text() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
    body, notes = ask({"role": "user", "content": [text("hear"), audio]})
    assert [block["text"] for block in body["messages"][0]["content"]] == ["hear", "[audio]"]
    assert any("content of type audio became a short text" in note for note in notes)


def test_the_older_words_for_tools_are_carried_there_and_back() -> None:
    call = {"name": "f", "arguments": '{"a": 1}'}
    given = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "f", "content": "1"},
        ],
        "functions": [{"name": "f", "parameters": {"type": "object", "properties": {}}}],
        "function_call": {"name": "f"},
    }
    translation = translate("chat", MESSAGES, given)
    _, body = translation.request()
    assert [tool["name"] for tool in body["tools"]] == ["f"]
    assert body["tool_choice"] == {"type": "tool", "name": "f", "disable_parallel_tool_use": True}
    assert [block["type"] for turn in body["messages"] for block in turn["content"]] == [
        "text",
        "tool_use",
        "tool_result",
    ]
    assert body["messages"][1]["content"][0]["id"] == body["messages"][2]["content"][0]["tool_use_id"]
    block = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
    answer = {"id": "msg_1", "type": "message", "content": [block], "stop_reason": "tool_use", "usage": {}}
    _, data = translation.answer(200, msgspec.json.encode(answer))
    [choice] = msgspec.json.decode(data)["choices"]
    assert choice["finish_reason"] == "function_call"
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["function_call"]["name"] == "f"
