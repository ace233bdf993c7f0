"""Two servers behind a router, all writing to one store, each through a tracer of its own; and a model with roles."""

from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from tests.backends.scripted import ScriptedBackend
from tests.engine.tiny import TOKENIZER
from tests.server.serving import MODEL, Serving, until

from hotloop.core.config import RouterConfig
from hotloop.router.config import read_routing
from hotloop.router.serve import RouterServer
from hotloop.trace.store import StoreTracer

NUM_BLOCKS = 8192

Says = Callable[[str], str]
"""A prompt, and what is answered to it."""


class CastBackend(ScriptedBackend):
    """Says what its part in the play is: that depends on all of the prompt, and on nothing else."""

    def __init__(self, says: Says) -> None:
        super().__init__(TOKENIZER, [], num_blocks=NUM_BLOCKS)
        self._says = says
        self._parts: dict[str, dict[bytes, int]] = {}

    def _next_token(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> int:
        prompt, _, said = self._spell(token_ids).rpartition(self._opening)
        text = self._says(prompt.decode())
        if text not in self._parts:
            self._parts[text] = self._plan(text)
        return self._parts[text].get(said, self._end_id)


class Mortal:
    """A replica that looks well until it is gone."""

    def __init__(self) -> None:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = b'{"data": [{"id": "%s"}]}' % MODEL.encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    def die(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class RoutedReplicas:
    """`says` makes the servers' models. A third replica dies when the router has seen it well."""

    def __init__(self, path: Path, says: Says) -> None:
        self.path = path
        self.servers: list[Serving] = []
        self._says = says
        self._mortal = Mortal()
        self._stack = ExitStack()

    def __enter__(self) -> "RoutedReplicas":
        for _ in range(2):
            serving = Serving(backend=CastBackend(self._says), tracer=self._tracer())
            self.servers.append(self._stack.enter_context(serving))
        urls = tuple(each.url for each in (*self.servers, self._mortal))
        settings = RouterConfig(port=0, replica=urls, health_interval_s=60.0, drain_timeout_s=5.0)
        is_ready = Event()
        router = RouterServer(
            read_routing(settings, None, {}), tracer=self._tracer(), on_ready=lambda url: self._open(url, is_ready)
        )
        thread = Thread(target=router.run)
        thread.start()
        self._stack.callback(thread.join, 30)
        self._stack.callback(router.stop)
        assert is_ready.wait(30)
        until(lambda: len(self._up()) == len(urls))
        self._mortal.die()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def count(self, name: str) -> int:
        """One of the engines' own totals, once nothing is under way any more."""
        until(lambda: not any(each.engine.stats().num_running for each in self.servers))
        return sum(getattr(each.engine.stats().usage, f"num_{name}") for each in self.servers)

    def _open(self, url: str, is_ready: Event) -> None:
        self.url = url
        is_ready.set()

    def _up(self) -> list[Any]:
        replicas = httpx.get(f"{self.url}/router/replicas", verify=False).json()["replicas"]
        return [each for each in replicas if each["state"] == "up"]

    def _tracer(self) -> StoreTracer:
        tracer = StoreTracer(self.path)
        self._stack.callback(tracer.close)
        return tracer
