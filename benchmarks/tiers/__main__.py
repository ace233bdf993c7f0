"""What a small model beside a large one saves, and what that costs in right answers."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveFloat, PositiveInt

from benchmarks.command import main
from benchmarks.tiers.questions import TierQuestion, mix
from benchmarks.tiers.report import figures_of, tiers_json, tiers_table
from benchmarks.tiers.run import Measured, Terms, TierServers, measure_tiers
from hotloop.bench.bfcl import fetch_questions, read_questions
from hotloop.bench.serving import ChildServer, exit_on_sigterm
from hotloop.cli.loading import console
from hotloop.cli.output import progress, show
from hotloop.cli.settings import Json
from hotloop.core.errors import ConfigError

_CATEGORIES = ("simple", "multiple", "parallel")
_SERVER_FLAGS = ("--no-drafts",)
"""Drafts learn from answers: whoever asks second would be faster for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersFlags:
    """Which two models, and how they are compared."""

    small: str | None = None
    """The small model: a name `hotloop models` lists, or a path."""
    large: str | None = None
    """The large model, likewise."""
    small_url: str | None = None
    """A running server with the small model, instead of --small."""
    large_url: str | None = None
    """A running server with the large model, instead of --large."""
    data: Path | None = None
    """A folder of questions such as simple_python.jsonl.gz; downloaded if not given."""
    questions: PositiveInt = 8
    """How many questions of each of the six kinds."""
    price_ratio: PositiveFloat = 10.0
    """How many times the small model's price the large one's is."""
    min_logprob: float = -0.3
    """Mean log probability of an answer below which the cascade asks the large model."""
    min_margin: float = 0.3
    """Least lead of a token over the next likely one, below which it does so too."""

    def terms(self) -> Terms:

        return Terms(price_ratio=self.price_ratio, min_logprob=self.min_logprob, min_margin=self.min_margin)


_DEFAULTS = TiersFlags()


def tiers(*, flags: Annotated[TiersFlags, Parameter(name="*")] = _DEFAULTS, as_json: Json = False) -> None:
    """Ask a mixed set of tasks of a large model, a small one, and both by tiers: what it costs, how fast, how right."""
    questions = _load_questions(flags)
    with _servers(flags) as urls, progress() as bar:
        task = bar.add_task("questions", total=len(questions))
        measured = asyncio.run(_measure(urls, flags.terms(), questions, partial(bar.advance, task)))
    figures = figures_of(measured)
    show(tiers_json(figures, measured.errors), tiers_table(figures), as_json, measured.errors)


def _load_questions(flags: TiersFlags) -> list[TierQuestion]:
    if flags.data is None:
        questions = fetch_questions(_CATEGORIES)
    elif flags.data.is_dir():
        questions = read_questions(flags.data, _CATEGORIES)
    else:
        raise ConfigError(f"{flags.data} is not a folder")
    parts = {name: [each for each in questions if each.category == name] for name in _CATEGORIES}
    return mix(parts, flags.questions)


@contextmanager
def _servers(flags: TiersFlags) -> Iterator[Mapping[str, str]]:
    """The address of each tier: those given, or servers that live as long as the context."""
    wanted = {"small": (flags.small_url, flags.small), "large": (flags.large_url, flags.large)}
    for name, (url, model) in wanted.items():
        if (url is None) == (model is None):
            raise ConfigError(f"give either --{name} or --{name}-url")
    urls = {}
    with ExitStack() as stack:
        for name, (url, model) in wanted.items():
            if model is not None:
                exit_on_sigterm()
                with console.status(f"loading {model} ..."):
                    url = stack.enter_context(ChildServer(("--model", model, *_SERVER_FLAGS))).url
            urls[name] = url or ""
        yield urls


async def _measure(
    urls: Mapping[str, str], terms: Terms, questions: list[TierQuestion], watch: Callable[[], None]
) -> Measured:
    async with TierServers(urls) as servers:
        config = terms.config(await servers.find_models())
        return await measure_tiers(servers, config, questions, watch=watch)


if __name__ == "__main__":
    main(tiers)
