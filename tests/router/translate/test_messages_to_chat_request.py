"""What an Anthropic client asks, as a replica that speaks chat completions hears it."""

from typing import Any

import pytest
from tests.router.translate.replicas import CHAT, Json

from hotloop.core.errors import RequestError
from hotloop.router.translate import translate
from hotloop.wire.errors import ThreadUnsupported

KEPT: Json = {"type": "ephemeral"}
TOOL: Json = {"name": "f", "description": "does", "input_schema": {"type": "object", "properties": {}}}


def ask(*turns: Any, is_strict: bool = False, **fields: Any) -> tuple[Json, tuple[str, ...]]:
    body = {"model": "m", "max_tokens": 5, "messages": list(turns) or [{"role": "user", "content": "hi"}], **fields}
    translation = translate("messages", CHAT, body, is_strict=is_strict)
    path, rendered = translation.request()
    assert path == "/v1/chat/completions"
    return rendered, translation.notes


def said(*blocks: Json, **fields: Any) -> list[Json]:
    """The messages that a user's turn becomes."""
    messages: list[Json] = ask({"role": "user", "content": list(blocks)}, **fields)[0]["messages"]
    return messages


def answered(*blocks: Json, **fields: Any) -> Json:
    """The message that an assistant's turn becomes."""
    message: Json = ask({"role": "assistant", "content": list(blocks)}, **fields)[0]["messages"][0]
    return message


def text(words: str, **more: Any) -> Json:
    return {"type": "text", "text": words, **more}


def test_the_plainest_request_loses_nothing() -> None:
    body, notes = ask(temperature=0.5, top_p=0.9, stop_sequences=["a"], system="be kind")
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["a"],
    }
    assert notes == ()


def test_a_stream_is_asked_for_its_usage() -> None:
    assert ask(stream=True)[0]["stream_options"] == {"include_usage": True}


def test_several_results_become_several_messages_and_then_the_users_words() -> None:
    messages = said(
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": [text("2"), text("3")]},
        {"type": "tool_result", "tool_use_id": "c"},
        text("go on"),
    )
    assert messages == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2\n3"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": [text("go on")]},
    ]


@pytest.mark.parametrize(("given", "told"), [("no disk", "Error: no disk"), ("ERROR 7", "ERROR 7")])
def test_a_failed_call_says_so(given: str, told: str) -> None:
    [message] = said({"type": "tool_result", "tool_use_id": "a", "content": given, "is_error": True})
    assert message["content"] == told


def test_pictures_are_carried_and_those_of_tools_are_shown_by_the_user() -> None:
    data = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    link = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [text("seen"), data]}
    tool, user = said(result, link)
    assert tool == {"role": "tool", "tool_call_id": "a", "content": "seen"}
    caption, first, second = user["content"]
    assert "call a" in caption["text"]
    assert first == {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert second == {"type": "image_url", "image_url": {"url": "https://x/y.png"}}


def test_documents_and_search_results_are_words() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "long"}
    found = {"type": "search_result", "title": "T", "source": "S", "content": [text("C")]}
    [message] = said({"type": "document", "source": source, "title": "Book"}, found)
    assert message["content"] == [text("Book\nlong"), text("T\nS\nC")]
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}}
    [part] = said(pdf)[0]["content"]
    assert part["file"] == {"filename": "document.pdf", "file_data": "data:application/pdf;base64,AA"}


def test_an_answer_comes_back_as_it_was_given_out() -> None:
    blocks = (
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        text("a"),
        text("b"),
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"ä": [1, 2.5]}},
    )
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"ä": [1, 2.5]}'}}
    spoken = {"role": "assistant", "content": "ab"}
    assert answered(*blocks) == {**spoken, "reasoning_content": "hm", "tool_calls": [call]}
    assert answered(*blocks, is_strict=True) == {**spoken, "tool_calls": [call]}
    assert answered(blocks[3])["content"] is None
    assert answered(text("a")) == {"role": "assistant", "content": "a"}


def test_what_only_its_maker_can_read_is_left_out_and_told() -> None:
    redacted = {"type": "redacted_thinking", "data": "x"}
    body, notes = ask({"role": "assistant", "content": [redacted, text("a")]}, {"role": "user", "content": "b"})
    assert body["messages"][0] == {"role": "assistant", "content": "a"}
    assert notes == ("content of type redacted_thinking left out",)


def test_marks_are_kept_where_there_is_a_place_for_them() -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": "1", "cache_control": KEPT}
    turn = {"role": "user", "content": [result, text("b", cache_control=KEPT)]}
    tool = {**TOOL, "cache_control": KEPT}
    body, notes = ask(turn, system=[text("s", cache_control=KEPT)], tools=[tool], cache_control=KEPT)
    system, called, user = body["messages"]
    assert system["content"] == [text("s", cache_control=KEPT)]
    assert called["content"] == [text("1", cache_control=KEPT)]
    assert user["content"] == [text("b", cache_control=KEPT)]
    assert body["tools"][0]["cache_control"] == KEPT
    assert body["cache_control"] == KEPT
    assert notes == ()


def test_marks_without_a_place_are_never_dropped_in_silence() -> None:
    lost = ("cache_control left out: the replica's API has no place for it",)
    turn = {"role": "user", "content": [text("b", cache_control=KEPT)]}
    body, notes = ask(turn, tools=[{**TOOL, "cache_control": KEPT}], cache_control=KEPT, is_strict=True)
    assert "cache_control" not in str(body)
    assert notes == lost
    used = {"type": "tool_use", "id": "i", "name": "f", "input": {}, "cache_control": KEPT}
    inner = {"type": "tool_result", "tool_use_id": "a", "content": [text("1", cache_control=KEPT)]}
    assert ask({"role": "assistant", "content": [used]}, turn)[1] == lost
    assert ask({"role": "user", "content": [inner]})[1] == lost


