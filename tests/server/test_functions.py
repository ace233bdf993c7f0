"""OpenAI's older words for tools: `functions`, `function_call` and the role `function`."""

import json
from typing import Any

import openai
import pytest
from tests.server.calls import TOOLS, WEATHER, check_call, write_call
from tests.server.serving import HELLO, MODEL, Serving, check_error

FUNCTIONS: list[Any] = [tool["function"] for tool in TOOLS]
ROME = {"city": "Rome", "days": 3}


def test_a_call_is_the_messages_own() -> None:
    with Serving(script=["Well.\n" + write_call("weather", **ROME)]) as serving, serving.openai() as client:
        answer = client.chat.completions.create(model=MODEL, messages=HELLO, functions=FUNCTIONS, max_tokens=400)
        chunks = client.chat.completions.create(
            model=MODEL, messages=HELLO, functions=FUNCTIONS, max_tokens=400, stream=True
        )
        deltas = [chunk.choices[0] for chunk in chunks]
    [choice] = answer.choices
    assert choice.finish_reason == deltas[-1].finish_reason == "function_call"
    assert choice.message.tool_calls is None
    assert choice.message.function_call
    assert (choice.message.content, choice.message.function_call.name) == ("Well.", "weather")
    assert json.loads(choice.message.function_call.arguments) == ROME
    calls = [choice.delta.function_call for choice in deltas if choice.delta.function_call]
    assert [call.name for call in calls if call.name] == ["weather"]
    assert json.loads("".join(call.arguments or "" for call in calls)) == ROME
    assert not any(choice.delta.tool_calls for choice in deltas)


@pytest.mark.parametrize("is_stream", [False, True])
def test_only_one_is_called(serving: Serving, is_stream: bool) -> None:
    """Also of a model that would call two."""
    with Serving(script=[write_call("weather", **ROME) + "\n" + write_call("clock")]) as talking:
        text = talking.chat(functions=FUNCTIONS, max_tokens=400, stream=is_stream).text
    assert "weather" in text
    assert "clock" not in text


@pytest.mark.parametrize("name", ["weather", "clock"])
def test_a_named_function(client: openai.OpenAI, name: str) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, functions=FUNCTIONS, function_call={"name": name}, max_tokens=400, seed=1
    )
    call = answer.choices[0].message.function_call
    assert call
    assert call.name == name
    check_call(call.name, call.arguments)
    assert answer.choices[0].finish_reason == "stop", "as with tools"


def test_none_is_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, functions=FUNCTIONS, function_call="none", max_tokens=20
    )
    assert answer.choices[0].message.function_call is None


def test_a_history_reads_as_that_of_tools(serving: Serving) -> None:
    """Two calls and their results: as many tokens as in the newer words, where every call has an id."""
    function = {"name": "clock", "arguments": "{}"}
    old: list[Any] = [*HELLO]
    new: list[Any] = [*HELLO]
    for i in range(2):
        old += [{"role": "assistant", "content": None, "function_call": function}]
        old += [{"role": "function", "name": "clock", "content": f"{i} o'clock"}]
        call_id = f"call_function_{2 * i + 1}"
        new += [{"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}]
        new += [{"role": "tool", "tool_call_id": call_id, "content": f"{i} o'clock"}]
    first = serving.chat(messages=old, functions=FUNCTIONS).json()["usage"]
    second = serving.chat(messages=new, tools=TOOLS).json()["usage"]
    assert first["prompt_tokens"] == second["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": 7}, "functions"),
        ({"functions": [{}]}, "functions[0].name"),
        ({"functions": FUNCTIONS, "tools": TOOLS}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": "maybe"}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {}}, "function_call.name"),
        ({"functions": FUNCTIONS, "function_call": {"name": "g"}}, "function_call"),
        ({"functions": [{"name": "f", "parameters": {"type": "odd"}}]}, "functions[0].parameters"),
        ({"messages": [*HELLO, {"role": "assistant", "function_call": {}}]}, "messages[1].function_call.name"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(serving: Serving, fields: dict[str, Any], param: str) -> None:
    assert check_error(serving.chat(**fields), 400, "invalid_value")["param"] == param


def test_the_schema_is_followed(serving: Serving) -> None:
    call = serving.chat(functions=[{"name": "f", "parameters": WEATHER}], function_call={"name": "f"}, max_tokens=200)
    assert set(json.loads(call.json()["choices"][0]["message"]["function_call"]["arguments"])) == {"city", "days"}
