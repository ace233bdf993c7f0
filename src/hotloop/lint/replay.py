"""Recorded requests asked again, one after another, to see what a server makes of them now. The words of its answers
are not used: the next request is the recorded one.
"""

import json
from collections.abc import AsyncIterator, Iterable

import httpx

from hotloop.core.errors import RemoteError
from hotloop.http.client import bearer, broke_off, open_client
from hotloop.lint.requests import API_PATHS, LintedRequest
from hotloop.wire.field import Json

_MAX_ANSWER = 16 << 20
_PATHS = {api: f"/v1{path}" for path, api in API_PATHS.items()}


async def replay(
    url: str, requests: Iterable[LintedRequest], *, model: str | None = None, api_key: str | None = None
) -> AsyncIterator[Json]:
    """A row for each, as `read_requests` takes it. Raises RemoteError where one is not answered."""
    async with open_client(bearer(api_key)) as client:
        for number, request in enumerate(requests, start=1):
            body = {**request.body, "stream": False}
            body.pop("stream_options", None)
            if model or not request.model:
                body["model"] = model or ""
            answer = await _ask(client, f"{url}{_PATHS[request.api]}", body, number)
            yield {"request": body, "response": answer, "session": request.session or request.run}


async def _ask(client: httpx.AsyncClient, address: str, body: Json, number: int) -> Json:
    data = bytearray()
    try:
        async with client.stream("POST", address, json=body) as response:
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > _MAX_ANSWER:
                    raise RemoteError(f"{address}: the answer to request {number} is larger than {_MAX_ANSWER} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise broke_off(address, error) from None
    if response.status_code != 200:
        said = bytes(data[:300]).decode("utf-8", "replace")
        raise RemoteError(f"{address} answered {response.status_code} to request {number}: {said}")
    try:
        answer = json.loads(bytes(data))
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise RemoteError(f"{address}: the answer to request {number} is no JSON object")
    return answer
