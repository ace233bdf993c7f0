"""A real Ray, a real Serve, small engines: up, serve, more and fewer replicas under load, a replica lost, down."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.ray.tiny import POISON
from tests.server.serving import until

from hotloop.http.listen import bind

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: hotloop[ray]"),
]

ROOT = Path(__file__).parents[2]
PATIENCE = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "50", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "50"}
"""After 5 and 10 s, which pass on a busy machine, Serve would kill its proxy and give up."""
LONG = 150
"""Tokens of an answer that takes three seconds."""


class TinyDeployment:
    """The deployment's process, and ways to talk to it."""

    def __init__(self, temp_dir: str) -> None:
        with closing(bind("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        # Ray's session, which is how its cluster is found, and its token; its sockets need a short path.
        self.env = {**os.environ, "RAY_TMPDIR": temp_dir, "HOME": temp_dir, "PYTHONPATH": str(ROOT), **PATIENCE}
        command = [sys.executable, "-m", "tests.ray.tiny", str(self.port)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=self.env, stdout=subprocess.PIPE, text=True)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120)

    def until_running(self, num_replicas: int) -> None:
        while self._next_line() != str(num_replicas):
            pass

    def hotloop(self, *words: str) -> str:
        command = [sys.executable, "-m", "hotloop", "ray", *words]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def chat(self, content: str, max_tokens: int = 4, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "ignore_eos": True}
        return self.http.post("/v1/chat/completions", json={**body, **fields})

    def _next_line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        assert line, "the deployment has ended"
        return line


class Load:
    """Clients that ask one thing after the other until they are told to stop. Every answer is checked."""

    def __init__(self, deployment: TinyDeployment, num_clients: int) -> None:
        self.num_answers = 0
        self.failures: list[str] = []
        self.replicas: set[str] = set()
        self._deployment = deployment
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(num_clients)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, index: int) -> None:
        turn = 0
        while not self._is_over.is_set():
            turn += 1
            is_stream = (index + turn) % 2 == 0
            try:
                answer = self._deployment.chat(
                    f"client {index}, turn {turn}", LONG if is_stream else 20, stream=is_stream
                )
            except httpx.HTTPError as error:
                self.failures.append(repr(error))
                continue
            self.num_answers += 1
            self.replicas.add(answer.headers.get("x-hotloop-route", "").partition(";")[0])
            if answer.status_code != 200 or (is_stream and not answer.text.endswith("data: [DONE]\n\n")):
                self.failures.append(answer.text[-500:])


@pytest.fixture(scope="module")
def deployment() -> Iterator[TinyDeployment]:
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as temp_dir:
        deployment = TinyDeployment(temp_dir)
        try:
            deployment.until_running(1)
            yield deployment
            deployment.hotloop("down")
            assert deployment.process.wait(120) == 0
        finally:
            deployment.http.close()
            deployment.process.terminate()
            deployment.process.wait(120)
            assert deployment.process.stdout
            deployment.process.stdout.close()


@pytest.mark.parametrize(("num_failures", "said"), [(0, "up"), (2, "up"), (3, "no Ray on this machine: The current")])
def test_a_slow_start_is_tried_again_and_then_said(num_failures: int, said: str) -> None:
    code = f"""
from hotloop.ray import cluster
failures = [Exception("The current node timed out during startup.")] * {num_failures}
def init(*_, **__):
    if failures:
        raise failures.pop()
cluster.ray.init, cluster.ray.shutdown = init, lambda: None
try:
    with cluster.connected(None):
        print("up")
except cluster.ClusterError as error:
    print(error)
assert not failures
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[: len(said)]) == (0, said), done.stderr


def test_ray_that_is_started_here_reports_no_usage() -> None:
    code = """
import os
from hotloop.ray import cluster
cluster.ray.init, cluster.ray.shutdown = lambda *_, **__: print(os.environ["RAY_USAGE_STATS_ENABLED"]), lambda: None
with cluster.connected(None):
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "0\n", done.stderr


def test_every_api_answers_and_placement_says_why(deployment: TinyDeployment):
    cold = deployment.chat("hello " * 300)
    warm = deployment.chat("hello " * 300)
    assert cold.json()["choices"][0]["finish_reason"] == "length"
    assert "; matched=0/" in cold.headers["x-hotloop-route"]
    assert re.search("; matched=[1-9]", warm.headers["x-hotloop-route"])
    assert warm.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 1000
    message = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "model": "tiny"}
    assert deployment.http.post("/v1/messages", json=message).json()["type"] == "message"
    made = deployment.http.post("/v1/responses", json={"input": "hello", "max_output_tokens": 20}).json()
    assert deployment.http.get(f"/v1/responses/{made['id']}").json()["output"] == made["output"]
    assert deployment.http.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert deployment.http.get("/health").json() == {"status": "ok"}


def test_a_stream_is_what_one_server_would_send(deployment: TinyDeployment):
    body = {"prompt": "hello", "max_tokens": 12, "stream": True, "temperature": 0}
    with deployment.http.stream("POST", "/v1/completions", json=body) as answer:
        pieces = list(answer.iter_raw())
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert len(answer.headers.get_list("x-request-id")) == 1
    assert len(pieces) > 1
    assert b"".join(pieces).endswith(b"data: [DONE]\n\n")


def test_nothing_runs_on_for_a_client_that_has_hung_up(deployment: TinyDeployment):
    body = {"prompt": "hello", "max_tokens": 3000, "stream": True, "ignore_eos": True}
    with deployment.http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_raw())
    until(lambda: "\nhotloop_requests_running 0.0\n" in deployment.http.get("/metrics").text)


def test_what_is_wrong_is_said_in_the_shape_of_the_api(deployment: TinyDeployment):
    broken = deployment.http.post("/v1/messages", content=b"{", headers={"content-type": "application/json"})
    assert broken.status_code == 400
    assert broken.json()["error"]["type"] == "invalid_request_error"
    assert deployment.http.get("/nonsense").status_code == 404


def test_replicas_come_and_go_under_load_and_no_request_fails(deployment: TinyDeployment):
    many = Load(deployment, 12)
    deployment.until_running(2)
    until(lambda: len(many.replicas) == 2)
    few = Load(deployment, 2)
    many.stop()
    deployment.until_running(1)
    few.stop()
    assert many.failures == few.failures == []
    assert few.num_answers > 0


def test_a_replica_that_dies_in_the_middle_ends_its_stream_with_an_error(deployment: TinyDeployment):
    lost = deployment.chat(POISON, LONG, stream=True)
    assert lost.status_code == 200
    assert '"code":"replica_lost"' in lost.text.rpartition("data: ")[2]
    assert deployment.chat("hello").status_code == 200


def test_status_says_how_the_deployment_is(deployment: TinyDeployment):
    assert '"state": "RUNNING"' in deployment.hotloop("status", "--json")
