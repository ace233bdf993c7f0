"""Does `hotloop lint` find what is broken, where it is broken, and nothing else?

    python -m benchmarks.lint_breakers [--data RUNS.jsonl.gz ...] [--seeds N] [--named] [--only NAME ...] [--show N]

Every breaker is put into every run of each file, and the requests of all runs are linted as one. Exits with 1 where a
rule misses a run or names another place.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.lint_breakers.judge import BREAKERS, Judged, judge_all
from benchmarks.lint_breakers.talk import Talk, generate_talks, read_talks


def _judge_all(talks: Sequence[Talk], args: Namespace) -> Iterator[Judged]:
    breakers = [breaker for breaker in BREAKERS if not args.only or breaker.name in args.only]
    for seed in range(args.seeds):
        yield from judge_all(talks, breakers, seed, is_named=args.named)


def _table(title: str, judged: Sequence[Judged]) -> Table:
    columns = ("breaker", "rule", "runs", "fired", "right place", "only a note", "false warnings")
    table = Table(*columns, title=title, title_justify="left", box=None)
    for each in judged:
        num_fired = each.num_runs - len(each.missed)
        numbers = (each.num_runs, num_fired, num_fired - len(each.misplaced), each.num_notes, len(each.false))
        table.add_row(each.breaker.name, each.breaker.rule, *map(str, numbers))
    return table


def _parse() -> Namespace:
    parser = ArgumentParser(description="What the linter finds of what was broken.")
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="transcripts; generated ones if none")
    parser.add_argument("--seeds", type=int, default=1, help="so many ways to break each run")
    parser.add_argument("--named", action="store_true", help="requests say which run they are of")
    parser.add_argument("--only", nargs="*", default=[], help="names of breakers")
    parser.add_argument("--show", type=int, default=3, help="so many mistakes of each kind")
    return parser.parse_args()


def main() -> int:
    args, console, is_perfect = _parse(), Console(highlight=False, soft_wrap=True, markup=False, width=130), True
    files = {path.name: read_talks(path) for path in args.data} or {"generated": generate_talks(20)}
    for name, talks in files.items():
        judged = [*_judge_all(talks, args)]
        console.print(_table(f"{name}: {len(talks)} runs", judged))
        for each in judged:
            is_perfect &= each.is_perfect
            for kind, mistakes in (("missed", each.missed), ("misplaced", each.misplaced), ("false", each.false)):
                for mistake in mistakes[: args.show]:
                    console.print(f"{each.breaker.name}, {kind}: {mistake}")
    return 0 if is_perfect else 1


if __name__ == "__main__":
    sys.exit(main())
