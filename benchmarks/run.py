"""What `make bench` runs: hotloop against itself without reuse and batching, and the overhead of a step."""

import json
import sys

from rich.console import Console

from benchmarks.overhead import measure_overhead
from benchmarks.serving import replay_child
from hotloop.bench.report import json_of, table_of
from hotloop.bench.serving import NAIVE, exit_on_sigterm
from hotloop.bench.workload import generate_jobs

NUM_AGENTS = 8
GAP_S = 0.3


def main() -> int:
    exit_on_sigterm()
    console = Console(highlight=False, soft_wrap=True)
    jobs = generate_jobs(num_jobs=NUM_AGENTS, num_turns=4, num_output=32)
    num_turns = sum(len(job.turns) for job in jobs)
    summaries = []
    for label, flags in (("naive", NAIVE), ("hotloop", ())):
        with Console(stderr=True).status(f"{label}: {NUM_AGENTS} agents, {num_turns} turns ..."):
            summaries.append(replay_child(label, flags, jobs, num_agents=NUM_AGENTS, gap_s=GAP_S))
    overhead = measure_overhead()
    if "--json" in sys.argv:
        print(json.dumps(json_of(summaries) | {"overhead": overhead.to_json()}))
    else:
        console.print(table_of(summaries), "", overhead.to_table(), sep="\n")
    return 1 if any(summary.num_errors for summary in summaries) else 0


if __name__ == "__main__":
    sys.exit(main())
