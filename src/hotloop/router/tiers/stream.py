"""A whole chat completion as the stream its client asked for: the same words, in as few chunks as will do."""

from collections.abc import Iterator, Mapping
from typing import Any

from hotloop.wire.sse import DONE, write_data


def render_stream(answer: Mapping[str, Any], request: Mapping[str, Any]) -> Iterator[bytes]:
    """Server-sent events: who speaks, what is said and called, why it ended, and the usage if it was asked for."""
    head = {key: value for key, value in answer.items() if key not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    options = request.get("stream_options")
    has_usage = bool(options.get("include_usage")) if isinstance(options, Mapping) else False
    more = {"usage": None} if has_usage else {}
    for choice in answer["choices"]:
        for piece in _pieces(choice):
            yield write_data({**head, "choices": [{"index": choice.get("index", 0), **piece}], **more})
    if has_usage:
        yield write_data({**head, "choices": [], "usage": answer.get("usage")})
    yield DONE


def _pieces(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    message = choice["message"]
    said = {key: value for key, value in message.items() if key not in ("role", "content", "tool_calls") and value}
    begun = "" if isinstance(message.get("content"), str) else None
    yield _piece({"role": message.get("role", "assistant"), "content": begun, **said})
    if message.get("content"):
        yield _piece({"content": message["content"]}) | {"logprobs": choice.get("logprobs")}
    for index, call in enumerate(message.get("tool_calls") or []):
        yield _piece({"tool_calls": [{"index": index, **call}]})
    yield {**_piece({}), **{key: value for key, value in choice.items() if key not in ("index", "message", "logprobs")}}


def _piece(delta: dict[str, Any]) -> dict[str, Any]:
    return {"delta": delta, "finish_reason": None}
