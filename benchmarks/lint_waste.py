"""Is the waste that `hotloop lint` predicts the waste that is measured?

    python -m benchmarks.lint_waste [--data RUNS.jsonl.gz] [--conversations N] [--turns N] [--only NAME ...]
                                    [--tokenizer T] [--json]

Conversations are held with a server that reads prompts just as they come, broken as clients break them, and the linter
is shown the requests and answers. Measured are the tokens of the request before, its answer included, that the server
did not find again, less those that it did not find where nothing was broken: the ends of blocks. What the linter
predicts it reads off the words; only that an answer was cut into other tokens (HL010) it has from the reported usage.
"""

import asyncio
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.cache.breakers import BREAKERS, Breaker
from benchmarks.cache.dialogue import Asking, ChatDialogue
from benchmarks.cache.measure import UNPROTECTED
from benchmarks.cache.run import Company, Held, hold
from benchmarks.cache.script import Script, generate_scripts, read_scripts
from benchmarks.cache.wire import Streamed, Wire
from hotloop.bench.serving import ChildServer, exit_on_sigterm
from hotloop.cli.advice.linting import make_meter
from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.engine import Costs, lint_run
from hotloop.lint.meter import Count, Meter
from hotloop.lint.parts import parse_stream
from hotloop.lint.requests import LintedRequest
from hotloop.lint.rules import RULES
from hotloop.lint.run import LintedRun

MAX_OUT = 16
MAX_ERROR = 0.1
LAST_OF_PREFIX = "HL010"  # rules up to here are about prefixes


class RecordingWire(Wire):
    """Keeps what goes over the wire."""

    exchanges: list[LintedRequest]

    async def stream(self, path: str, body: dict[str, Any], session_id: str) -> Streamed:
        streamed = await super().stream(path, body, session_id)
        sent = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in streamed.events)
        answer = parse_stream(sent, "chat")
        self.exchanges.append(LintedRequest(body=body, api="chat", answer=answer, run=session_id))
        return streamed


@dataclass(frozen=True)
class Row:
    """Tokens of all turns after the first of a conversation."""

    breaker: str
    num_prompt: int
    num_predicted: int
    num_lost: int
    num_recomputed: int
    """What the server itself says that it recomputed, of words that it has seen before."""
    rules: Sequence[str]

    def num_measured(self, clean: "Row") -> int:
        return self.num_lost - clean.num_lost

    def error(self, clean: "Row") -> float | None:
        """None where there was hardly anything to predict."""
        num_measured = self.num_measured(clean)
        return self.num_predicted / num_measured - 1 if num_measured > 0.02 * self.num_prompt else None


async def measure(url: str, scripts: Sequence[Script], breakers: Sequence[Breaker], count: Count) -> list[Row]:
    rows = []
    async with RecordingWire(url) as wire:
        for breaker in breakers:
            wire.exchanges = []
            asking = Asking(max_tokens=MAX_OUT, temperature=breaker.temperature, salt=token_hex(4))
            held = await hold(Company(wire, scripts), ChatDialogue, asking, label=breaker.name, breaks=breaker.apply)
            rows.append(_row(breaker, held, sort_into_runs(wire.exchanges, Meter(count))))
    return rows


def _row(breaker: Breaker, held: Held, runs: Sequence[LintedRun]) -> Row:
    later = [taken for taken in held.taken if taken.number]
    rules = [rule for rule in RULES if rule.id <= LAST_OF_PREFIX]
    again = [found for run in runs for found in lint_run(run, rules, Costs(), begin=run.steps[0].request.index + 1)]
    return Row(
        breaker.name,
        sum(taken.said.num_prompt for taken in later),
        sum(finding.waste.num_recomputed for finding in again),
        sum(taken.num_lost for taken in later),
        sum(taken.explanation.num_recomputed for taken in later),
        sorted({finding.rule for finding in again}),
    )


def _table(rows: Sequence[Row]) -> Table:
    table = Table("breaker", "prompt", "predicted", "measured", "error", "recomputed", "rules", box=None)
    for row in rows:
        error = row.error(rows[0])
        numbers = (f"{number:,d}" for number in (row.num_prompt, row.num_predicted, row.num_measured(rows[0])))
        cells = (*numbers, "" if error is None else f"{error:+.1%}", f"{row.num_recomputed:,d}", " ".join(row.rules))
        table.add_row(row.breaker, *cells)
    return table


def _parse() -> Namespace:
    parser = ArgumentParser(description="Predicted against measured waste.")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="names of breakers")
    parser.add_argument("--tokenizer")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    args = _parse()
    exit_on_sigterm()
    limits = {"max_scripts": args.conversations, "max_turns": args.turns}
    scripts = read_scripts(args.data, max_chars=28_000, **limits) if args.data else generate_scripts(**limits)
    count = make_meter(args.tokenizer).count
    breakers = [breaker for breaker in BREAKERS if breaker.name in ("none", *args.only) or not args.only]
    with ChildServer(UNPROTECTED) as server:
        rows = asyncio.run(measure(server.url, scripts, breakers, count))
    if args.json:
        print(json.dumps([vars(row) | {"error": row.error(rows[0])} for row in rows]))
    else:
        Console(highlight=False, soft_wrap=True).print(_table(rows))
    errors = (row.error(rows[0]) for row in rows)
    return 1 if any(error is not None and abs(error) > MAX_ERROR for error in errors) else 0


if __name__ == "__main__":
    sys.exit(main())
