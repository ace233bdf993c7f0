"""Does the CUDA backend say what transformers says, and does the engine say the same however it makes up its steps?

First logits, position by position, of small random models of every family: against transformers in the same precision,
and in float32 as what is right. What bf16 itself changes is seen from transformers' own bf16 against its float32.
Then the engine, greedy: how often a token differs from what a request gets alone, and how close the two likeliest
tokens were where it did, beside how close they usually are. Every figure is printed as it comes.

It passes if, at every variant and against transformers' float32,
    float32         the same top token at 99% of positions or more, no logit off by more than 0.01
    bf16, peaked    the same top token at 99% of positions or more
    bf16, any       no further off, root mean square, than 1.2 times transformers' own bf16
and if in float32 the engine gives every request the tokens it gets alone. What there was no time for has failed.
"""

import argparse
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu.difference import Difference
from benchmarks.gpu.engines import Answer, LentBackend, ask, tell
from benchmarks.gpu.feeding import TINY, VARIANTS, Feeder, Sizes
from benchmarks.gpu.random_models import FAMILIES, Kind, reference_logits, write_model
from hotloop.backends.cuda.runner import BLOCK_SIZE, CudaBackend
from hotloop.backends.cuda.workers import Plan
from hotloop.core.config import EngineConfig
from hotloop.core.request import Request, SamplingParams
from hotloop.engine.engine import Engine
from hotloop.models.memory import kv_token_bytes
from hotloop.models.model import Model, load_model

CELLS: tuple[tuple[str, Kind], ...] = (("float32", "flat"), ("bfloat16", "flat"), ("bfloat16", "peaked"))
"""Precisions and kinds of model. A peaked model in float32 would show nothing that a flat one does not."""
LIMIT_S = 150.0
MIN_EQUAL = 0.99
MAX_OFF_FLOAT32 = 0.01
MAX_TIMES_AS_FAR = 1.2
_MAX_STEP_TOKENS = 4096


