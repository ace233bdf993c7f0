"""Three real replicas with little room behind a router, and more agents than one of them could keep: what does it
matter where a turn goes?

Each policy gets replicas of its own that have read nothing, and exactly the same work: prompts come from a workload,
answers are thrown away (see replay.py). A replica has room for its share of the agents and not for all of them.
"""

import asyncio
import math
import re
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
from rich.table import Table

from benchmarks.route.processes import RouterProcess
from hotloop.bench.client import ChatClient
from hotloop.bench.replay import Progress, Replay, replay
from hotloop.bench.report import Summary, ratios, summarise, table_of
from hotloop.bench.serving import ChildServer
from hotloop.bench.workload import AgentJob
from hotloop.core.errors import RemoteError

_SHOWN = (
    "num_jobs", "num_steps", "num_errors", "num_prompt_tokens", "num_prefilled_tokens", "num_recomputed_tokens",
    "cached_share", "ttft_p50_s", "job_mean_s", "job_p95_s", "wall_s",
)  # fmt: skip
_PROBE_BYTES = 32 << 20  # so small that the cache bounds the context, which then tells what a token takes


class ReplicaCount(NamedTuple):
    """What one replica had to do, by its own account."""

    num_requests: int
    num_computed: int
    """Tokens read, but for those that were cached, and written."""


@dataclass(frozen=True, slots=True)
class FleetSide:
    """One policy's run."""

    summary: Summary
    replicas: tuple[ReplicaCount, ...]
    errors: tuple[str, ...]

    @property
    def imbalance(self) -> float:
        """The busiest replica's requests, as a multiple of the mean."""
        return _busiest_by_mean([replica.num_requests for replica in self.replicas])

    @property
    def computed_imbalance(self) -> float:
        return _busiest_by_mean([replica.num_computed for replica in self.replicas])


def fleet_json(sides: Sequence[FleetSide]) -> dict[str, Any]:
    """Of two sides, the second compared with the first."""
    runs = [
        side.summary.to_json()
        | {"imbalance": round(side.imbalance, 3), "computed_imbalance": round(side.computed_imbalance, 3)}
        for side in sides
    ]
    return {"runs": runs, "times_better": ratios(*(side.summary for side in sides))}


def fleet_table(sides: Sequence[FleetSide]) -> Table:
    table = table_of([side.summary for side in sides], _SHOWN)
    table.add_row("busiest / mean, requests", *(f"{side.imbalance:.2f}" for side in sides))
    table.add_row("busiest / mean, tokens", *(f"{side.computed_imbalance:.2f}" for side in sides))
    return table


def run_side(
    policy: str,
    jobs: Sequence[AgentJob],
    *,
    num_replicas: int,
    num_agents: int,
    gap_s: float,
    flags: Sequence[str] = (),
    watch: Callable[[Progress], None] = lambda _: None,
) -> FleetSide:
    """Start replicas with these flags and a router with this policy, replay the jobs, and stop all of it."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ChildServer(flags)) for _ in range(num_replicas)]
        urls = [server.url for server in servers]
        router = stack.enter_context(RouterProcess(urls, ("--policy", policy)))
        run = asyncio.run(_replay(router.url, jobs, num_agents, gap_s, watch))
        if not run.steps:
            raise RemoteError(run.errors[0])
        counts = tuple(count_replica(httpx.get(f"{url}/metrics").text) for url in urls)
    return FleetSide(summarise(policy, run, jobs), counts, tuple(run.errors))


async def _replay(
    url: str, jobs: Sequence[AgentJob], num_agents: int, gap_s: float, watch: Callable[[Progress], None]
) -> Replay:
    async with ChatClient(url) as client:
        return await replay(client, jobs, num_agents=num_agents, gap_s=gap_s, watch=watch)


def count_replica(page: str) -> ReplicaCount:
    """From a metrics page of hotloop's."""
    num_prompt, num_cached, num_output, num_requests = (
        _sum_metric(page, f"hotloop_{name}_total")
        for name in ("prompt_tokens", "cached_prompt_tokens", "output_tokens", "requests")
    )
    return ReplicaCount(num_requests, num_prompt - num_cached + num_output)


def _sum_metric(page: str, name: str) -> int:
    values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
    return round(sum(map(float, values)))


def _busiest_by_mean(loads: Sequence[int]) -> float:
    mean = statistics.fmean(loads)
    return max(loads) / mean if mean else 0.0


def size_room(jobs: Sequence[AgentJob], num_agents: int, flags: Sequence[str] = ()) -> str:
    """The `kv_memory` that holds so many of these agents at their longest: what they share once, and what is theirs.
    Counted and asked of a server with these flags."""

    def count(http: httpx.Client, messages: Sequence[Any]) -> int:
        answer = http.post("/tokenize", json={"messages": list(messages)})
        return int(answer.raise_for_status().json()["count"])

    with (
        ChildServer([*flags, "--kv-memory", f"{_PROBE_BYTES}b"]) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        shared = count(http, jobs[0].turns[-1].messages[:1])
        own = (count(http, job.turns[-1].messages) + job.turns[-1].num_output - shared for job in jobs)
        num_tokens = shared + num_agents * statistics.fmean(own)
        model = http.get("/v1/models").json()["data"][0]
        return f"{math.ceil(num_tokens * _PROBE_BYTES / model['max_model_len'])}b"
