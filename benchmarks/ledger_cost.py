"""What does recording the ledger cost? One server with `--trace FILE` and two without replay the same jobs in turn.

    python -m benchmarks.ledger_cost [--data RUNS.jsonl.gz] [--rounds N] [--agents N] [--jobs N] [--json]

Each round begins with another of the three. Tokens a second swing with the machine, so ratios are taken round by round,
and the second server without a trace shows how far two swing apart that are alike: a cost that is no larger than that
cannot be told from none. Drafts are off: they learn from what they have seen, so that every round would be another.
"""

import json
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.route.processes import cpu_s_of
from hotloop.bench.report import figures_table
from hotloop.bench.serving import ChildServer, exit_on_sigterm, replay_server
from hotloop.bench.workload import AgentJob, generate_jobs, read_jobs
from hotloop.trace.store import TraceStore

MAX_CHARS = 26_000
_FLAGS = ("--no-drafts",)


@dataclass
class Lane:
    """One of the servers, round by round."""

    label: str
    tokens_per_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def run(self, server: ChildServer, jobs: Sequence[AgentJob], num_agents: int) -> None:
        before = cpu_s_of(server.pid)
        summary = replay_server(self.label, server.url, jobs, num_agents=num_agents)
        self.cpu_s.append(cpu_s_of(server.pid) - before)
        self.tokens_per_s.append(summary.output_tokens_per_s)


def measure(jobs: Sequence[AgentJob], *, num_rounds: int, num_agents: int) -> tuple[list[Lane], int]:
    """Without, without again, with; and how many spans were recorded. A first round is thrown away: caches are cold."""
    lanes = [Lane("off"), Lane("off again"), Lane("on")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.db"
        more: Sequence[Sequence[str]] = ((), (), ("--trace", str(path)))
        with ExitStack() as stack:
            servers = [stack.enter_context(ChildServer((*_FLAGS, *flags))) for flags in more]
            for number in range(num_rounds + 1):
                order = [(number + i) % len(lanes) for i in range(len(lanes))]
                for i in order:
                    lanes[i].run(servers[i], jobs, num_agents)
        with TraceStore(path) as store:
            num_spans = sum(run.num_spans for run in store.runs(limit=1_000_000))
    for lane in lanes:
        del lane.tokens_per_s[0], lane.cpu_s[0]
    return lanes, num_spans


@dataclass(frozen=True)
class Cost:
    """Shares lost or added, round by round, of one lane against the first."""

    label: str
    shares: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.shares)

    @property
    def error(self) -> float:
        """Of the mean: twice its standard error."""
        return 2 * statistics.stdev(self.shares) / len(self.shares) ** 0.5 if len(self.shares) > 1 else 0.0


def compare(off: Lane, other: Lane) -> list[Cost]:
    slower = [1 - b / a for a, b in zip(off.tokens_per_s, other.tokens_per_s, strict=True)]
    busier = [b / a - 1 for a, b in zip(off.cpu_s, other.cpu_s, strict=True)]
    return [Cost(f"throughput lost, {other.label}", slower), Cost(f"processor time added, {other.label}", busier)]


def main() -> int:
    flags = _parse()
    exit_on_sigterm()
    jobs = (
        read_jobs(flags.data, max_jobs=flags.jobs, max_turns=6, max_output=48, max_chars=MAX_CHARS)
        if flags.data
        else generate_jobs(num_jobs=flags.jobs, num_turns=6, num_output=32)
    )
    with Console(stderr=True).status(f"{flags.rounds + 1} rounds of three servers ..."):
        lanes, num_spans = measure(jobs, num_rounds=flags.rounds, num_agents=flags.agents)
    costs = [cost for lane in lanes[1:] for cost in compare(lanes[0], lane)]
    if flags.json:
        told = {cost.label: {"mean": cost.mean, "error": cost.error, "rounds": cost.shares} for cost in costs}
        print(json.dumps({**told, "num_spans": num_spans, "lanes": [asdict(lane) for lane in lanes]}))
    else:
        Console(highlight=False, soft_wrap=True).print(_table(costs), f"{num_spans} spans recorded")
    return 0


def _table(costs: Sequence[Cost]) -> Table:
    table = figures_table("against the first server", ("mean of rounds", "give or take", "least", "most"))
    for cost in costs:
        shares = (f"{cost.mean:+.2%}", f"{cost.error:.2%}", f"{min(cost.shares):+.1%}", f"{max(cost.shares):+.1%}")
        table.add_row(cost.label, *shares)
    return table


def _parse() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="recorded transcripts; generated jobs if not given")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
