"""Clients that leave, clients that do not read, overload, and the end of the server."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import httpx
import openai
import pytest
from tests.server.serving import HELLO, MODEL, Serving, check_error, only, until

from hotloop.backends.backend import Batch
from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.core.errors import ConfigError, DeviceLost
from hotloop.server.app import HttpServer, curl_line

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LONG = {"max_tokens": 2000, "ignore_eos": True}
ENDLESS = {"messages": HELLO, "ignore_eos": True, **only("a")}


def is_idle(serving: Serving) -> bool:
    stats = serving.engine.stats()
    return not stats.num_running and not sum(stats.num_waiting.values()) and not stats.num_blocks_used


def is_busy(serving: Serving) -> bool:
    return serving.engine.stats().num_running > 0


def send_raw(serving: Serving, body: object) -> socket.socket:
    """A client that can leave without a word."""
    data = json.dumps(body).encode()
    client = socket.create_connection(("127.0.0.1", int(serving.url.rpartition(":")[2])))
    client.sendall(POST + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return client


def streamed_text(data: bytes) -> str:
    events = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line.startswith(b"data: {")]
    return "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_frees_its_blocks(serving: Serving, stream: bool, n: int) -> None:
    until(lambda: is_idle(serving))
    num_aborted = serving.engine.stats().num_finished.get("abort", 0)
    client = send_raw(serving, ENDLESS | {"stream": stream, "n": n})
    until(lambda: is_busy(serving))
    client.close()
    until(lambda: is_idle(serving))
    assert serving.engine.stats().num_finished["abort"] == num_aborted + n


def test_closing_the_openai_stream_frees_its_blocks(serving: Serving, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, extra_body={"ignore_eos": True} | only("a")
    )
    next(iter(stream))
    assert is_busy(serving)
    stream.close()
    until(lambda: is_idle(serving))


def test_leaving_while_waiting_in_the_queue() -> None:
    with Serving(engine_config=EngineConfig(max_running=1)) as serving:
        first = send_raw(serving, ENDLESS)
        until(lambda: is_busy(serving))
        second = send_raw(serving, ENDLESS)
        until(lambda: sum(serving.engine.stats().num_waiting.values()) == 1)
        second.close()
        until(lambda: sum(serving.engine.stats().num_waiting.values()) == 0)
        assert is_busy(serving)
        first.close()
        until(lambda: is_idle(serving))


def test_leaving_in_the_middle_of_the_body(serving: Serving) -> None:
    client = send_raw(serving, ENDLESS)
    client.close()
    half = socket.create_connection(("127.0.0.1", int(serving.url.rpartition(":")[2])))
    half.sendall(POST + b"Content-Length: 99\r\n\r\n{")
    half.close()
    until(lambda: is_idle(serving))
    assert serving.http.get("/health").status_code == 200


@pytest.mark.long
def test_a_client_that_does_not_read_gets_everything_in_the_end(serving: Serving) -> None:
    client = send_raw(serving, ENDLESS | {"stream": True, "max_tokens": 3000})
    until(lambda: is_busy(serving))
    until(lambda: is_idle(serving))
    data = b""
    while b"[DONE]" not in data:
        data += client.recv(1 << 16)
    client.close()
    assert streamed_text(data) == "a" * 3000


def test_overload_is_answered_429() -> None:
    with Serving(engine_config=EngineConfig(max_running=1, max_waiting=2)) as serving:
        clients = [send_raw(serving, ENDLESS)]
        until(lambda: is_busy(serving))
        clients += [send_raw(serving, ENDLESS) for _ in range(2)]
        until(lambda: sum(serving.engine.stats().num_waiting.values()) == 2)
        for stream in (False, True):
            response = serving.chat(stream=stream)
            check_error(response, 429, "rate_limit_exceeded")
            assert int(response.headers["retry-after"]) >= 1
        with serving.openai() as client, pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model=MODEL, messages=HELLO)
        for one in clients:
            one.close()
        until(lambda: is_idle(serving))
        assert serving.chat().status_code == 200


def test_choices_are_admitted_together_or_not_at_all() -> None:
    with Serving(engine_config=EngineConfig(max_running=2, max_waiting=4)) as serving:
        assert check_error(serving.chat(n=100), 400)["param"] == "n"
        assert is_idle(serving)
        assert serving.chat(n=4).status_code == 200


def test_a_drain_lets_everything_finish_and_admits_nothing() -> None:
    with Serving() as serving, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(serving.chat, **LONG, **only(letter), stream=letter == "a") for letter in "ab"]
        until(lambda: serving.engine.stats().num_running == 2)
        with serving.gate:
            serving.stop()
            until(lambda: serving.notices == ["draining 2"])
        streamed, whole = (answer.result(30) for answer in answers)
        assert streamed_text(streamed.content) == "a" * 2000
        assert whole.json()["choices"][0]["message"]["content"] == "b" * 2000
        serving.join()
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{serving.url}/health", verify=False)


@pytest.mark.parametrize(("drain_timeout_s", "is_stopped_twice"), [(0.05, False), (1000, True)])
def test_a_drain_that_takes_too_long_or_a_second_stop_ends_streams_with_an_error(
    drain_timeout_s: float, is_stopped_twice: bool
) -> None:
    with Serving(ServerConfig(port=0, drain_timeout_s=drain_timeout_s)) as serving:
        with serving.http.stream("POST", "/v1/chat/completions", json=ENDLESS | {"stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            serving.stop()
            if is_stopped_twice:
                until(lambda: bool(serving.notices))
                serving.stop()
            last = [line for line in lines if line][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        serving.join()


def test_not_ready_while_draining(serving: Serving) -> None:
    assert serving.http.get("/ready").status_code == 200
    with Serving() as draining:
        asyncio.run(draining.engine.drain(1))
        check_error(draining.http.get("/ready"), 503, "shutting_down")
        assert draining.http.get("/health").status_code == 200


def test_neither_healthy_nor_ready_once_the_engine_has_failed() -> None:
    with Serving() as serving:
        serving.engine._core.scheduler.pool.num_idle += 1  # a bug of ours: the check between two requests finds it
        assert serving.chat().status_code == 200
        until(lambda: serving.engine.failure)
        until(lambda: serving.http.get("/health").status_code == 503)
        for path in ("/health", "/ready"):
            check_error(serving.http.get(path), 503)
        assert "has failed" in check_error(serving.chat(), 503)["message"]


def test_a_lost_device_ends_what_runs_and_then_the_server() -> None:
    with Serving() as serving:

        def lose(batch: Batch) -> NoReturn:
            raise DeviceLost("the GPU failed: an illegal memory access was encountered")

        serving.engine._backend.launch = lose  # type: ignore[method-assign]
        assert "illegal memory access" in check_error(serving.chat(), 500)["message"]
        serving.join()
        assert isinstance(serving.engine.failure, DeviceLost)


def test_a_closed_engine_answers_503() -> None:
    with Serving() as serving:
        asyncio.run(serving.engine.drain(1))
        check_error(serving.chat(), 503, "shutting_down")
        check_error(serving.chat(stream=True), 503, "shutting_down")


SERVE = """
import time
from hotloop.backends.null import NullBackend
from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.engine.engine import Engine
from hotloop.server.app import HttpServer
from tests.engine.tiny import TOKENIZER

