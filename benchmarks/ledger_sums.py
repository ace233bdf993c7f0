"""Does the ledger add up? Twelve agents with everything on, through a real router to two real servers.

    python -m benchmarks.ledger_sums [--data RUNS.jsonl.gz] [--max-chars N] [--model MODEL] [--json]

On are prefix reuse, drafts and forced tokens, foresight, prefill ahead, early dispatch, parallel tools, a plan,
branches, sub-agents, compaction; a tool fails and is tried again, runs are broken off, and a replica is killed once the
router has found it well. A run's time is taken by who called it, its tokens are what its agent was told, and what the
engines did is read off their metrics. The parts of every ledger must make up that time within 2%, and all tokens must
be the same.
"""

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.agent.recorded import AgentJob, read_agent_jobs
from benchmarks.twelve_agents import NUM_RECORDED, Company, Ran, make_up_jobs
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.bench.serving import ChildServer, exit_on_sigterm
from hotloop.core.config import DEFAULT_MODEL
from hotloop.trace import names
from hotloop.trace.ledger import RunLedger, TokenCounts, build_ledger
from hotloop.trace.span import Span
from hotloop.trace.store import StoreTracer, TraceStore
from hotloop.wire.usage import ApiUsage

MAX_ERROR = 0.02
WIDTH = 140
METRICS = {
    "prompt": "prompt",
    "cached": "cached_prompt",
    "output": "output",
    "forced": "forced",
    "guessed": "drafted",
    "right": "accepted_draft",
}
"""What the ledger calls them, and the engine's metrics."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run, by its caller and by its ledger."""

    name: str
    end: str
    num_turns: int
    wall_s: float
    parts_s: float
    client: tuple[int, int, int]
    ledger: tuple[int, int, int]
    """Tokens of the prompts, those of them that were cached, and of the output."""

    @property
    def error(self) -> float:
        return abs(self.parts_s / self.wall_s - 1)

    @property
    def is_right(self) -> bool:
        return self.error <= MAX_ERROR and self.client == self.ledger


@dataclass(frozen=True, slots=True)
class Sums:
    rows: list[Row]
    ledger: dict[str, int]
    engine: dict[str, int]
    seen: dict[str, int]
    """What happened, so that one sees that everything was on."""

    @property
    def is_right(self) -> bool:
        return self.ledger == self.engine and all(row.is_right for row in self.rows)


def measure(args: Namespace, path: Path) -> Sums:
    found = read_agent_jobs(args.data, max_chars=args.max_chars) if args.data else make_up_jobs()
    jobs = (job for job in found if job.num_calls > 1)
    flags = ("--model", args.model, "--trace", str(path))
    with ExitStack() as stack:
        servers = [stack.enter_context(ChildServer(flags)) for _ in range(2)]
        doomed = stack.enter_context(ChildServer(flags))
        replicas = [flag for each in (*servers, doomed) for flag in ("--replica", each.url)]
        route = (*replicas, "--trace", str(path), "--health-interval-s", "60")
        router = stack.enter_context(ChildServer(route, command="route"))
        _wait_for_replicas(router.url, 3)
        os.kill(doomed.pid, signal.SIGKILL)
        ran = asyncio.run(_run(f"{router.url}/v1", path, list(islice(jobs, NUM_RECORDED))))
        engine = _count(servers)
    return _compare(ran, path, engine)


async def _run(url: str, path: Path, jobs: list[AgentJob]) -> list[Ran]:
    server, tracer = OpenAIModel(url), StoreTracer(path)
    try:
        return await Company(server, tracer, jobs).work()
    finally:
        await server.close()
        tracer.close()


