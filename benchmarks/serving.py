"""A server of our own for the time of one question."""

import math
from collections.abc import Callable, Sequence

import httpx

from hotloop.bench.serving import ChildServer

_PROBE_BYTES = 32 << 20  # so small that the cache bounds the context, which then tells what a token takes


def size_memory(count_tokens: Callable[[httpx.Client], float], flags: Sequence[str] = ()) -> str:
    """The `kv_memory` that holds so many tokens, counted and asked of a server with these flags."""
    with (
        ChildServer([*flags, "--kv-memory", f"{_PROBE_BYTES}b"]) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        model = http.get("/v1/models").json()["data"][0]
        return f"{math.ceil(count_tokens(http) * _PROBE_BYTES / model['max_model_len'])}b"
