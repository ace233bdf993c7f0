"""An OpenAI-compatible server without a model, in a thread: says as many words as it is asked for.

A token is a word. It remembers every prompt and reports as cached the longest beginning that it has seen before.
"""

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.threads import ThreadedServer


class FakeServer(ThreadedServer):
    """`bodies` are the requests it got; the n-th fails with 503 if n is in `failing`, breaks off if in `breaking`.

    One that `hangs` never answers; `asked` is set once it was asked.
    """

    def __init__(
        self,
        *,
        failing: frozenset[int] = frozenset(),
        breaking: frozenset[int] = frozenset(),
        caches: bool = True,
        hangs: bool = False,
    ) -> None:
        self.asked = threading.Event()
        self.bodies: list[dict[str, Any]] = []
        self.session_ids: list[str | None] = []
        self.api_keys: list[str | None] = []
        self._failing, self._breaking, self._caches, self._hangs = failing, breaking, caches, hangs
        self._seen: list[list[str]] = []
        config = uvicorn.Config(Starlette(routes=self._routes()), log_level="critical", lifespan="off")
        super().__init__(uvicorn.Server(config))

    def _routes(self) -> list[Route]:
        return [Route("/v1/models", self._models), Route("/v1/chat/completions", self._chat, methods=["POST"])]

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def _chat(self, request: Request) -> Response:
        number = len(self.bodies)
        body = await request.json()
        self.bodies.append(body)
        self.session_ids.append(request.headers.get("x-session-id"))
        self.api_keys.append(request.headers.get("authorization"))
        self.asked.set()
        while self._hangs and (await request.receive())["type"] != "http.disconnect":
            pass
        if number in self._failing:
            return JSONResponse({"error": {"message": "out of order", "type": "server_error"}}, 503)
        if body.get("stream"):
            return StreamingResponse(self._events(body, number in self._breaking), media_type="text/event-stream")
        return JSONResponse(self._whole(body))

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        usage = self._read(body)
        content = "".join(f" word{i}" for i in range(usage["completion_tokens"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "fake"}
        return {**head, "choices": [choice], "usage": usage | {"total_tokens": sum(list(usage.values())[:2])}}

    def _read(self, body: dict[str, Any]) -> dict[str, Any]:
        """The usage of a request, and its prompt is cached from now on."""
        prompt = [word for message in body["messages"] for word in message["content"].split()]
        num_cached = max((_num_common(prompt, seen) for seen in self._seen), default=0)
        self._seen.append(prompt)
        return {
            "prompt_tokens": len(prompt),
            "completion_tokens": body.get("max_tokens") or 5,
            "prompt_tokens_details": {"cached_tokens": num_cached if self._caches else 0},
        }

    async def _events(self, body: dict[str, Any], is_breaking: bool) -> AsyncIterator[str]:
        usage = self._read(body)
        yield _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for i in range(usage["completion_tokens"]):
            yield _event({"choices": [{"index": 0, "delta": {"content": f" word{i}"}}]})
            if is_breaking:
                yield _event({"error": {"message": "it broke"}})
                return
        yield _event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"


def _num_common(a: list[str], b: list[str]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk)}\n\n"
