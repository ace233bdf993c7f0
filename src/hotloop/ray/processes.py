"""What answers inside a replica: hotloop's own engine in the same process, or vLLM's server as a child of it."""

import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Protocol

import httpx

from hotloop.core.config import ServerConfig
from hotloop.core.errors import EngineClosed
from hotloop.engine.engine import Engine
from hotloop.http.listen import bind
from hotloop.models.catalogue import needs_pull
from hotloop.models.model import pull
from hotloop.ray.asgi import ask_app
from hotloop.ray.config import HotloopConfig, RayConfig, VllmConfig
from hotloop.router.upstream.open_upstream import open_upstream
from hotloop.router.upstream.wire import Timeouts, UpstreamRequest, UpstreamResponse
from hotloop.server.app import create_app

_POLL_S = 0.2
_STOP_S = 10.0


class EngineProcess(Protocol):
    """Whatever answers inside a replica. It is ready once it is made; `check` raises if it will never answer again."""

    capacity_tokens: int

    async def send(self, request: UpstreamRequest) -> UpstreamResponse: ...

    def check(self) -> None: ...

    def close(self) -> None: ...


OpenProcess = Callable[[], EngineProcess]


class HotloopProcess:
    def __init__(self, engine: Engine, server: ServerConfig) -> None:
        self._engine = engine.start()
        self._app = create_app(engine, server)
        self.capacity_tokens = engine.num_kv_tokens

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        return await ask_app(self._app, request)

    def check(self) -> None:
        if self._engine.failure:
            raise EngineClosed("the engine has failed; see the replica's log")

    def close(self) -> None:
        self._engine.close()


class VllmProcess:
    """vLLM's server on a free port of loopback."""

    def __init__(self, config: VllmConfig, *, capacity_tokens: int, max_connections: int) -> None:
        self.capacity_tokens = capacity_tokens
        with closing(bind("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        command = [*config.command, config.model, "--host", "127.0.0.1", "--port", str(port), *config.args]
        try:
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise EngineClosed(f"{command[0]} cannot be started: {error.strerror}") from None
        self._url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + config.start_timeout_s
        try:
            while not self._is_healthy():
                self.check()
                if time.monotonic() > deadline:
                    raise EngineClosed(f"vLLM was not healthy after {config.start_timeout_s:.0f} s")
                time.sleep(_POLL_S)
        except BaseException:
            self.close()
            raise
        self._upstream = open_upstream(self._url, max_connections=max_connections, timeouts=Timeouts())

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        return await self._upstream.send(request)

    def check(self) -> None:
        if (code := self._child.poll()) is not None:
            raise EngineClosed(f"vLLM has ended with code {code}; see the replica's log")

    def close(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _is_healthy(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self._url}/health", timeout=_POLL_S * 10).is_success
        return False


def open_hotloop(config: HotloopConfig) -> HotloopProcess:
    """A model that can be fetched by its name is, if it is not here."""
    model = config.model
    if model.load_format != "dummy" and needs_pull(model.model):
        pull(model.model)
    engine = Engine.load(
        model.model,
        config.engine,
        weights=model.weights,
        precision=model.precision,
        device=model.device,
        load_format=model.load_format,
    )
    return HotloopProcess(engine, config.server)


def open_process(config: RayConfig) -> EngineProcess:
    if config.engine == "hotloop":
        return open_hotloop(config.hotloop)
    return VllmProcess(config.vllm, capacity_tokens=config.capacity_tokens, max_connections=config.max_ongoing)
