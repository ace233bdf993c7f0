"""`/openapi.json`: what the endpoints take, described for programs (OpenAPI 3.1).

What is ours beside the wire is generated from the very structs that bodies are converted to. The wire's own fields are
walked by hand (`wire/`), so they are described here; a test holds each name to what the parsers read. What is not
described is ignored, as everywhere; answers are described by the APIs' makers.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.routing import Route

from hotloop.core.version import __version__
from hotloop.server.info import DetokenizeBody, TokenizeBody
from hotloop.server.messages import MessageOptions
from hotloop.server.openai.chat import ChatOptions
from hotloop.server.openai.completions import CompletionOptions
from hotloop.server.responses.api import ResponseOptions
from hotloop.wire.field import Json

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Share = Annotated[float, Meta(gt=0, le=1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Stops = str | list[str]
Choice = Literal["auto", "none", "required"] | Json


class _Described(msgspec.Struct, kw_only=True):
    """For describing alone: nothing is ever converted to these."""


class TextPart(_Described, kw_only=True):
    type: Literal["text"]
    text: str


class Called(_Described, kw_only=True):
    name: str
    arguments: str


class ChatCall(_Described, kw_only=True):
    id: str
    type: Literal["function", "custom"] = "function"
    function: Called | None = None
    custom: Json | None = None


class ChatMessage(_Described, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ChatCall] | None = None
    tool_call_id: str | None = None


class Function(_Described, kw_only=True):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ChatTool(_Described, kw_only=True):
    type: Literal["function", "custom"]
    function: Function | None = None
    custom: Json | None = None


class Common(_Described, kw_only=True):
    """What all endpoints that generate read in the same words."""

    model: str | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    service_tier: str | None = None
    cache_control: Json | None = None


class OpenAiCommon(Common, kw_only=True):
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    stop: Stops | None = None
    stream_options: Json | None = None
    user: str | None = None
    prompt_cache_key: str | None = None


class CompletionWire(OpenAiCommon, kw_only=True):
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    response_format: Json | None = None
    tools: list[ChatTool] | None = None
    functions: list[Function] | None = None
    function_call: str | Json | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    thinking: Json | None = None
    verbosity: str | None = None
    continue_final_message: bool | None = None


class ChatWire(CompletionWire, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]


class ResponsesWire(OpenAiCommon, kw_only=True):
    input: str | list[Json]
    instructions: str | None = None
    tools: list[Json] | None = None
    max_output_tokens: Count | None = None
    reasoning: Json | None = None
    text: Json | None = None
    previous_response_id: str | None = None


class MessageTurn(_Described, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[TextPart]


class CountedWire(Common, kw_only=True):
    messages: Annotated[list[MessageTurn], Meta(min_length=1)]
    system: str | list[TextPart] | None = None
    tools: list[Json] | None = None
    tool_choice: Json | None = None
    stop_sequences: list[str] | None = None
    metadata: Json | None = None
    output_config: Json | None = None
    output_format: Json | None = None
    thinking: Json | None = None


class MessagesWire(CountedWire, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Error(_Described, kw_only=True):
    message: str
    type: str


class ErrorBody(_Described, kw_only=True):
    error: Error


BODIES: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "/v1/chat/completions": (ChatWire, ChatOptions),
    "/v1/completions": (CompletionWire, CompletionOptions),
    "/v1/messages": (MessagesWire, MessageOptions),
    "/v1/messages/count_tokens": (CountedWire, MessageOptions),
    "/v1/responses": (ResponsesWire, ResponseOptions),
    "/v1/responses/input_tokens": (ResponsesWire, ResponseOptions),
    "/v1/responses/compact": (ResponsesWire, ResponseOptions),
    "/tokenize": (TokenizeBody,),
    "/detokenize": (DetokenizeBody,),
}
"""What each body is read as: all of these say something about it."""
_STREAMED = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/responses/{id}"}
)
_TEXT = {"/metrics": "text/plain"}
_REFUSALS = ("400", "401", "403", "404", "405", "408", "413", "415", "429", "431", "499", "500", "503", "529")


def describe(routes: Iterable[Route]) -> Json:
    paths: dict[str, Json] = {}
    for route in routes:
        path = route.path.replace(":path}", "}")
        methods = sorted((route.methods or {"GET"}) - {"HEAD"})
        paths.setdefault(path, {}).update({method.lower(): _operation(path) for method in methods})
    return {
        "openapi": "3.1.0",
        "info": {"title": "hotloop", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


@cache
def _schemas() -> Json:
    """Of all bodies: they are the same for every server."""
    kinds = {kind for body in BODIES.values() for kind in body}
    _, schemas = msgspec.json.schema_components([ErrorBody, *kinds], ref_template="#/components/schemas/{name}")
    parts = {kind: schemas.pop(kind.__name__) for kind in kinds}
    return schemas | {_name(path): _join([parts[kind] for kind in body]) for path, body in BODIES.items()}


def _operation(path: str) -> Json:
    content: Json = {_TEXT.get(path, "application/json"): {}}
    if path in _STREAMED:
        content["text/event-stream"] = {}
    refused = {"description": "Refused", "content": {"application/json": {"schema": _ref(ErrorBody)}}}
    operation: Json = {
        "responses": {"200": {"description": "Answered", "content": content}, **dict.fromkeys(_REFUSALS, refused)},
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _names(path)
        ],
    }
    if path in BODIES:
        schema = {"$ref": f"#/components/schemas/{_name(path)}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _join(schemas: Sequence[Json]) -> Json:
    """All of them, said of one object."""
    properties = {name: schema for each in schemas for name, schema in each["properties"].items()}
    required = sorted({name for each in schemas for name in each["required"]})
    return {"type": "object", "properties": properties, "required": required}


def _name(path: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"\W|_", path.removeprefix("/v1/"))) + "Body"


def _names(path: str) -> Iterable[str]:
    return (part[1:-1] for part in path.split("/") if part.startswith("{"))


def _ref(kind: type) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
