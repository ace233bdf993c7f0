"""The door of a deployment, over replicas that a test plays: who is let in, who is asked again, how an answer ends."""

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hotloop.core.errors import ConfigError
from hotloop.ray.tickets import AnswerHead, Outline
from hotloop.router.placement.policy import ReplicaChoice
from hotloop.router.upstream.wire import UpstreamRequest

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: hotloop[ray]"),
]

JSON = AnswerHead(
    200, [(b"content-type", b"application/json"), (b"x-request-id", b"other")], "a", ReplicaChoice("a", "warm", 100)
)
EVENTS = AnswerHead(200, [(b"content-type", b"text/event-stream")], "a", None)
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


class Pieces:
    """What one replica answers: things to say, errors to fail with."""

    def __init__(self, script: Sequence[Any]) -> None:
        self.is_cancelled = False
        self._script = iter(script)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        piece = next(self._script, None)
        if piece is None:
            raise StopAsyncIteration
        if isinstance(piece, Exception):
            raise piece
        return piece

    def cancel(self) -> None:
        self.is_cancelled = True


class Engines:
    """In place of a deployment's handle: plays one script after the other."""

    def __init__(self, *scripts: Sequence[Any]) -> None:
        self.asked: list[tuple[UpstreamRequest, Outline]] = []
        self.played: list[Pieces] = []
        self._scripts = iter(scripts)

    def options(self, **options: Any) -> Self:
        assert options == {"method_name": "answer", "stream": True}
        return self

    def remote(self, ask: UpstreamRequest, outline: Outline) -> Pieces:
        self.asked.append((ask, outline))
        self.played.append(Pieces(next(self._scripts)))
        return self.played[-1]

    @property
    def num_over(self) -> int:
        """How many trips the placement has heard the end of."""
        heard: list[Any] = []
        for _, outline in self.asked:
            outline.trip.ended.add_done_callback(heard.append)
        return len(heard)


OpenDoor = Callable[..., httpx.AsyncClient]


@pytest.fixture
def open_door(monkeypatch: pytest.MonkeyPatch) -> OpenDoor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        from hotloop.ray.ingress import Ingress  # noqa: PLC0415
    monkeypatch.setenv("TEST_HOTLOOP_API_KEY", "secret")

    def open_door(engines: Engines, *, api_key_env: str = "", max_body_bytes: int = 1000) -> httpx.AsyncClient:
        ingress = Ingress(engines, api_key_env=api_key_env, max_body_bytes=max_body_bytes)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await ingress(Request(scope, receive))
            await response(scope, receive, send)

        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://deployment")

    return open_door


@pytest.fixture
def lost() -> Exception:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.exceptions import RayActorError  # noqa: PLC0415
    return RayActorError()


async def test_an_answer_passes_with_a_word_on_where_it_was_made(open_door: OpenDoor):
    engines = Engines([JSON, b'{"id": ', b'"x"}'])
    async with open_door(engines) as http:
        answer = await http.post("/v1/chat/completions?a=b", json=CHAT, headers={"cookie": "c", "x-session-id": "s"})
    assert answer.json() == {"id": "x"}
    assert answer.headers["x-hotloop-route"] == "replica=a; reason=warm; matched=100/8; tried=1"
    assert "x-request-id" not in answer.headers
    [(ask, outline)] = engines.asked
    assert (ask.method, ask.target) == ("POST", "/v1/chat/completions?a=b")
    assert (b"x-session-id", b"s") in ask.headers
    assert not {b"cookie", b"host", b"content-length"} & {name for name, _ in ask.headers}
    assert outline.session == "s"
    assert engines.num_over == 1


async def test_only_who_carries_the_key_is_let_in(open_door: OpenDoor):
    engines = Engines([JSON, b"{}"], [JSON, b"{}"])
    async with open_door(engines, api_key_env="TEST_HOTLOOP_API_KEY") as http:
        assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 401
        refused = await http.post("/v1/messages/batches", json={})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert refused.json()["type"] == "error"
        assert not engines.asked
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/v1/models", headers={"authorization": "Bearer secret"})).status_code == 200


def test_a_key_that_is_not_there_opens_nothing(open_door: OpenDoor):
    with pytest.raises(ConfigError, match="NO_SUCH_VARIABLE is not set"):
        open_door(Engines(), api_key_env="NO_SUCH_VARIABLE")


async def test_too_much_is_not_read(open_door: OpenDoor):
    async with open_door(Engines(), max_body_bytes=10) as http:
        assert (await http.post("/v1/messages", content=b"x" * 11)).json()["error"]["type"] == "request_too_large"


async def test_a_replica_lost_before_it_answers_costs_another_try(open_door: OpenDoor, lost: Exception):
    engines = Engines([lost], [lost], [JSON, b"{}"])
    async with open_door(engines) as http:
        answer = await http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 200
    assert answer.headers["x-hotloop-route"].endswith("tried=3")
    assert engines.num_over == 3
    assert all(pieces.is_cancelled for pieces in engines.played)


async def test_there_is_an_end_to_trying(open_door: OpenDoor, lost: Exception):
    async with open_door(Engines([lost], [lost], [lost])) as http:
        answer = await http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "replica_failed"


async def test_a_replica_lost_in_a_stream_ends_it_with_an_event_of_its_own(open_door: OpenDoor, lost: Exception):
    engines = Engines([EVENTS, b"data: 1\n\nda", b"ta: 2\n\ndata: 3", lost])
    async with open_door(engines) as http:
        answer = await http.post("/v1/chat/completions", json=CHAT)
    *whole, last, end = answer.text.split("\n\n")
    assert whole == ["data: 1", "data: 2"]
    assert '"code":"replica_lost"' in last
    assert end == ""
    assert engines.num_over == 1


async def test_a_ping_is_no_answer_yet(open_door: OpenDoor):
    """Whose id is read from what comes behind it, and who has begun only then."""
    engines = Engines([EVENTS, b": ping\n\n", b'data: {"id": "chatcmpl-1"}\n\n'], [JSON, b"{}"])
    async with open_door(engines) as http:
        answer = await http.post("/v1/chat/completions", json=CHAT)
        await http.get("/v1/cache/explain/chatcmpl-1")
    assert answer.text.startswith(": ping\n\ndata: ")
    (_, first), (_, second) = engines.asked
    assert first.trip.begun.done()
    assert second.owner == "a"


async def test_too_many_waiting_is_said_so(open_door: OpenDoor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.serve.exceptions import BackPressureError  # noqa: PLC0415
    async with open_door(Engines([BackPressureError(5, 5)])) as http:
        answer = await http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1


async def test_what_builds_on_an_answer_goes_to_who_made_it(open_door: OpenDoor):
    engines = Engines([JSON, b'{"id":"resp_1"}'], [JSON, b"{}"], [JSON, b"{}"], [JSON, b"{}"])
    async with open_door(engines) as http:
        await http.post("/v1/responses", json={"input": "hello"})
        await http.post("/v1/responses", json={"input": "and", "previous_response_id": "resp_1"})
        await http.get("/v1/responses/resp_1/input_items")
        await http.get("/v1/responses/resp_2")
    assert [outline.owner for _, outline in engines.asked] == ["", "a", "a", ""]
