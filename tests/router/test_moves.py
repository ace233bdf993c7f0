"""A prompt that is given to another replica than the one that has it brings its KV along."""

from collections.abc import Iterator

import httpx
import pytest
from tests.loopback import http_at
from tests.server.serving import Routing, Serving, until

from hotloop.core.config import EngineConfig, ServerConfig

PEERS = ("http://127.0.0.1:*",)
STORY = "The quick brown fox jumps over the lazy dog. " * 80  # a token is a byte
NUM_MOVED = len(STORY) // 256 * 256


def serving() -> Serving:
    return Serving(ServerConfig(port=0), EngineConfig(debug_checks=True, drafts=False, kv_peers=PEERS))


def ask(http: httpx.Client, story: str, session: str = "s") -> tuple[str, int, str]:
    """The answer, how much of the prompt was cached, and which replica gave it."""
    body = {"model": "tiny", "prompt": story, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    response = http.post("/v1/completions", json=body, headers={"x-session-id": session})
    assert response.status_code == 200, response.text
    said, where = response.json(), response.headers["x-hotloop-route"]
    cached: int = said["usage"]["prompt_tokens_details"]["cached_tokens"]
    return said["choices"][0]["text"], cached, where.partition("replica=")[2].partition(";")[0]


@pytest.fixture
def pair() -> Iterator[dict[str, Serving]]:
    with serving() as one, serving() as two:
        yield {"r0": one, "r1": two}


def urls(pair: dict[str, Serving]) -> list[str]:
    return [server.url for server in pair.values()]


@pytest.mark.parametrize("move_kv", [True, False])
def test_a_session_takes_its_kv_along_when_its_replica_drains(move_kv: bool, pair: dict[str, Serving]) -> None:
    routing = Routing(*urls(pair), move_kv=move_kv)
    with routing as url, http_at(url) as http:
        said, _, home = ask(http, STORY)
        longer = STORY + said + " And then?"
        pair[home].server.begin_drain()
        replicas = routing._server.app.replica_set.replicas
        until(lambda: replicas[home].state == "draining")
        told, num_cached, place = ask(http, longer)
        assert place != home
        assert num_cached == (NUM_MOVED if move_kv else 0)
        with serving() as alone, http_at(alone.url) as other:
            body = {"prompt": longer, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            assert other.post("/v1/completions", json=body).json()["choices"][0]["text"] == told
        pair[home].server._service.is_draining = False
        until(lambda: replicas[home].state == "up")
        assert ask(http, longer)[2] == place, "it stays where it is now"


def test_a_replica_that_drains_hands_its_sessions_on(pair: dict[str, Serving]) -> None:
    routing = Routing(*urls(pair))
    with routing as url, http_at(url) as http:
        said, _, home = ask(http, STORY)
        (other,) = {*pair} - {home}
        pair[home].server.begin_drain()
        until(lambda: pair[other].engine.stats().moves.num_copies == 1)
        placement = routing._server.app.replica_set._placement
        until(lambda: placement.sessions_at(other, 9) == ["s"])
        pair[home].server.stop()
        pair[home].join()
        until(lambda: routing._server.app.replica_set.replicas[home].state == "down")
        _, num_cached, place = ask(http, STORY + said + " And then?")
        assert (place, num_cached) == (other, NUM_MOVED), "it is there although nobody can be asked any more"


def test_a_replica_that_was_taken_out_may_still_be_asked(pair: dict[str, Serving]) -> None:
    routing = Routing(*urls(pair))
    with routing as url, http_at(url) as http:
        _, _, home = ask(http, STORY)
        replica_set = routing._server.app.replica_set
        config = replica_set.config
        left = tuple(each for each in config.replicas if each.name != home)
        loop = routing._server.app.replica_set._watches[replica_set.replicas[home]].get_loop()
        loop.call_soon_threadsafe(replica_set.reload, type(config)(router=config.router, replicas=left))
        until(lambda: home not in replica_set.replicas)
        _, num_cached, place = ask(http, STORY + " And then?")
        assert place != home
        assert num_cached == NUM_MOVED


def test_a_replica_that_is_gone_costs_no_more_than_computing(pair: dict[str, Serving]) -> None:
    with Routing(*urls(pair), health_interval_s=600.0) as url, http_at(url) as http:
        said, _, home = ask(http, STORY)
        pair[home].server.stop()
        pair[home].join()
        _, num_cached, place = ask(http, STORY + said)
        assert place != home
        assert num_cached == 0
