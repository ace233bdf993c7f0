"""Models of several sizes: what tiers cost, how long they take and how often they are right, against always asking the
large one; and how well the task is told that tiers are chosen by."""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from itertools import product

from benchmarks.claims.bench import Bench
from benchmarks.claims.published import BY_TASK, CLASSIFIER, THREE, TIERS
from benchmarks.claims.result import Figure, Result, size_of
from benchmarks.tiers.questions import TaskKind, TierQuestion, mix
from benchmarks.tiers.run import (
    CASCADE,
    LARGE,
    RULES,
    Measured,
    TierServers,
    classify,
    config_of,
    features_of,
    measure_tiers,
)
from hotloop.bench.bfcl import fetch_questions, read_questions
from hotloop.core.errors import ConfigError
from hotloop.router.tiers.classify import Centres
from hotloop.router.tiers.config import Task

_CATEGORIES = ("simple", "multiple", "parallel")
_SHOWN: Mapping[TaskKind, str] = {"classification": "intent", "several calls": "reasoning"}
"""Kinds by the names under which their times are published."""


def measure_cost(bench: Bench) -> list[Result]:
    """So many questions of each of six kinds; the spread is that between parts of them. Two tiers are the smallest
    model and the largest."""
    questions = _load(bench)
    supplies = bench.supplies
    models = {name: model for name in ("small", "medium", "large") if (model := getattr(supplies, name))}
    if "small" not in models or "large" not in models:
        raise ConfigError("tiers need two models, --small and --large, and --medium for a third")

    async def measure(urls: Mapping[str, str]) -> tuple[dict[str, Measured], list[Task | None]]:
        async with TierServers(urls) as servers:
            named = await servers.find_models()
            ways = {TIERS: ("small", "large"), THREE: tuple(named)}
            configs = {claim: config_of({name: named[name] for name in names}) for claim, names in ways.items()}
            measured = {claim: await measure_tiers(servers, config, questions) for claim, config in configs.items()}
            return measured, await classify(servers, configs[THREE].tiers[-2], _told(questions))

    urls = bench.servers.urls([bench.flags(model=model) for model in models.values()])
    measured, tasks = asyncio.run(measure(dict(zip(models, urls, strict=True))))
    sizes = {name: size_of(model) for name, model in models.items()}
    return results_of(measured, tasks, bench.scale.repeats, sizes, questions)


def results_of(
    measured: Mapping[str, Measured],
    tasks: Sequence[Task | None],
    num_parts: int,
    sizes: Mapping[str, str],
    questions: Sequence[TierQuestion],
) -> list[Result]:
    whole = measured[THREE]
    what = f"{len(whole.asked[LARGE])} tasks of six kinds, made of BFCL's questions, in {num_parts} parts"
    has_three = len(sizes) > 2
    names = {TIERS: [sizes["small"], sizes["large"]], THREE: list(sizes.values())}
    return [
        *(
            Result(
                claim=claim,
                what=f"{what}; models of {', '.join(names[claim])}, each at 10 times the price of the one before",
                figures=_figures(measured[claim], num_parts),
            )
            for claim in (TIERS, THREE)[: 1 + has_three]
        ),
        *([] if has_three else [Result(claim=THREE, missing="it needs a third model, --medium")]),
        Result(
            claim=BY_TASK,
            what=f"{what}; by the cascade of {len(sizes)} tiers: {', '.join(sizes.values())}",
            figures=_by_task(whole, num_parts),
        ),
        Result(
            claim=CLASSIFIER,
            what=f"{len(tasks)} tasks whose kind is known, asked of the model of {[*sizes.values()][-2]} for a letter, "
            f"and by words alike, learned from the other parts",
            figures=_classified(tasks, _told(questions), num_parts),
        ),
    ]


def _figures(measured: Measured, num_parts: int) -> list[Figure]:
    parts = measured.parts(num_parts)
    kinds = (("cost", "cost", Measured.cost), ("latency", "s", Measured.latency_s), ("right", "share", Measured.right))
    return [
        Figure(f"{name}{suffix}", unit, *([of(part, each) for part in parts] for each in (way, LARGE)))  # type: ignore[arg-type]
        for (way, suffix), (name, unit, of) in product(((CASCADE, ""), (RULES, " by rules alone")), kinds)
    ]


def _by_task(measured: Measured, num_parts: int) -> list[Figure]:
    kinds = dict.fromkeys(each.question.kind for each in measured.asked[CASCADE])
    found = {
        kind: [
            statistics.median([each.latency_s for each in part.asked[CASCADE] if each.question.kind == kind] or [0.0])
            for part in measured.parts(num_parts)
        ]
        for kind in kinds
    }
    return [Figure(_SHOWN.get(kind, kind), "s", values) for kind, values in found.items()]


def _told(questions: Sequence[TierQuestion]) -> list[TierQuestion]:
    return [question for question in questions if question.task]


def _classified(tasks: Sequence[Task | None], told: Sequence[TierQuestion], num_parts: int) -> list[Figure]:
    size = max(1, -(-len(told) // num_parts))
    parts = [range(i, min(i + size, len(told))) for i in range(0, len(told), size)]

    def by_words(part: Sequence[int]) -> float:
        examples: dict[Task, list[str]] = {}
        for i, question in enumerate(told):
            if i not in part or len(parts) == 1:
                examples.setdefault(question.task or "", []).append(features_of(question).text)
        centres = Centres(examples)
        found = [centres.nearest(features_of(told[i]).text) for i in part]
        return statistics.fmean(bool(each and each[0] == told[i].task) for i, each in zip(part, found, strict=True))

    by_letter = [statistics.fmean(tasks[i] == told[i].task for i in part) for part in parts]
    return [
        Figure("told by a model", "share", by_letter),
        Figure("told by words alike", "share", [by_words(part) for part in parts]),
    ]


def _load(bench: Bench) -> list[TierQuestion]:
    folder = bench.supplies.questions
    found = fetch_questions(_CATEGORIES) if folder is None else read_questions(folder, _CATEGORIES)
    by_name = {name: [each for each in found if each.category == name] for name in _CATEGORIES}
    return mix(by_name, bench.scale.num_questions)
