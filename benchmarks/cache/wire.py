"""Bodies out, events and explanations in: the one place here that knows HTTP."""

import time
from dataclasses import dataclass
from typing import Any, Self

import httpx
import msgspec

from hotloop.bench.client import ChatClient, refused
from hotloop.core.errors import RemoteError
from hotloop.http.client import bearer, broke_off, open_client
from hotloop.wire.field import Json
from hotloop.wire.sse import EventReader


class Cause(msgspec.Struct):
    """Why so many tokens were recomputed."""

    cause: str
    tokens: int = 0


class Explanation(msgspec.Struct):
    """What hotloop says of how a prompt was read."""

    id: str
    recomputed_tokens: int = 0
    block_tokens: int = 0
    exact_tokens: int = 0
    causes: list[Cause] = []

    @property
    def num_recomputed(self) -> int:
        """Tokens recomputed that a cache of whole blocks could have had."""
        return self.recomputed_tokens - self.block_tokens


@dataclass(frozen=True, slots=True)
class Streamed:
    """The events of an answer, and the seconds until the first of them."""

    events: list[Json]
    ttft_s: float


class Wire:
    """A server that tells how much of a prompt was cached. An async context manager; connections are pooled."""

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._api_key = api_key
        self._http = open_client(bearer(api_key))

    async def __aenter__(self) -> Self:
        async with ChatClient(self.url, model=self._model, api_key=self._api_key) as client:
            self._model = await client.find_model()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def stream(self, path: str, body: Json, session_id: str) -> Streamed:
        began_at = time.perf_counter()
        first_at: float | None = None
        events: list[Json] = []
        headers = {"X-Session-ID": session_id}
        try:
            async with self._http.stream(
                "POST", f"{self.url}{path}", json={"model": self._model, **body}, headers=headers
            ) as response:
                if response.status_code != 200:
                    raise refused(self.url, response.status_code, await response.aread())
                reader = EventReader()
                async for data in response.aiter_bytes():
                    for event in reader.push(data):
                        if event.data.strip() != b"[DONE]" and event.name != "ping":
                            first_at = first_at or time.perf_counter()
                            events.append(_parse(event.data))
        except httpx.HTTPError as error:
            raise broke_off(self.url, error) from None
        if first_at is None:
            raise RemoteError(f"{self.url} answered nothing")
        return Streamed(events, first_at - began_at)

    async def explain(self, answer_id: str, salt: str) -> Explanation:
        """Why tokens of its prompt, which had this salt, were recomputed."""
        try:
            response = await self._http.get(f"{self.url}/v1/cache/explain/{answer_id}", params={"cache_salt": salt})
            if response.status_code != 200:  # other engines do not say
                return Explanation(answer_id)
            return msgspec.json.decode(response.content, type=Explanation)
        except httpx.HTTPError as error:
            raise broke_off(self.url, error) from None
        except msgspec.MsgspecError as error:
            raise RemoteError(f"{self.url} gave an explanation that is none: {error}") from None


def _parse(data: bytes) -> Json:
    try:
        event: Any = msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteError(f"not an event: {data[:200].decode(errors='replace')} ({error})") from None
    if not isinstance(event, dict) or event.get("error"):
        raise RemoteError(f"the stream ended in an error: {str(event)[:200]}")
    return event
