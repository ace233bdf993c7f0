"""Each family's calls over a real server: asked for by a client, told to it, and cached when they come back."""

import json
from typing import Any

import pytest
from tests.chat.calling_templates import TEMPLATED, calling_template
from tests.chat.speaking import FORMATS, join_calls, write_call
from tests.server.serving import Serving

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
CALLS: list[tuple[str, dict[str, Any]]] = [("weather", {"city": 'Paris, "Ö"\n<b>', "days": 3}), ("now", {})]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("choice", ["auto", pytest.param("required", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", TEMPLATED)
def test_calls_are_told_and_cached(name: str, choice: str) -> None:
    prose = "Let me see.\n" if choice == "auto" else ""
    answer = prose + join_calls(name, [write_call(name, tool, arguments) for tool, arguments in CALLS])
    asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 900, "model": "tiny"}
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    script, tokenizer = [answer, "Done."], FORMATS[name][1]
    with Serving(script=script, template=calling_template(name), tokenizer=tokenizer) as serving:
        first = serving.chat(**asked, messages=messages).json()
        [said] = first["choices"]
        message = said["message"]
        assert said["finish_reason"] == "tool_calls"
        assert (message["content"] or "").strip() == prose.strip()
        functions = [call["function"] for call in message["tool_calls"]]
        assert [(each["name"], json.loads(each["arguments"])) for each in functions] == CALLS
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "5"} for call in message["tool_calls"]]
        messages = [*messages, {**message, "content": message["content"] or ""}, *results]
        second = serving.chat(**asked | {"tool_choice": "auto"}, messages=messages).json()
        assert second["choices"][0]["message"]["content"] == "Done."
        num_before = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= num_before - 64


@pytest.mark.sampled(3)
# A closing tag that is several tokens is not begun where there is no room: the first of them could be text.
@pytest.mark.parametrize("name", [name for name in TEMPLATED if "special" in name and "minimax" not in name])
@pytest.mark.parametrize("max_tokens", [250, 255])
def test_a_call_is_closed_in_the_room_there_is(name: str, max_tokens: int) -> None:
    answer = write_call(name, "weather", {"city": "x" * 1000})
    with Serving(script=[answer], template=calling_template(name), tokenizer=FORMATS[name][1]) as serving:
        asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": max_tokens}
        [said] = serving.chat(**asked).json()["choices"]
    assert said["finish_reason"] == "length"
    [call] = said["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"].startswith("x" * 50)


def test_what_a_format_cannot_say_of_a_schema_is_checked_afterwards() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"type": "integer"}}}
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    answer = write_call("gemma", "f", {"a": "abcdef", "b": 1})
    with Serving(script=[answer], template=calling_template("gemma"), tokenizer=FORMATS["gemma"][1]) as serving:
        body = serving.chat(tools=tools, max_tokens=200).json()
    [call] = body["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"a": "abcdef", "b": 1}
    changes = body["usage"]["hotloop"]["changes"]
    assert "properties.a" in changes[0]
    assert "do not follow the schema" in changes[1]
