"""What a front says of what others may know, when there is nobody left to ask."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hotloop.core.errors import EngineClosed
from hotloop.server.engine_client import EngineClient
from hotloop.server.fronts.elsewhere import Elsewhere


async def test_a_front_whose_engine_has_gone_says_that_it_shuts_down(tmp_path: Path) -> None:
    async def catch_up() -> None:
        raise EngineClosed("the engine's process has ended")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it knows nothing for sure")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    engine = cast(EngineClient, SimpleNamespace(catch_up=catch_up))
    scope = {"type": "http", "method": "GET", "path": "/v1/responses/resp_1", "client": ("127.0.0.1", 1)}
    await Elsewhere(app, tmp_path / "own", engine)({**scope, "state": {"request_id": "req_1"}}, None, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 503
    assert b"shutting_down" in sent[1]["body"]