Differences = dict[tuple[str, str, str, str], Difference]
"""By precision, kind of model, who computed, and against what."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How the engine is asked."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    is_alone: bool = False
    is_scarce: bool = False
    num_rounds: int = 1
    """The last is compared: what was cached or learned before it is used."""
    max_requests: int | None = None


MANNERS = {
    "alone": Manner(is_alone=True),
    "alone, again": Manner(is_alone=True, max_requests=8),
    "batched": Manner(),
    "chunked": Manner({"max_step_tokens": 64}),
    "prefix cache": Manner({"prefix_cache": True}, num_rounds=2),
    "preempted": Manner(is_scarce=True),
    "drafted": Manner({"drafts": True}, num_rounds=2),
    "all of it": Manner({"drafts": True, "prefix_cache": True, "max_step_tokens": 64}, is_scarce=True, num_rounds=2),
}


class Examiner:
    """One device, one set of sizes, and what was found so far."""

    def __init__(self, device: str, sizes: Sizes, folder: Path, limit_s: float, seed: int = 0) -> None:
        self.device = device
        self.sizes = sizes
        self.folder = folder
        self.differences: dict[str, Differences] = {}
        self.engine: dict[str, dict[str, Any]] = {}
        self.not_done: list[str] = []
        self.began_at = time.perf_counter()
        self._limit_s = limit_s
        self._rng = random.Random(seed)
        self.prompts = [self._tokens(count) for count in sizes.prompt_lens]
        trunk = self._tokens(sizes.trunk_len)
        self.questions = [
            [*trunk[: self._rng.choice([0, sizes.trunk_len])], *self._tokens(self._rng.randrange(8, sizes.trunk_len))]
            for _ in range(sizes.num_requests)
        ]

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(self.sizes.shape.vocab_size - 1) for _ in range(count)]

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began_at

    def examine(self, family: str, kind: Kind, dtypes: Sequence[str], *, has_engine: bool) -> None:
        if self._is_late(f"{family}, {kind}"):
            return
        path = write_model(self.folder, family, kind, self.sizes.shape)
        right = reference_logits(path, self.prompts, torch.float32, self.device)
        for dtype in dtypes:
            if self._is_late(f"{family}, {kind}, {dtype}"):
                continue
            found: Differences = {}
            same = right
            if dtype != "float32":
                same = reference_logits(path, self.prompts, getattr(torch, dtype), self.device)
                found[dtype, kind, "transformers", "float32"] = Difference.between(torch.cat(same), torch.cat(right))
            with self._open(path, dtype, len(self.questions if has_engine else self.prompts)) as (model, backend):
                self._compare(backend, (dtype, kind), same, right, found)
                for place, difference in _nested(found).items():
                    self._say(f"{family}, {place}", difference)
                self.differences.setdefault(family, {}).update(found)
                if has_engine:
                    self._say(f"{family}, {dtype}, {kind}, usual gap", _gap(torch.cat(same)))
                    self.engine[f"{dtype}, {kind}"] = self._ask_all(model, backend, f"{family}, {dtype}, {kind}")

    def _is_late(self, what: str) -> bool:
        is_late = self.seconds > self._limit_s
        if is_late:
            self.not_done.append(f"{what}: not done in {self._limit_s:g} s")
        return is_late

    def _say(self, what: str, found: object) -> None:
        print(f"{self.seconds:4.0f} s  {what}: {json.dumps(found)}", flush=True)

    @contextlib.contextmanager
    def _open(self, path: Path, dtype: str, max_running: int) -> Iterator[tuple[Model, CudaBackend]]:
        model = load_model(str(path))
        kind = getattr(torch, dtype)
        config = EngineConfig(max_running=max_running, max_step_tokens=_MAX_STEP_TOKENS, host_kv="off")
        kv_bytes = self.sizes.num_kv_tokens * kv_token_bytes(model.spec, kind.itemsize)
        has_graphs = self.device == "cuda"
        backend = CudaBackend(model, kv_bytes, Plan(config, kind, has_graphs=has_graphs), device=self.device)
        try:
            yield model, backend
        finally:
            backend.close()

    def _compare(
        self,
        backend: CudaBackend,
        place: tuple[str, str],
        same: list[torch.Tensor],
        right: list[torch.Tensor],
        found: Differences,
    ) -> None:
        for name, (feed, is_end) in VARIANTS.items():
            feeder = Feeder(backend, self.prompts)
            feed(feeder, self.sizes)
            begin = -self.sizes.num_decoded if is_end else 0
            got, want, truth = (
                torch.cat([each[begin:] for each in logits]) for logits in (feeder.logits(), same, right)
            )
            found[*place, name, "float32"] = Difference.between(got, truth)
            if same is not right:
                found[*place, name, "same precision"] = Difference.between(got, want)

    def _ask_all(self, model: Model, backend: CudaBackend, place: str) -> dict[str, Any]:
        """What the engine says in every manner, and where it is not what it says to each alone."""
        report: dict[str, Any] = {}
        alone: list[Answer] = []
        for name, manner in MANNERS.items():
            if self._is_late(f"{place}, {name}"):
                continue
            began_at = time.perf_counter()
            answers, counts = self._ask(model, backend, manner)
            alone = alone or answers
            report[name] = {
                **self._divergences(backend, alone, answers),
                **counts,
                "seconds": round(time.perf_counter() - began_at, 2),
            }
            self._say(f"{place}, {name}", report[name])
        return report

    def _ask(self, model: Model, backend: CudaBackend, manner: Manner) -> tuple[list[Answer], dict[str, int]]:
        questions = self.questions[: manner.max_requests]
        settings = {"max_running": len(self.questions), "drafts": False, "prefix_cache": False, **manner.settings}
        lent = LentBackend(backend, self.sizes.num_scarce_tokens // BLOCK_SIZE if manner.is_scarce else None)
        params = SamplingParams(temperature=0, max_tokens=self.sizes.num_tokens, ignore_eos=True)
        answers: dict[str, Answer] = {}
        with Engine(model.tokenizer, lent, EngineConfig(debug_checks=True, **settings)) as engine:
            for round_ in range(manner.num_rounds):
                requests = [Request(f"{round_}-{i}", prompt, params) for i, prompt in enumerate(questions)]
                answers = ask(engine, [requests] if manner.is_alone else [[request] for request in requests])
            stats = engine.stats()
        counts = {
            "preempted": stats.num_preemptions,
            "cached": stats.usage.num_cached,
            "drafted": stats.usage.num_drafted,
            "accepted": stats.usage.num_accepted,
        }
        return list(answers.values()), {name: count for name, count in counts.items() if count}

    def _divergences(self, backend: CudaBackend, alone: list[Answer], answers: list[Answer]) -> dict[str, Any]:
        """Tokens count up to the first that differs: what follows it answers another prompt. There may be fewer answers
        than questions.
        """
        num_compared, firsts, gaps = 0, [], []
        for prompt, wanted, got in zip(self.questions, alone, answers, strict=False):
            pairs = enumerate(zip(wanted.token_ids, got.token_ids, strict=True))
            first = next((i for i, (a, b) in pairs if a != b), None)
            num_compared += len(wanted.token_ids) if first is None else first + 1
            if first is not None:
                firsts.append(first)
                gaps.append(self._gap(backend, [*prompt, *wanted.token_ids[:first]]))
        return {
            "requests": len(answers),
            "diverged": len(firsts),
            "tokens": num_compared,
            "first_at": sorted(firsts),
            "median_gap": float(f"{statistics.median(gaps):.3g}") if gaps else None,
            "max_gap": float(f"{max(gaps):.3g}") if gaps else None,
        }

    def _gap(self, backend: CudaBackend, token_ids: list[int]) -> float:
        """How far ahead the likeliest token is of the next, if the text is read at once."""
        feeder = Feeder(backend, [token_ids])
        feeder.feed({0: len(token_ids)})
        return _gap(feeder.logits()[0][-1:])


def _gap(logits: torch.Tensor) -> float:
    """How far ahead the likeliest token is of the next, at the median position."""
    first, second = logits.topk(2).values.unbind(1)
    return float(f"{(first - second).median():.3g}")


def run(
    device: str = "cuda",
    sizes: Sizes | None = None,
    *,
    families: Sequence[str] = FAMILIES,
    has_engine: bool = True,
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """All comparisons. The engine is asked about models of the first family."""
    torch.set_float32_matmul_precision("highest")
    with tempfile.TemporaryDirectory(prefix="hotloop-parity-") as folder:
        examiner = Examiner(device, sizes or Sizes(), Path(folder), limit_s)
        for family in families:
            for kind in dict.fromkeys(kind for _, kind in CELLS):
                dtypes = [dtype for dtype, kind_ in CELLS if kind_ == kind]
                examiner.examine(family, kind, dtypes, has_engine=has_engine and family == families[0])
    total = _total(examiner.differences)
    failures = [*_logit_failures(total), *_engine_failures(examiner.engine), *_idle_manners(examiner.engine)]
    failures += examiner.not_done
    return {
        "passed": not failures,
        "failures": failures,
        "logits": _nested(total),
        "engine": examiner.engine,
        "families": {family: _nested(found) for family, found in examiner.differences.items()},
        "seconds": round(examiner.seconds, 1),
    }


def _total(differences: Mapping[str, Differences]) -> Differences:
    total: Differences = {}
    for found in differences.values():
        for place, difference in found.items():
            total[place] = total.get(place, Difference()) + difference
    return total


def _nested(differences: Differences) -> dict[str, dict[str, float]]:
    return {", ".join(place): difference.to_json() for place, difference in differences.items()}


def _logit_failures(total: Differences) -> list[str]:
    failures = []
    for (dtype, kind, who, against), found in total.items():
        if against != "float32" or who == "transformers":
            continue
        place = f"{dtype}, {kind}, {who}"
        if (dtype == "float32" or kind == "peaked") and found.share_equal < MIN_EQUAL:
            failures.append(f"{place}: the top token is the same at {found.share_equal:.2%} of positions only")
        own = total.get((dtype, kind, "transformers", "float32"))
        if not found.max_abs < (MAX_OFF_FLOAT32 if own is None else float("inf")):
            failures.append(f"{place}: a logit is off by {found.max_abs:.3g}")
        if own and not found.relative <= MAX_TIMES_AS_FAR * own.relative:
            failures.append(f"{place}: off by {found.relative:.3g}, and transformers by {own.relative:.3g}")
    return failures


def _engine_failures(engine: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        f"{place}, {name}: {found['diverged']} of {found['requests']} requests differ from those alone"
        for place, manners in engine.items()
        for name, found in manners.items()
        if found["diverged"] and (place.startswith("float32") or name == "alone, again")
    ]


def _idle_manners(engine: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What proves nothing, since what it is about did not happen."""
    signs = {"prefix cache": "cached", "preempted": "preempted", "drafted": "accepted"}
    return [
        f"{place}, {name}: nothing was {sign}"
        for place, manners in engine.items()
        for name, sign in signs.items()
        if name in manners and sign not in manners[name]
    ]