def test_tools_and_what_is_asked_of_them() -> None:
    body, _ = ask(tools=[{**TOOL, "strict": True}, {"name": "g", "input_schema": {}}])
    function = {"name": "f", "description": "does", "parameters": TOOL["input_schema"], "strict": True}
    assert body["tools"] == [
        {"type": "function", "function": function},
        {"type": "function", "function": {"name": "g", "parameters": {}}},
    ]
    assert "tool_choice" not in body


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_tool_choice(choice: Json, told: Json) -> None:
    body, _ = ask(tools=[TOOL], tool_choice=choice)
    assert {name: body[name] for name in body if name in ("tool_choice", "parallel_tool_calls")} == told


def test_hosted_tools_are_left_out_and_cannot_be_demanded() -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    body, notes = ask(tools=[TOOL, hosted], tool_choice={"type": "auto"})
    assert [tool["function"]["name"] for tool in body["tools"]] == [TOOL["name"]]
    assert "web_search_20250305" in notes[0]
    assert "tools" not in ask(tools=[hosted])[0]
    assert "tools" not in ask(tools=[hosted], tool_choice={"type": "none"})[0]
    for fields in (
        {"tools": [hosted], "tool_choice": {"type": "any"}},
        {"tools": [TOOL, hosted], "tool_choice": {"type": "tool", "name": "web_search"}},
    ):
        with pytest.raises(RequestError, match="nothing here runs 'web_search_20250305'"):
            ask(**fields)


def test_the_user_keeps_a_name_that_openai_takes() -> None:
    assert ask(metadata={"user_id": "u" * 99})[0]["user"] == "u" * 99
    body, notes = ask(metadata={"user_id": "u" * 99}, is_strict=True)
    assert len(body["user"]) == 64
    assert "hash" in notes[0]


def test_thinking_and_the_shape_of_the_answer() -> None:
    schema = {"type": "object"}
    config = {"effort": "max", "format": {"type": "json_schema", "schema": schema}}
    body, notes = ask(thinking={"type": "disabled"}, output_config=config)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["response_format"]["json_schema"]["schema"] == schema
    assert body["reasoning_effort"] == "high"
    assert notes == ("output_config.effort: max becomes high",)
    _, notes = ask(thinking={"type": "enabled", "budget_tokens": 2048})
    assert notes == ("not known to the replica's API: thinking.budget_tokens",)


def test_openai_itself_is_sent_nothing_it_would_refuse() -> None:
    fields: Json = {"top_k": 5, "seed": 3, "container": "c", "priority": "background", "session_id": "s"}
    body, notes = ask(**fields)
    assert (body["top_k"], body["seed"], body["max_tokens"]) == (5, 3, 5)
    assert notes == ("not known to the replica's API: container",)
    body, notes = ask(**fields, is_strict=True)
    assert body == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 5}
    assert notes == ("not known to the replica's API: container, seed", "not known to the replica's API: top_k")


def test_a_last_turn_of_the_assistant_and_a_prompt_only_to_be_read_are_told() -> None:
    turns = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    _, notes = ask(*turns, max_tokens=0, is_strict=True)
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"model": 3}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"thread": {"id": "t"}}, "thread"),
        ({"mcp_servers": [{"type": "url", "url": "https://x"}]}, "mcp_servers"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"system": [{"type": "text"}]}, "system[0].text"),
    ],
)
def test_what_is_wrong_is_named(fields: Json, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**fields)
    assert caught.value.param == param
    assert "\n" not in str(caught.value)


def test_a_beginning_of_the_answer_is_continued_where_that_can_be_said() -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "It is ("}]
    given = {"model": "m", "max_tokens": 5, "messages": turns}
    body = translate("messages", CHAT, given).request()[1]
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    hosted = translate("messages", CHAT, given, is_strict=True)
    assert "continue_final_message" not in hosted.request()[1]
    assert "answered, not continued" in hosted.notes[0]


def test_built_in_tools_become_functions() -> None:
    body, notes = ask(tools=[{"type": "bash_20250124", "name": "bash"}], tool_choice={"type": "tool", "name": "bash"})
    [function] = [tool["function"] for tool in body["tools"]]
    assert (function["name"], function["parameters"]["required"]) == ("bash", ["command"])
    assert body["tool_choice"] == {"type": "function", "function": {"name": "bash"}}
    assert notes == ()


def test_a_conversation_that_is_kept_elsewhere_is_refused_by_its_code() -> None:
    with pytest.raises(ThreadUnsupported) as caught:
        ask(thread={"type": "continue", "previous_message_id": "msg_1"})
    assert caught.value.details == {"error_code": "thread_unsupported_request"}


def test_the_shape_of_the_answer_in_the_betas_words() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    assert ask(output_format=form)[0] == ask(output_config={"format": form})[0]
    with pytest.raises(RequestError, match=r"output_format: cannot be given together with output_config\.format"):
        ask(output_format=form, output_config={"format": form})


@pytest.mark.parametrize("effort", ["none", "minimal", "extreme", ""])
def test_an_effort_that_is_none_of_anthropics_is_refused(effort: str) -> None:
    with pytest.raises(RequestError, match=r"output_config\.effort: expected low, medium, high, xhigh or max"):
        ask(output_config={"effort": effort})
