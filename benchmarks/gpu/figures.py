"""How fast the engine is on a card: decoding alone, prefill, a batch, and how much of the time the card waits for us.

Greedy, every answer as long as it may be. Everything goes through `Engine`, as a server's requests do. What the card
itself could do is measured in the same run: the bytes a copy moves and the operations a matrix product does a second.
"""

import queue
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.models import dummy_model
from hotloop.backends.backend import Batch
from hotloop.backends.cuda.flight import CudaFlight
from hotloop.backends.cuda.runner import CudaBackend, open_cuda
from hotloop.core.config import EngineConfig
from hotloop.core.request import Request, SamplingParams, TokenEvent
from hotloop.engine.core import StepReport
from hotloop.engine.engine import Engine
from hotloop.models.layout import num_active_weights
from hotloop.models.memory import kv_token_bytes, state_bytes
from hotloop.models.spec import ModelSpec

_VOCAB = 120_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What the card does with nothing in its way."""

    copy_bytes_s: float
    matmul_flop_s: float


class Client:
    """Asks an engine for tokens and takes the time of each event."""

    def __init__(self, engine: Engine, seed: int = 0, *, vocab_size: int = _VOCAB) -> None:
        self.engine = engine
        self.rng = random.Random(seed)
        self._vocab = range(min(1000, vocab_size // 2), vocab_size)
        self._num_asked = 0

    def prompt(self, num_tokens: int) -> list[int]:
        return self.rng.choices(self._vocab, k=num_tokens)

    def ask(self, prompts: Sequence[list[int]], num_tokens: int, **changes: Any) -> "Answers":
        """All at once; waits for the last."""
        params = SamplingParams(**{"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True, **changes})
        events: queue.SimpleQueue[tuple[float, TokenEvent]] = queue.SimpleQueue()
        requests = [Request(f"q{self._num_asked + i}", prompt, params) for i, prompt in enumerate(prompts)]
        self._num_asked += len(requests)
        began_at = time.perf_counter()

        def on_events(told: Sequence[TokenEvent]) -> None:
            for event in told:
                events.put((time.perf_counter() - began_at, event))

        self.engine.submit(requests, on_events)
        answers = Answers({request.id: [] for request in requests})
        num_open = len(requests)
        while num_open:
            at, event = events.get()
            if event.error:
                raise event.error
            answers.times[event.request_id] += [at] * len(event.token_ids)
            num_open -= event.finish_reason is not None
        return answers


@dataclass(frozen=True, slots=True)
class Answers:
    """When each token of each request came, in seconds after they were asked for."""

    times: dict[str, list[float]]

    @property
    def seconds(self) -> float:
        return max(times[-1] for times in self.times.values())

    @property
    def first_s(self) -> float:
        return min(times[0] for times in self.times.values())

    @property
    def mean_first_s(self) -> float:
        return statistics.fmean(times[0] for times in self.times.values())

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.times.values()))


def open_engine(name: str, **settings: Any) -> Engine:
    model = dummy_model(name)
    config = EngineConfig(**{"max_running": 256, "host_kv": "off", **settings})
    backend = open_cuda(model, config, weight_format="bf16", precision="fast")
    return Engine(model.tokenizer, backend, config, name=model.name)


def measure_limits() -> Limits:
    source = torch.randint(0, 255, (2 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_s = _median_s(lambda: target.copy_(source))
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    matmul_s = _median_s(lambda: a @ b)
    return Limits(2 * source.numel() / copy_s, 2 * 8192**3 / matmul_s)


def _median_s(act: Any, num_runs: int = 10) -> float:
    act()
    times: list[float] = []
    for _ in range(num_runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        act()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times)


def matrix_weights(spec: ModelSpec) -> int:
    """Weights that every token is multiplied with, the head included."""
    return num_active_weights(spec) + spec.vocab_size * spec.hidden_size


def matrix_bytes(spec: ModelSpec, num_rows: int) -> float:
    """What so many rows read of these: of experts those that some row goes to, if each is as likely as the others."""
    if not spec.experts:
        return 2 * matrix_weights(spec)
    experts = spec.experts
    share = 1 - (1 - experts.num_chosen / experts.num_experts) ** num_rows
    of_experts = 3 * (spec.num_layers - experts.num_dense) * experts.size * spec.hidden_size
    others = matrix_weights(spec) - experts.num_chosen * of_experts
    return 2 * others + (17 / 32 if experts.is_mxfp4 else 2) * share * experts.num_experts * of_experts


def decode_limit(spec: ModelSpec, limits: Limits, batch: int, context: int) -> float:
    """Tokens a second if weights and KV are read once a step, states read and written, and nothing else costs time."""
    own_bytes = context * kv_token_bytes(spec) + 2 * state_bytes(spec)
    return batch * limits.copy_bytes_s / (matrix_bytes(spec, batch) + batch * own_bytes)


def prefill_limit(spec: ModelSpec, limits: Limits, num_tokens: int) -> float:
    """Tokens a second if all there is to compute runs at the rate of one large matrix product."""
    head = spec.vocab_size * spec.hidden_size
    flop = 2 * (matrix_weights(spec) - head) * num_tokens + 2 * head
    flop += spec.num_kv_layers * (spec.num_heads * spec.head_dim + spec.mixed_size) * num_tokens**2
    return limits.matmul_flop_s * num_tokens / flop


def decode_alone(client: Client, context: int, num_tokens: int = 128, repeats: int = 3) -> list[float]:
    """Tokens a second after the first one."""
    rates = []
    for _ in range(repeats):
        answers = client.ask([client.prompt(context)], num_tokens + 1)
        [times] = answers.times.values()
        rates.append(num_tokens / (times[-1] - times[0]))
    return rates


def prefill(client: Client, num_tokens: int, repeats: int = 3) -> list[float]:
    """Tokens a second until the first token is there."""
    return [num_tokens / client.ask([client.prompt(num_tokens)], 1).seconds for _ in range(repeats)]


def batch(client: Client, count: int, num_in: int = 1024, num_out: int = 128, repeats: int = 2) -> list[float]:
    """Output tokens a second, prompts included in the time."""
    rates = []
    for _ in range(repeats):
        answers = client.ask([client.prompt(num_in) for _ in range(count)], num_out)
        rates.append(answers.num_tokens / answers.seconds)
    return rates


def lockstep(client: Client, num_agents: int = 64, num_turns: int = 8, repeats: int = 2) -> list[float]:
    """Output tokens a second of agents with one head that all ask at once, 380 tokens in and 80 out a turn."""
    rates = []
    for _ in range(repeats):
        head = client.prompt(4000)
        histories = [head + client.prompt(60) for _ in range(num_agents)]
        num_tokens, seconds = 0, 0.0
        for _ in range(num_turns):
            answers = client.ask(histories, 80)
            num_tokens, seconds = num_tokens + answers.num_tokens, seconds + answers.seconds
            for history in histories:
                history += client.prompt(380)
        rates.append(num_tokens / seconds)
    return rates


def long_prompts(client: Client, count: int = 3, num_tokens: int = 8000, repeats: int = 5) -> list[float]:
    """Mean time to the first token of prompts that are asked at once, in seconds."""
    return [client.ask([client.prompt(num_tokens) for _ in range(count)], 8).mean_first_s for _ in range(repeats)]


def idle_share(client: Client, count: int, num_in: int = 1024, num_out: int = 128, **changes: Any) -> dict[str, Any]:
    """How much of the time of steps that only decode the card had nothing to do, by its own clock. The prompts are
    cached by then, so all decode from the first step on.
    """
    prompts = [client.prompt(num_in) for _ in range(count)]
    client.ask(prompts, 1)
    backend = client.engine._backend
    assert isinstance(backend, CudaBackend)
    timeline: list[tuple[int, CudaFlight]] = []  # rows of a step, and the step
    launch = backend.launch

    def launch_recorded(batch: Batch) -> CudaFlight:
        timeline.append((len(batch.token_ids), launch(batch)))
        return timeline[-1][1]

    backend.launch = launch_recorded  # type: ignore[method-assign]
    reports: list[StepReport] = []
    client.engine.on_step = reports.append
    client.ask(prompts, num_out, **changes)
    backend.launch = launch  # type: ignore[method-assign]
    client.engine.on_step = None
    torch.cuda.synchronize()
    steps = [flight for num_rows, flight in timeline if num_rows == count]
    if len(steps) < 2:
        return {"rows of steps": Counter(num_rows for num_rows, _ in timeline).most_common(8)}
    busy_ms = sum(flight.begun.elapsed_time(flight.ended) for flight in steps[1:])
    total_ms = steps[0].ended.elapsed_time(steps[-1].ended)
    level = [report for report in reports if report.num_tokens == count]
    return {
        "steps": len(steps),
        "step_ms": round(total_ms / (len(steps) - 1), 3),
        "idle_share": round(1 - busy_ms / total_ms, 4),
        "host_ms": round(1000 * statistics.median(report.host_s for report in level), 3) if level else 0.0,
    }
