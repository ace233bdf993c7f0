"""`python -m benchmarks.claims.gpu --json PATH`: the claims that are taken on a card, in two minutes.

Llama-3.1-8B shapes with random weights: what depends on shapes alone. Prompts are random tokens, answers are greedy and
as long as they may be. Each row is shown as soon as it is there, and the file is written anew with it; a part that
fails, or for which no time is left, says so, and the others go on.
"""

import argparse
import asyncio
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.claims.batching import WAYS, Arrival, Ask, Served, Way, draw_arrivals, results_of, serve_arrivals
from benchmarks.claims.published import CONTINUOUS, FIRST, PREFIX, SERVING
from benchmarks.claims.result import Figure, Result, taken_here, write_results
from benchmarks.gpu.figures import Client, decode_alone
from benchmarks.gpu.models import dummy_folder, dummy_model
from hotloop.backends.cuda.parallel.workers import Plan
from hotloop.backends.cuda.runner import CudaBackend, open_cuda
from hotloop.core.config import EngineConfig
from hotloop.core.request import SamplingParams
from hotloop.engine.engine import Engine

LIMIT_S = 160.0
SHAPE = "llama-8b"
_TINY = {
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    repeats: int = 3
    head: int = 4000
    own: tuple[int, int] = (1000, 4000)
    num_prompts: int = 8
    prompt: int = 2048
    answer: int = 800
    num_requests: int = 24
    outputs: Sequence[int] = (16, 24, 32, 48, 192)
    request: int = 256
    batch: tuple[int, int, int] = (64, 1024, 128)
    decoded: int = 128


_SMALL = Size(1, 70, (10, 20), 2, 40, 3, 3, (1, 2), 20, (2, 20, 2), 4)


@dataclass(slots=True)
class Measurements:
    """One run: how much, how long, and what came of it so far."""

    size: Size
    path: Path | None
    limit_s: float
    is_tiny: bool
    began_at: float = field(default_factory=time.perf_counter)
    results: list[Result] = field(default_factory=list)

    def take(self, name: str, measure: Callable[[], Result | Sequence[Result]]) -> None:
        """A part that fails is told in a line."""
        now_s = time.perf_counter() - self.began_at
        if now_s > self.limit_s:
            print(f"[{now_s:5.1f} s] {name}: no time left", flush=True)
            return
        try:
            found = measure()
        except Exception as error:  # the card is held for minutes: the other parts go on, whatever happened to this one
            print(
                f"[{now_s:5.1f} s] {name}: failed: {(str(error) or type(error).__name__).splitlines()[0]}", flush=True
            )
            return
        for result in [found] if isinstance(found, Result) else found:
            self.results.append(result)
            shown = "; ".join(figure.shown() for figure in result.figures)
            print(f"[{time.perf_counter() - self.began_at:5.1f} s] {result.claim}: {shown} {result.note}", flush=True)
        if self.path:
            machine = "a CPU, in the interpreter" if self.is_tiny else torch.cuda.get_device_name()
            write_results(self.path, self.results, taken_here("python -m benchmarks.claims.gpu", f"one {machine}"))


def measure_prefix(client: Client, size: Size) -> Result:
    """Each prompt alone: first with a head nobody has read, then after a head that somebody has."""
    rng = random.Random(0)
    without: list[float] = []
    with_: list[float] = []
    shares: list[float] = []
    for _ in range(size.repeats):
        lengths = [rng.randint(*size.own) for _ in range(size.num_prompts)]
        fresh = [client.prompt(size.head + own) for own in lengths]
        head = client.prompt(size.head)
        client.ask([head], 1)
        shared = [head + client.prompt(own) for own in lengths]
        for prompts, taken in ((fresh, without), (shared, with_)):
            taken.append(statistics.median(client.ask([prompt], 1).seconds for prompt in prompts))
        shares.append(sum(lengths) / (sum(lengths) + size.head * len(lengths)))
    prompt = f"{size.head:,} tokens in common and {size.own[0]:,} to {size.own[1]:,} of its own"
    return Result(
        claim=PREFIX,
        what=f"{size.num_prompts} prompts, each with {prompt}",
        figures=[Figure("first token", "s", with_, without), Figure("prefilled", "share", shares)],
    )


def measure_first(client: Client, size: Size) -> Result:
    answers = [client.ask([client.prompt(size.prompt)], size.answer) for _ in range(size.repeats)]
    firsts, wholes = ([getattr(each, name) for each in answers] for name in ("first_s", "seconds"))
    what = f"answers of {size.answer} tokens to prompts of {size.prompt:,}"
    return Result(claim=FIRST, what=what, figures=[Figure("first token", "s", firsts, wholes)])


def measure_batching(client: Client, size: Size) -> list[Result]:
    async def run() -> dict[Way, list[Served]]:
        served: dict[Way, list[Served]] = {way: [] for way in WAYS}
        for repeat in range(size.repeats):
            arrivals = draw_arrivals(size.num_requests, rate=200.0, outputs=size.outputs, seed=repeat)
            for way in WAYS:
                served[way].append(await serve_arrivals(_asker(client, size.request), arrivals, way))
        return served

    answers = f"{min(size.outputs)} to {max(size.outputs)}"
    what = f"{size.num_requests} requests of {size.request} tokens and answers of {answers}, 200 a second; batches of 8"
    return results_of(asyncio.run(run()), what)


def _asker(client: Client, num_prompt: int) -> Ask:
    async def ask(arrival: Arrival) -> None:
        params = SamplingParams(temperature=0, max_tokens=arrival.num_output, ignore_eos=True)
        async for _ in client.engine.stream(client.prompt(num_prompt), params):
            pass

    return ask


ONE, ONE_FIRST, MANY, MANY_FIRST = "one, tokens/s", "one, first token", "batch, tokens/s", "batch, first token"


def measure_serving(client: Client, size: Size, peer: dict[str, list[float]]) -> Result:
    """One request after the other, then a batch at once. Of a batch the median first token; of the peer's, which has
    them all at once, the same."""
    count, num_in, num_out = size.batch
    alone = decode_alone(client, size.prompt, num_tokens=size.decoded, repeats=size.repeats)
    first = [client.ask([client.prompt(size.prompt)], 1).seconds for _ in range(size.repeats)]
    batches = [client.ask([client.prompt(num_in) for _ in range(count)], num_out) for _ in range(min(2, size.repeats))]
    ours = {
        ONE: alone,
        ONE_FIRST: first,
        MANY: [each.num_tokens / each.seconds for each in batches],
        MANY_FIRST: [statistics.median(times[0] for times in each.times.values()) for each in batches],
    }
    figures = [Figure(name, "tokens/s" if "tokens" in name else "s", ours[name], peer.get(name, ())) for name in ours]
    what = f"one request at {size.prompt:,} tokens; {count} × ({num_in:,} in + {num_out} out) at once"
    return Result(claim=SERVING, what=what, figures=figures)


class Peer:
    """The same shapes in transformers, as one would use it by itself: the plain way that an engine has to beat."""

    def __init__(self, device: str, **changes: Any) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - for this part alone

        self._device = device
        config = AutoConfig.from_pretrained(dummy_folder(SHAPE, **changes))
        with torch.device(device):
            self._model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()

    def decode(self, context: int, num_tokens: int) -> float:
        """Tokens a second after the first one."""
        prompts = self._prompts(1, context)
        first_s, all_s = (self._time(partial(self._generate, prompts, n)) for n in (1, num_tokens + 1))
        return num_tokens / (all_s - first_s)

    def batch(self, count: int, num_in: int, num_out: int) -> float:
        """Output tokens a second, prompts included in the time."""
        return count * num_out / self._time(partial(self._generate, self._prompts(count, num_in), num_out))

    def first_s(self, count: int, num_tokens: int) -> float:
        """Seconds until so many prompts at once have their first token."""
        return self._time(partial(self._generate, self._prompts(count, num_tokens), 1))

    def _prompts(self, count: int, num_tokens: int) -> torch.Tensor:
        return torch.randint(1000, 100_000, (count, num_tokens), device=self._device)

    def _generate(self, prompts: torch.Tensor, num_new: int) -> None:
        lengths = {"max_new_tokens": num_new, "min_new_tokens": num_new}
        self._model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, **lengths)

    def _time(self, act: Callable[[], object]) -> float:
        with torch.inference_mode():
            self._synchronize()
            began_at = time.perf_counter()
            act()
            self._synchronize()
            return time.perf_counter() - began_at

    def _synchronize(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def measure_peer(size: Size, *, is_tiny: bool) -> dict[str, list[float]]:
    """The same with transformers, the second of two runs each; it leaves the card empty."""
    count, num_in, _ = size.batch
    peer = Peer("cpu", **_TINY) if is_tiny else Peer("cuda")
    peer.decode(size.prompt, size.decoded // 2)
    found = {
        ONE: [peer.decode(size.prompt, size.decoded // 2) for _ in range(size.repeats)],
        ONE_FIRST: [peer.first_s(1, size.prompt) for _ in range(size.repeats)],
        MANY_FIRST: [peer.first_s(count, num_in) for _ in range(2)][1:],
        MANY: [peer.batch(*size.batch) for _ in range(2)],
    }
    del peer
    gc.collect()
    torch.cuda.empty_cache()
    return found


def open_engine(*, is_tiny: bool) -> Engine:
    config = EngineConfig(max_running=64, host_kv="off", drafts=False)
    if is_tiny:
        model = dummy_model(SHAPE, **{"vocab_size": 512, **_TINY})
        backend = CudaBackend(model, 4 << 20, Plan(config, torch.float32, has_graphs=False), device="cpu")
    else:
        model = dummy_model(SHAPE)
        backend = open_cuda(model, config, weight_format="bf16", precision="fast")
    return Engine(model.tokenizer, backend, config, name=model.name)


def run(measurements: Measurements) -> None:
    size = measurements.size
    peer: dict[str, list[float]] = {}

    def keep_peer() -> Sequence[Result]:
        peer.update(measure_peer(size, is_tiny=measurements.is_tiny))
        print({name: [round(value, 3) for value in values] for name, values in peer.items()}, flush=True)
        return ()

    measurements.take("transformers", keep_peer)
    with open_engine(is_tiny=measurements.is_tiny) as engine:
        client = Client(engine, vocab_size=512) if measurements.is_tiny else Client(engine)
        print(f"[{time.perf_counter() - measurements.began_at:5.1f} s] hotloop is loaded", flush=True)
        client.ask([client.prompt(size.prompt)], 8)
        client.ask([client.prompt(size.head + size.own[1])], 2)
        measurements.take(SERVING, lambda: measure_serving(client, size, peer))
        measurements.take(PREFIX, lambda: measure_prefix(client, size))
        measurements.take(FIRST, lambda: measure_first(client, size))
        measurements.take(CONTINUOUS, lambda: measure_batching(client, size))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write results, such as docs/figures/claims-gpu.json")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds after which nothing more is begun")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, to see that it runs")
    flags = parser.parse_args()
    run(Measurements(_SMALL if flags.tiny else Size(), flags.json, flags.limit, flags.tiny))
    return 0


if __name__ == "__main__":
    sys.exit(main())