def show(report: Mapping[str, Any], console: Console) -> None:
    logits = Table("logits: precision, model, who, against", title="Parity with transformers")
    for column in ("positions", "top_equal", "max_abs", "mean_abs", "relative", "max_lost"):
        logits.add_column(column, justify="right")
    for place, found in report["logits"].items():
        logits.add_row(place, *(f"{value:g}" for value in found.values()))
    console.print(logits)
    engine = Table("engine: greedy tokens", "diverged", "tokens", "median gap", "max gap", "how")
    for place, manners in report["engine"].items():
        for name, found in manners.items():
            how = ", ".join(f"{found[key]:,} {key}" for key in ("preempted", "cached", "accepted") if key in found)
            gaps = (f"{found[key]:g}" if found[key] is not None else "" for key in ("median_gap", "max_gap"))
            share = f"{found['diverged']} of {found['requests']}"
            engine.add_row(f"{place}, {name}", share, f"{found['tokens']:,}", *gaps, how)
    if report["engine"]:
        console.print(engine)
    for failure in report["failures"]:
        console.print(f"failed: {failure}")
    console.print(f"{'passed' if report['passed'] else 'failed'} in {report['seconds']:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--no-engine", action="store_true", help="logits only")
    parser.add_argument("--tiny", action="store_true", help="for Triton's interpreter, which gets bf16 wrong")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds after which nothing more is begun")
    parser.add_argument("--json", type=Path, help="write the report there")
    flags = parser.parse_args()
    report = run(
        flags.device,
        TINY if flags.tiny else None,
        families=flags.families,
        has_engine=not flags.no_engine,
        limit_s=flags.limit,
    )
    return tell(report, show, flags.json)


if __name__ == "__main__":
    sys.exit(main())
