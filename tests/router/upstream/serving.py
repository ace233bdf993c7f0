"""An ordinary server: uvicorn in a thread, streaming what it was sent."""

import asyncio
from typing import Any

import uvicorn
from tests.threads import ThreadedServer


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b"data: %b\n\n" % body, "more_body": True})
    await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


class Uvicorn(ThreadedServer):
    def __init__(self) -> None:
        super().__init__(
            uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        )
