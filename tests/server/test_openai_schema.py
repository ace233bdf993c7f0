"""What the server answers, held against OpenAI's own description of it; HOTLOOP_OPENAI_SPEC says where that is."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.server.calls import TOOLS, WEATHER
from tests.server.serving import Serving, only

jsonschema = pytest.importorskip("jsonschema")

SPEC = os.environ.get("HOTLOOP_OPENAI_SPEC", "")
pytestmark = pytest.mark.skipif(not SPEC, reason="HOTLOOP_OPENAI_SPEC is not set")

SchemaCheck = Callable[[str, Any], None]


@pytest.fixture(scope="module")
def check() -> SchemaCheck:
    data = Path(SPEC).read_bytes()
    spec = json.loads(gzip.decompress(data) if SPEC.endswith(".gz") else data)
    translate(spec)

    def validate(name: str, value: Any) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": spec["components"]}
        jsonschema.Draft202012Validator(schema).validate(value)

    return validate


def translate(node: Any) -> None:
    """OpenAPI's `nullable`, which JSON Schema writes as a union with null."""
    if isinstance(node, dict):
        if node.pop("nullable", False):
            inner = dict(node)
            node.clear()
            node["anyOf"] = [inner, {"type": "null"}]
        for child in node.values():
            translate(child)
    elif isinstance(node, list):
        for child in node:
            translate(child)


def chunks(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


LOGPROBS = {"logprobs": True, "top_logprobs": 2}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("fields", [{}, {"n": 2}, LOGPROBS, {"stop": "aa"}], ids=str)
def test_chat(serving: Serving, check: SchemaCheck, fields: dict[str, Any]) -> None:
    check("CreateChatCompletionResponse", serving.chat(**only("a"), **fields).json())
    for extra in ({"stream": True}, USAGE):
        for chunk in chunks(serving.chat(**only("a"), **fields, **extra).text):
            check("CreateChatCompletionStreamResponse", chunk)


CALLS = {"tools": TOOLS, "tool_choice": "required"}
SHAPE = {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}}


OLD_CALLS = {"functions": [tool["function"] for tool in TOOLS], "function_call": {"name": "weather"}}


@pytest.mark.parametrize(
    "fields", [CALLS, {**CALLS, **LOGPROBS}, SHAPE, OLD_CALLS], ids=["calls", "logprobs", "shape", "functions"]
)
def test_calls_and_shapes(serving: Serving, check: SchemaCheck, fields: dict[str, Any]) -> None:
    check("CreateChatCompletionResponse", serving.chat(max_tokens=300, **fields).json())
    for chunk in chunks(serving.chat(max_tokens=300, **fields, **USAGE).text):
        check("CreateChatCompletionStreamResponse", chunk)


CUSTOM = {"tools": [{"type": "custom", "custom": {"name": "sql"}}], "tool_choice": "required"}


def test_custom_tools(serving: Serving, check: SchemaCheck) -> None:
    """The description has functions alone in a stream, though the service has the others as well: of their pieces, what
    is of the call is looked at here."""
    check("CreateChatCompletionResponse", serving.chat(max_tokens=300, **CUSTOM).json())
    for chunk in chunks(serving.chat(max_tokens=300, **CUSTOM, **USAGE).text):
        for piece in [each for choice in chunk["choices"] for each in choice["delta"].get("tool_calls", ())]:
            assert piece.pop("type", "custom") == "custom"
            assert {*piece.pop("custom")} <= {"name", "input"}
        check("CreateChatCompletionStreamResponse", chunk)


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": 2}, {"echo": True}], ids=str)
def test_completions(serving: Serving, check: SchemaCheck, fields: dict[str, Any]) -> None:
    check("CreateCompletionResponse", serving.complete(**only("a"), **fields).json())


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": 2}, {"echo": True}, {"stop": "aa"}], ids=str)
def test_chunks_of_completions(serving: Serving, check: SchemaCheck, fields: dict[str, Any]) -> None:
    """The description has one shape for answers and chunks, in which the reason is never null; but its own example of a
    stream has null before the end, as the service does, and so have we. The end of a choice has one of its words."""
    reasons: dict[int, str] = {}
    text = serving.complete(**only("a"), **fields, **USAGE).text
    for chunk in chunks(text):
        assert chunk.pop("usage", None) is None or not chunk["choices"]  # null before the end, as in a chat
        for choice in chunk["choices"]:
            assert choice["index"] not in reasons, "nothing follows the end of a choice"
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
            else:
                assert "finish_reason" in choice
                choice["finish_reason"] = "stop"
        check("CreateCompletionResponse", chunk)
    assert len(reasons) == fields.get("n", 1)


def test_models(serving: Serving, check: SchemaCheck) -> None:
    check("ListModelsResponse", serving.http.get("/v1/models").json())
    check("Model", serving.http.get("/v1/models/tiny").json())


def test_errors(serving: Serving, check: SchemaCheck) -> None:
    hosted = {"tools": [{"type": "web_search"}]}
    for response in (serving.chat(n=0), serving.chat(model="x"), serving.chat(**hosted), serving.http.get("/nowhere")):
        check("ErrorResponse", response.json())
