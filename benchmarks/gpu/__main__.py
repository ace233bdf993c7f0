"""`python -m benchmarks.gpu`: how fast the engine is on this machine's card, beside what the card could do.

Greedy, every answer as long as it may be. Everything goes through `Engine`, as a server's requests do. What the card
itself could do is measured in the same run: the bytes a copy moves and the operations a matrix product does a second.
"""

import argparse
import json
import queue
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from benchmarks.gpu.models import SHAPES, dummy_model
from hotloop.backends.cuda.runner import open_cuda
from hotloop.core.config import EngineConfig
from hotloop.core.request import Request, SamplingParams, TokenEvent
from hotloop.engine.engine import Engine
from hotloop.models.model import Model
from hotloop.size.hardware import ENGINE_BYTES_SHARE, ENGINE_FLOP_SHARE, Hardware
from hotloop.size.load import Load
from hotloop.size.machine import measure_machine
from hotloop.size.roofline import Roofline

Times = list[list[float]]
"""When each token of each request came, in seconds after they were asked for."""


@dataclass(slots=True)
class Client:
    """Asks an engine for tokens and takes the time of each event."""

    engine: Engine
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    num_asked: int = 0

    def prompt(self, num_tokens: int) -> list[int]:
        return self.rng.choices(range(1000, 120_000), k=num_tokens)

    def ask(self, prompts: Sequence[list[int]], num_tokens: int) -> Times:
        """All at once; waits for the last."""
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        events: queue.SimpleQueue[tuple[float, TokenEvent]] = queue.SimpleQueue()
        requests = [Request(f"q{self.num_asked + i}", prompt, params) for i, prompt in enumerate(prompts)]
        self.num_asked += len(requests)
        began_at = time.perf_counter()

        def on_events(told: Sequence[TokenEvent]) -> None:
            for event in told:
                events.put((time.perf_counter() - began_at, event))

        self.engine.submit(requests, on_events)
        times: dict[str, list[float]] = {request.id: [] for request in requests}
        num_open = len(requests)
        while num_open:
            at, event = events.get()
            if event.error:
                raise event.error
            times[event.request_id] += [at] * len(event.token_ids)
            num_open -= event.finish_reason is not None
        return [*times.values()]

    def rate(self, prompts: Sequence[list[int]], num_tokens: int) -> float:
        """Output tokens a second, prompts included in the time."""
        return len(prompts) * num_tokens / max(each[-1] for each in self.ask(prompts, num_tokens))

    def decode(self, context: int, num_tokens: int = 128) -> float:
        """Tokens a second after the first one."""
        [times] = self.ask([self.prompt(context)], num_tokens + 1)
        return num_tokens / (times[-1] - times[0])

    def prefill(self, num_tokens: int) -> float:
        """Tokens a second until the first token is there."""
        return num_tokens * self.rate([self.prompt(num_tokens)], 1)

    def lockstep(self, num_agents: int = 64, num_turns: int = 8) -> float:
        """Output tokens a second of agents with one head that all ask at once, 380 tokens in and 80 out a turn."""
        head = self.prompt(4000)
        histories = [head + self.prompt(60) for _ in range(num_agents)]
        rates = []
        for _ in range(num_turns):
            rates.append(self.rate(histories, 80))
            for history in histories:
                history += self.prompt(380)
        return statistics.harmonic_mean(rates)


def measure_limits() -> Hardware:
    """This card with nothing in its way: what `hotloop size` takes an engine to lose is not lost."""
    card = measure_machine()
    bytes_s, flop_s = card.bytes_s / ENGINE_BYTES_SHARE, card.flop_s / ENGINE_FLOP_SHARE
    return replace(card, bytes_s=bytes_s, flop_s=flop_s, layer_s=0.0)


def run(model: Model) -> Iterator[tuple[str, dict[str, Any]]]:
    """All figures of one run, each as soon as it is there: its repeats beside its limit."""
    card, config = measure_limits(), EngineConfig(max_running=256, host_kv="off", drafts=False)
    began_at, line = time.perf_counter(), Roofline(model.spec, card, Load())
    backend = open_cuda(model, config, weight_format="bf16", precision="fast")
    with Engine(model.tokenizer, backend, config, name=model.name) as engine:
        yield (
            "card",
            {
                "name": torch.cuda.get_device_name(),
                "copy TB/s": round(card.engine_bytes_s() / 1e12, 2),
                "matmul TFLOP/s": round(card.engine_flop_s() / 1e12),
                "start s": round(time.perf_counter() - began_at, 1),
                "KV tokens": engine.num_kv_tokens,
            },
        )
        client = Client(engine)
        client.ask([client.prompt(2048)], 8)
        client.ask([client.prompt(8192)], 2)
        for context in (2048, 32768):
            rates = [client.decode(context) for _ in range(3)]
            yield f"decode alone at {context:,}", _figure(rates, 1 / (line.step_s(1) + line.row_s(context)))
        for num_tokens in (2048, 8192, 32768, 100_000):
            rates = [client.prefill(num_tokens) for _ in range(1 if num_tokens == 100_000 else 3)]
            yield f"prefill of {num_tokens:,}", _figure(rates, num_tokens / line.prefill_s(num_tokens, 0))
        for count in (64, 256):
            rates = [client.rate([client.prompt(1024) for _ in range(count)], 128) for _ in range(2)]
            yield f"{count} x (1,024 + 128)", _figure(rates, None)
        yield "64 agents in lockstep", _figure([client.lockstep() for _ in range(2)], None)


def _figure(rates: list[float], limit: float | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"tokens/s": round(statistics.median(rates), 1), "runs": [round(rate, 1) for rate in rates]}
    return {**shown, "limit": round(limit, 1)} if limit else shown


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device: this runs on a machine with a card")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama-8b", help="of the model, whose weights are random")
    for name, figure in run(dummy_model(parser.parse_args().shape)):
        print(json.dumps({name: figure}), flush=True)


if __name__ == "__main__":
    main()
