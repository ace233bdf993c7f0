"""A small model beside a large one: what a cascade costs against always asking the large one. Needs both of them."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.claims.published import TIERS
from benchmarks.claims.row import Row
from benchmarks.tiers.questions import TierQuestion, mix
from benchmarks.tiers.report import figures_of
from benchmarks.tiers.run import CASCADE, LARGE, Measured, Terms, TierServers, measure_tiers
from hotloop.bench.bfcl import fetch_questions, read_questions
from hotloop.bench.serving import ChildServer

_CATEGORIES = ("simple", "multiple", "parallel")
_FLAGS = ("--no-drafts",)


def measure_cost(small: str, large: str, questions: Path | None, num_each: int) -> Row:
    asked = _load(questions, num_each)
    terms = Terms()
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(ChildServer(("--model", model, *_FLAGS))).url
            for name, model in (("small", small), ("large", large))
        }
        measured = asyncio.run(_measure(urls, terms, asked))
    figures = {each.label: each for each in figures_of(measured)}
    always, tiered = figures[LARGE], figures[CASCADE]
    return Row(
        name=TIERS,
        what=f"{always.num_questions} mixed tasks, a large model at {terms.price_ratio:g} times the small one's price",
        unit="cost",
        before=always.cost,
        after=tiered.cost,
        note=(
            f"cost {tiered.saved:.0%} and mean latency {tiered.faster:.0%} lower; "
            f"right {always.quality:.0%}, then {tiered.quality:.0%}"
        ),
    )


def _load(questions: Path | None, num_each: int) -> Sequence[TierQuestion]:
    found = fetch_questions(_CATEGORIES) if questions is None else read_questions(questions, _CATEGORIES)
    return mix({name: [each for each in found if each.category == name] for name in _CATEGORIES}, num_each)


async def _measure(urls: dict[str, str], terms: Terms, questions: Sequence[TierQuestion]) -> Measured:
    async with TierServers(urls) as servers:
        return await measure_tiers(servers, terms.config(await servers.find_models()), questions)
