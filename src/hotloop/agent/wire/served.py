"""A model behind an API over HTTP, whichever it is."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import httpx

from hotloop.agent.model import Ask, ModelEvent
from hotloop.agent.wire.asking import Listener
from hotloop.agent.wire.http import TIMEOUT, RemoteServer, Retries
from hotloop.agent.wire.session import session_headers
from hotloop.core.errors import RemoteError
from hotloop.wire.field import Json
from hotloop.wire.reader import Reader
from hotloop.wire.sse import ServerEvent


class ServedModel(ABC):
    """Without a `model` it is the first that the server lists.

    `is_plain` is for servers that refuse fields they do not know: it leaves out all but the oldest.
    """

    path: str
    models_path = "/models"

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        is_plain: bool = False,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        retries: Retries | None = None,
    ) -> None:
        own = {**self._key_headers(api_key), **(headers or {})}
        self._server = RemoteServer(base_url, headers=own, secret=api_key, timeout=timeout, retries=retries)
        self._model = model
        self._is_plain = is_plain
        self._is_hotloop = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._server.url!r}, {self._model!r})"

    @property
    def name(self) -> str:
        return self._model or self._server.url

    @property
    def can_read_ahead(self) -> bool:
        """Only hotloop reads without answering; it shows itself in the usage of its answers."""
        return self._is_hotloop

    async def stream(self, ask: Ask) -> AsyncGenerator[ModelEvent, None]:
        body = self._render(ask, await self.find_model(), is_stream=True)
        listener = Listener(self._server, self._reader(ask))
        async with aclosing(self._server.events(self.path, body, session_headers(ask), self._is_last)) as events:
            async for event in events:
                for each in listener.push(event):
                    yield each
        last = [*listener.finish()]
        self._is_hotloop |= listener.is_hotloop
        for each in last:
            yield each

    async def read(self, ask: Ask) -> None:
        body = self._render(ask, await self.find_model(), is_stream=False)
        await self._server.post(self.path, body | self._quiet, session_headers(ask))

    async def find_model(self) -> str:
        """The model's name on this server."""
        if self._model is None:
            self._model = await self._first_model()
        return self._model

    async def close(self) -> None:
        await self._server.close()

    async def _first_model(self) -> str:
        match await self._server.get(self.models_path):
            case {"data": [{"id": str(name)}, *_]}:
                return name
        raise RemoteError(f"{self._server.url}{self.models_path} lists no model: name the one to use")

    @property
    def _quiet(self) -> Json:
        """What has a prompt read, and nothing answered."""
        return {}

    def _key_headers(self, api_key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    @abstractmethod
    def _render(self, ask: Ask, model: str, *, is_stream: bool) -> Json: ...

    @abstractmethod
    def _reader(self, ask: Ask) -> Reader: ...

    @abstractmethod
    def _is_last(self, event: ServerEvent) -> bool: ...
