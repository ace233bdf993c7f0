"""A small model beside a large one: what tiers cost, how long they take and how often they are right, against always
asking the large one."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.claims.published import TIERS
from benchmarks.claims.result import Figure, Result, size_of
from benchmarks.tiers.questions import TierQuestion, mix
from benchmarks.tiers.run import (
    CASCADE,
    LARGE,
    RULES,
    WAYS,
    Measured,
    Terms,
    TierServers,
    WayFigures,
    figures_of,
    measure_tiers,
)
from hotloop.bench.bfcl import fetch_questions, read_questions
from hotloop.bench.serving import ChildServer

_CATEGORIES = ("simple", "multiple", "parallel")
_FLAGS = ("--disable", "drafts")


def measure_cost(
    small: str,
    large: str,
    questions: Path | None,
    num_each: int,
    num_parts: int,
    watch: Callable[[], None] = lambda: None,
) -> Result:
    """So many questions of each of six kinds; the spread is that between parts of them."""
    asked = _load(questions, num_each)
    terms = Terms()

    async def measure(urls: Mapping[str, str]) -> Measured:
        async with TierServers(urls) as servers:
            config = terms.config(await servers.find_models())
            return await measure_tiers(servers, config, asked, watch)

    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(ChildServer(("--model", model, *_FLAGS))).url
            for name, model in (("small", small), ("large", large))
        }
        measured = asyncio.run(measure(urls))
    return result_of(
        measured, num_parts, f"a model of {size_of(large)} at {terms.price_ratio:g} times the price of {size_of(small)}"
    )


def result_of(measured: Measured, num_parts: int, models: str) -> Result:
    size = max(1, -(-len(measured.asked[LARGE]) // num_parts))
    parts = [
        Measured({way: asked[begin : begin + size] for way, asked in measured.asked.items()})
        for begin in range(0, len(measured.asked[LARGE]), size)
    ]
    by_way: dict[str, list[WayFigures]] = {way: [] for way in WAYS}
    for part in parts:
        for figures in figures_of(part):
            by_way[figures.label].append(figures)
    num_tasks = len(measured.asked[LARGE])
    return Result(
        claim=TIERS,
        what=f"{num_tasks} tasks of six kinds, made of BFCL's questions, in {num_parts} parts; {models}",
        figures=[*_figures(by_way, CASCADE, ""), *_figures(by_way, RULES, " by rules alone")],
    )


def _figures(by_way: Mapping[str, Sequence[WayFigures]], way: str, suffix: str) -> list[Figure]:
    ours, base = by_way[way], by_way[LARGE]
    return [
        Figure(f"cost{suffix}", "cost", [each.cost for each in ours], [each.cost for each in base]),
        Figure(f"latency{suffix}", "s", [each.latency_mean_s for each in ours], [each.latency_mean_s for each in base]),
        Figure(f"right{suffix}", "share", [each.quality for each in ours], [each.quality for each in base]),
    ]


def _load(questions: Path | None, num_each: int) -> list[TierQuestion]:
    found = fetch_questions(_CATEGORIES) if questions is None else read_questions(questions, _CATEGORIES)
    return mix({name: [each for each in found if each.category == name] for name in _CATEGORIES}, num_each)
