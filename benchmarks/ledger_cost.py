"""What does recording the ledger cost? One server with `--trace FILE` and one without replay the same jobs in turn.

    python -m benchmarks.ledger_cost [--data RUNS.jsonl.gz] [--rounds N] [--agents N] [--jobs N] [--json]

Each round begins with the other of the two. Tokens a second swing with the machine, so the ratio is taken round by
round, and beside it stands the processor time that each server spent for the same work, which swings less.
"""

import json
import os
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hotloop.bench.serving import ChildServer, exit_on_sigterm, replay_server
from hotloop.bench.workload import Job, generate_jobs, read_jobs
from hotloop.trace.store import TraceStore

MAX_CHARS = 26_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Lane:
    """One of the two servers, round by round."""

    label: str
    tokens_per_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def run(self, server: ChildServer, jobs: Sequence[Job], num_agents: int) -> None:
        before = _cpu_s(server)
        summary = replay_server(self.label, server.url, jobs, num_agents=num_agents)
        self.cpu_s.append(_cpu_s(server) - before)
        self.tokens_per_s.append(summary.output_tokens_per_s)


def _cpu_s(server: ChildServer) -> float:
    """Of all threads of the server, user and system."""
    stat = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / _TICKS_PER_S


def measure(jobs: Sequence[Job], *, num_rounds: int, num_agents: int) -> tuple[Lane, Lane, int]:
    """Without, with, and how many spans were recorded. A first round of both is thrown away: caches are cold."""
    off, on = Lane("off"), Lane("on")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.db"
        with ChildServer() as plain, ChildServer(("--trace", str(path))) as traced:
            lanes = [(off, plain), (on, traced)]
            for number in range(num_rounds + 1):
                for lane, server in lanes if number % 2 else reversed(lanes):
                    lane.run(server, jobs, num_agents)
        with TraceStore(path) as store:
            num_spans = sum(run.num_spans for run in store.runs(limit=1_000_000))
    for lane in (off, on):
        del lane.tokens_per_s[0], lane.cpu_s[0]
    return off, on, num_spans


def costs(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """How much more of it, round by round."""
    return [b / a - 1 for a, b in zip(before, after, strict=True)]


def main() -> int:
    flags = _parse()
    exit_on_sigterm()
    jobs = (
        read_jobs(flags.data, max_jobs=flags.jobs, max_turns=6, max_output=48, max_chars=MAX_CHARS)
        if flags.data
        else generate_jobs(num_jobs=flags.jobs, num_turns=6, num_output=32)
    )
    with Console(stderr=True).status(f"{flags.rounds + 1} rounds of two servers ..."):
        off, on, num_spans = measure(jobs, num_rounds=flags.rounds, num_agents=flags.agents)
    slower = [-cost for cost in costs(off.tokens_per_s, on.tokens_per_s)]
    busier = costs(off.cpu_s, on.cpu_s)
    if flags.json:
        lanes = {lane.label: {"tokens_per_s": lane.tokens_per_s, "cpu_s": lane.cpu_s} for lane in (off, on)}
        print(json.dumps({**lanes, "throughput_lost": slower, "cpu_added": busier, "num_spans": num_spans}))
    else:
        Console(highlight=False, soft_wrap=True).print(_table(off, on, slower, busier), f"{num_spans} spans recorded")
    return 0


def _table(off: Lane, on: Lane, slower: Sequence[float], busier: Sequence[float]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("", "off", "on", "cost, median of rounds", "least", "most"):
        table.add_column(title, justify="right" if title else "left")
    for name, form, a, b, lost in (
        ("output tokens/s", "{:.1f}", off.tokens_per_s, on.tokens_per_s, slower),
        ("processor time a round", "{:.2f} s", off.cpu_s, on.cpu_s, busier),
    ):
        shares = (f"{value:+.1%}" for value in (statistics.median(lost), min(lost), max(lost)))
        table.add_row(name, form.format(statistics.median(a)), form.format(statistics.median(b)), *shares)
    return table


def _parse() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="recorded transcripts; generated jobs if not given")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
