"""Custom tools in a chat: they take one text, which may follow a grammar, and stand beside functions."""

import json
from typing import Any

import openai
import pytest
from tests.server.calls import TOOLS, write_call
from tests.server.serving import HELLO, MODEL, Serving

TEXT = 'SELECT "a"\nFROM b;'
SQL: Any = {"type": "custom", "custom": {"name": "sql", "description": "Asks the database."}}
GRAMMARS = [
    {"type": "text"},
    {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/s"}},
    {"type": "grammar", "grammar": {"syntax": "regex", "definition": ".+"}},
]
CALL = write_call("sql", input=TEXT)


def chunks(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def deltas(text: str) -> list[Any]:
    return [
        piece
        for chunk in chunks(text)
        for choice in chunk["choices"]
        for piece in choice["delta"].get("tool_calls", ())
    ]


@pytest.mark.parametrize("form", [None, *GRAMMARS], ids=str)
def test_a_call_has_one_text(form: Any) -> None:
    sql = {"type": "custom", "custom": {**SQL["custom"], **({"format": form} if form else {})}}
    with Serving(script=[CALL]) as serving, serving.openai() as client:
        answer = client.chat.completions.create(model=MODEL, messages=HELLO, tools=[sql], max_tokens=400)
    [call] = answer.choices[0].message.tool_calls or ()
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("sql", TEXT)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_grammar_is_told_to_the_model(serving: Serving) -> None:
    def num_tokens(form: Any) -> int:
        tools = [{"type": "custom", "custom": {"name": "sql", "format": form}}]
        count: int = serving.chat(tools=tools, max_tokens=1).json()["usage"]["prompt_tokens"]
        return count

    assert num_tokens(GRAMMARS[1]) > num_tokens(GRAMMARS[0])


def test_a_streamed_call() -> None:
    with Serving(script=[CALL + "\n" + write_call("clock")]) as serving:
        pieces = deltas(serving.chat(tools=[SQL, *TOOLS], max_tokens=400, stream=True).text)
    first, second, *rest = pieces
    assert {name: first[name] for name in ("index", "type", "custom")} == {
        "index": 0,
        "type": "custom",
        "custom": {"name": "sql", "input": ""},
    }
    assert first["id"].startswith("call_")
    assert second == {"index": 0, "custom": {"input": TEXT}}
    assert {piece["index"] for piece in rest} == {1}
    assert (rest[0]["type"], rest[0]["function"]["name"]) == ("function", "clock")


def test_choices_are_told_apart() -> None:
    with Serving(script=[CALL, CALL]) as serving:
        text = serving.chat(tools=[SQL], n=2, max_tokens=400, stream=True).text
    for index in (0, 1):
        of_choice = [choice for chunk in chunks(text) for choice in chunk["choices"] if choice["index"] == index]
        inputs = [
            piece["custom"]["input"]
            for choice in of_choice
            for piece in choice["delta"].get("tool_calls", ())
            if piece.get("custom")
        ]
        assert "".join(inputs) == TEXT


def test_a_choice_and_a_history() -> None:
    with Serving(script=[CALL, "Done."]) as serving, serving.openai() as client:
        named: Any = {"type": "custom", "custom": {"name": "sql"}}
        ask = {"model": MODEL, "tools": [SQL, *TOOLS], "max_tokens": 400}
        first = client.chat.completions.create(messages=HELLO, tool_choice=named, **ask)  # type: ignore[call-overload]
        message = first.choices[0].message
        history = [
            *HELLO,
            message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}),
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "1 row"},
        ]
        second = client.chat.completions.create(messages=history, **ask)  # type: ignore[call-overload]
    assert second.choices[0].message.content == "Done."
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens
    assert {*second.usage.model_extra["hotloop"]["causes"]} == {"block"}  # no more than the end of the last one


def test_a_tool_among_those_allowed(serving: Serving) -> None:
    allowed = {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "sql"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = serving.chat(tools=[SQL, *TOOLS], tool_choice=choice, max_tokens=400, seed=1).json()
    calls = answer["choices"][0]["message"]["tool_calls"]
    assert {call["type"] for call in calls} == {"custom"}


def test_the_client_gathers_a_stream() -> None:
    with Serving(script=[CALL]) as serving, serving.openai() as client:
        stream = client.chat.completions.create(model=MODEL, messages=HELLO, tools=[SQL], max_tokens=400, stream=True)
        found = [call for chunk in stream for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert isinstance(found[0], openai.types.chat.chat_completion_chunk.ChoiceDeltaToolCall)
    assert "".join((call.model_extra or {}).get("custom", {}).get("input", "") for call in found) == TEXT