def _wait_for_replicas(url: str, count: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        states = [each["state"] for each in httpx.get(f"{url}/router/replicas").json()["replicas"]]
        if states.count("up") == count:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the router finds its replicas to be {states}")
        time.sleep(0.1)


def _count(servers: Sequence[ChildServer]) -> dict[str, int]:
    """What the engines have counted, once nothing is under way: a counter grows when a request ends."""
    while True:
        pages = [httpx.get(f"{server.url}/metrics").text for server in servers]
        if not any(_read(page, "hotloop_requests_running") for page in pages):
            break
        time.sleep(0.1)
    return {
        ours: sum(_read(page, f"hotloop_{theirs}_tokens_total") for page in pages) for ours, theirs in METRICS.items()
    }


def _read(page: str, name: str) -> int:
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    assert found, name
    return int(float(found[1]))


def _compare(ran: Sequence[Ran], path: Path, engine: dict[str, int]) -> Sums:
    """All processes are gone, so that all they recorded is there."""
    with TraceStore(path) as store:
        traces = [store.spans(run.trace_id) for run in store.runs(1000)]
    roots = {}
    for spans in traces:
        root = next(span for span in spans if span.is_root)
        roots[root.attributes[names.RUN_ID]] = root, build_ledger(spans)
    rows = [_row(each, *roots[each.run_id]) for each in ran]
    ledgers = [ledger for _, ledger in roots.values()]
    did = sum((ledger.tokens + ledger.prefill_ahead + ledger.lost for ledger in ledgers), TokenCounts())
    return Sums(rows, {name: getattr(did, name) for name in METRICS}, engine, _see([*chain.from_iterable(traces)]))


def _see(spans: Sequence[Span]) -> dict[str, int]:
    kinds = Counter(span.name for span in spans)
    facts = [span.attributes for span in spans]
    return {
        "runs": kinds[names.RUN],
        "turns": kinds[names.TURN],
        "calls": kinds[names.TOOL],
        "calls foreseen": kinds[names.FORESEEN],
        "of them used": sum(bool(each.get(names.WAS_USED)) for each in facts),
        "calls tried again": sum(each.get(names.NUM_TRIES, 0) > 1 for each in facts),
        "prompts prefilled ahead": sum(
            span.name == names.CHAT and bool(span.attributes.get(names.IS_PREFILL_ONLY)) for span in spans
        ),
        "replicas tried in vain": kinds[names.ATTEMPT],
    }


def _row(ran: Ran, root: Span, ledger: RunLedger) -> Row:
    told = ApiUsage(**{name: root.attributes[name] for name in (names.NUM_PROMPT, names.NUM_CACHED, names.NUM_OUTPUT)})
    client, ours = ran.usage or told, ledger.tokens
    return Row(
        ran.name,
        ledger.end,
        len(ledger.turns),
        ran.wall_s,
        sum(ledger.parts.values()),
        (client.num_prompt, client.num_cached or 0, client.num_output),
        (ours.prompt, ours.cached, ours.output),
    )


def _tables(sums: Sums) -> Iterator[Table]:
    table = Table(
        "run", "end", "turns", "wall s", "parts s", "error", "client's tokens", "ledger's tokens", "", box=None
    )
    for row in sums.rows:
        tokens = (" / ".join(f"{number:,d}" for number in side) for side in (row.client, row.ledger))
        numbers = (str(row.num_turns), f"{row.wall_s:.3f}", f"{row.parts_s:.3f}", f"{row.error:.2%}")
        table.add_row(row.name, row.end, *numbers, *tokens, "" if row.is_right else "WRONG")
    yield table
    totals = Table("all tokens", "ledgers", "engines", "", box=None)
    for name, number in sums.ledger.items():
        totals.add_row(name, f"{number:,d}", f"{sums.engine[name]:,d}", "" if number == sums.engine[name] else "WRONG")
    yield totals


def _parse() -> Namespace:
    parser = ArgumentParser(description="The sums of the ledger against the caller's clock and the engine's counters.")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--max-chars", type=int, default=28_000)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    args = _parse()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as folder:
        sums = measure(args, Path(folder) / "trace.db")
    if args.json:
        print(json.dumps(asdict(sums)))
    else:
        console = Console(highlight=False, width=WIDTH)
        for table in _tables(sums):
            console.print(table, "")
        console.print(", ".join(f"{number} {what}" for what, number in sums.seen.items()))
    return 0 if sums.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
