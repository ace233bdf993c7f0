"""Tools that the tests of the server offer, and how the tiny model, which knows of none, writes calls."""

import json
from collections.abc import Iterable
from typing import Any

import jsonschema
from openai.types.chat import ChatCompletionChunk

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool(name: str, parameters: dict[str, Any] | None = None, **fields: Any) -> Any:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters, **fields}}


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


TOOLS: list[Any] = [tool("weather", WEATHER), tool("clock")]
SCHEMAS = {"weather": WEATHER, "clock": {"type": "object", "maxProperties": 0}}


def write_call(name: str, **arguments: Any) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def check_call(name: str, arguments: str) -> None:
    """The call is to one of the tools above and follows its schema."""
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def reassemble(chunks: Iterable[ChatCompletionChunk], index: int = 0) -> tuple[str | None, list[tuple[str, str, str]]]:
    """The text and the calls (id, name, arguments) of a streamed choice, held to OpenAI's rules for deltas."""
    text: str | None = None
    calls: list[tuple[str, str, str]] = []
    for delta in (choice.delta for chunk in chunks for choice in chunk.choices if choice.index == index):
        if delta.content:
            assert not calls, "text after a call"
            text = (text or "") + delta.content
        for piece in delta.tool_calls or ():
            assert piece.function
            if piece.id:
                assert (piece.index, piece.type, piece.function.arguments) == (len(calls), "function", "")
                assert piece.function.name
                calls.append((piece.id, piece.function.name, ""))
            else:
                assert (piece.index, piece.type, piece.function.name) == (len(calls) - 1, None, None)
                call_id, name, arguments = calls[-1]
                calls[-1] = (call_id, name, arguments + (piece.function.arguments or ""))
    return text, calls
