"""A server that answers every question with tool calls made up beforehand, and says how it came by the tokens.

Four characters of a call are a token. With shortcuts half of them are forced and a step gives four; without, one.
"""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from tests.bench.fake_server import FakeServer

Calls = list[tuple[str, str]]
"""Names and arguments."""
Script = Callable[[dict[str, Any]], Calls]
"""What is called in answer to a request's body."""


def first_tool(body: dict[str, Any]) -> Calls:
    """The first tool, with a string for everything it needs."""
    function = body["tools"][0]["function"]
    return [(function["name"], json.dumps(dict.fromkeys(function["parameters"].get("required", []), "x")))]


class FakeToolServer(FakeServer):
    """`bodies` are the requests it got; the n-th fails with 503 if n is in `failing`."""

    def __init__(self, script: Script = first_tool, *, failing: frozenset[int] = frozenset()) -> None:
        super().__init__(failing=failing)
        self._script = script

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        number = len(self.bodies)
        self.bodies.append(body)
        if number in self._failing:
            return JSONResponse({"error": {"message": "out of order", "type": "server_error"}}, 503)
        calls = self._script(body)
        if body.get("stream"):
            return StreamingResponse(self._chunks(body, calls), media_type="text/event-stream")
        rendered = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": rendered}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return JSONResponse({"choices": [choice], "usage": usage_of(body, calls)})

    async def _chunks(self, body: dict[str, Any], calls: Calls) -> AsyncIterator[str]:
        for i, (name, arguments) in enumerate(calls):
            opened = {"index": i, "id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": ""}}
            yield chunk({"tool_calls": [opened]})
            for start in range(0, len(arguments), 4):
                yield chunk({"tool_calls": [{"index": i, "function": {"arguments": arguments[start : start + 4]}}]})
        yield chunk({}, "tool_calls")
        yield f"data: {json.dumps({'choices': [], 'usage': usage_of(body, calls)})}\n\n"
        yield "data: [DONE]\n\n"


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish_reason}]})}\n\n"


def usage_of(body: dict[str, Any], calls: Calls) -> dict[str, Any]:
    num_output = sum(len(name) + len(arguments) for name, arguments in calls) // 4 * 4
    is_fast = body.get("shortcuts", True)
    shortcuts = {
        "sampled_tokens": num_output // 2 if is_fast else num_output,
        "forced_tokens": num_output // 2 if is_fast else 0,
        "drafted_tokens": 4 if is_fast else 0,
        "accepted_tokens": 3 if is_fast else 0,
        "steps": num_output // 4 if is_fast else num_output,
    }
    return {"prompt_tokens": 10, "completion_tokens": num_output, "total_tokens": 10 + num_output, "hotloop": shortcuts}
