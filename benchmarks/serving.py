"""A server of our own for the time of one replay."""

from collections.abc import Callable, Sequence

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