def say(*words):
    print(*words, flush=True)

backend = NullBackend(vocab_size=TOKENIZER.vocab_size, on_run=lambda batch: time.sleep(0.001))
with Engine(TOKENIZER, backend, EngineConfig()) as engine:
    calls = {"on_ready": lambda url, curl: say(url), "on_drain": lambda n: say("draining", n)}
    HttpServer(engine, ServerConfig(port=0), **calls).run()
say("done")
"""


@pytest.mark.sampled(2)
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_signals(kind: signal.Signals) -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    with subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        body = {"prompt": "hello", "max_tokens": 30_000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", verify=False, json=body, timeout=30) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(kind)
            assert process.stdout.readline() == "draining 1\n"
            process.send_signal(kind)
            last = [line for line in lines if line][-1]
        assert '"shutting_down"' in last
        assert process.stdout.readline() == "done\n"
        assert process.wait(30) == 0


def test_a_port_that_is_taken_is_one_clear_line(serving: Serving) -> None:
    port = int(serving.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        HttpServer(serving.engine, ServerConfig(port=port)).run()


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 99999), ("no such host", 0)])
def test_an_address_that_cannot_be_is_one_clear_line(serving: Serving, host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        HttpServer(serving.engine, ServerConfig(host=host, port=port)).run()


def test_the_curl_line(serving: Serving) -> None:
    assert serving.curl == curl_line(serving.url, is_chat=True, has_key=False)
    assert serving.curl.startswith(f"curl {serving.url}/v1/chat/completions")
    assert "/v1/completions" in curl_line("http://x", is_chat=False, has_key=False)
    assert '"Authorization: Bearer $HOTLOOP_API_KEY"' in curl_line("http://x", is_chat=True, has_key=True)


@pytest.mark.long
def test_many_streams_at_once(serving: Serving) -> None:
    barrier = threading.Barrier(32)

    def one(letter: str) -> str:
        barrier.wait(30)
        body = {"messages": HELLO, "max_tokens": 40, "stream": True, "ignore_eos": True, **only(letter)}
        return streamed_text(
            httpx.post(f"{serving.url}/v1/chat/completions", verify=False, json=body, timeout=30).content
        )

    letters = [chr(ord("A") + i) for i in range(32)]
    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(one, letters)) == [letter * 40 for letter in letters]
    until(lambda: is_idle(serving))
