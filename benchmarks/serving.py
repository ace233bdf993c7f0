"""A server of our own for the time of one replay, or of one question."""

import math
from collections.abc import Callable, Sequence

import httpx

from hotloop.bench.replay import Progress
from hotloop.bench.report import Summary
from hotloop.bench.serving import ChildServer, replay_server
from hotloop.bench.workload import AgentJob


def replay_child(
    label: str,
    flags: Sequence[str],
    jobs: Sequence[AgentJob],
    *,
    num_agents: int,
    gap_s: float = 0.0,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Summary:
    """Start a server, replay the jobs against it, stop it."""
    with ChildServer(flags) as server:
        return replay_server(label, server.url, jobs, num_agents=num_agents, gap_s=gap_s, watch=watch)


_PROBE_BYTES = 32 << 20  # so small that the cache bounds the context, which then tells what a token takes


def size_memory(count_tokens: Callable[[httpx.Client], float], flags: Sequence[str] = ()) -> str:
    """The `kv_memory` that holds so many tokens, counted and asked of a server with these flags."""
    with (
        ChildServer([*flags, "--kv-memory", f"{_PROBE_BYTES}b"]) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        model = http.get("/v1/models").json()["data"][0]
        return f"{math.ceil(count_tokens(http) * _PROBE_BYTES / model['max_model_len'])}b"
