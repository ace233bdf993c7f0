"""Short prompts beside long ones: how long each waits for its first token, alone and together."""

import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

from hotloop.core.request import Request, SamplingParams, TokenEvent
from hotloop.engine.engine import Engine

NUM_LONG, LONG_TOKENS = 3, 8000
NUM_SHORT, SHORT_TOKENS = 20, 100
EVERY_S = 0.03
PATIENCE_S = 60.0


class _Waits:
    """When each request got its first token, after it was submitted."""

    def __init__(self, engine: Engine) -> None:
        self.seconds: dict[str, float] = {}
        self._engine = engine
        self._began: dict[str, float] = {}
        self._num_open = 0
        self._changed = threading.Condition()

    def submit(self, name: str, prompt: Sequence[int], num_out: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=num_out, ignore_eos=True)
        with self._changed:
            self._num_open += 1
        self._began[name] = time.perf_counter()
        self._engine.submit([Request(name, prompt, params)], self._hear)

    def wait(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: not self._num_open, PATIENCE_S), "a request never ended"

    def _hear(self, event: TokenEvent) -> None:
        self.seconds.setdefault(event.request_id, time.perf_counter() - self._began[event.request_id])
        if event.finish_reason is not None:
            with self._changed:
                self._num_open -= 1
                self._changed.notify()


def waits(
    engine: Engine, prompts: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]], name: str
) -> tuple[list[float], list[float]]:
    """Long prompts at once, then the short ones, one every `EVERY_S`; the times to their first tokens."""
    long, short = prompts
    told = _Waits(engine)
    for i, prompt in enumerate(long):
        told.submit(f"{name}-long{i}", prompt, 8)
    began_at = time.perf_counter()
    for i, prompt in enumerate(short):
        time.sleep(max(0.0, began_at + (i + 1) * EVERY_S - time.perf_counter()))
        told.submit(f"{name}-short{i}", prompt, 8)
    told.wait()
    names = [f"{name}-long{i}" for i in range(len(long))], [f"{name}-short{i}" for i in range(len(short))]
    return [told.seconds[each] for each in names[0]], [told.seconds[each] for each in names[1]]


def short_beside_long(engine: Engine, prompt: Any, repeats: int = 3) -> dict[str, Any]:
    """Alone and together in turn. `prompt(n)` makes a new prompt of so many tokens."""
    short_alone: list[float] = []
    short_beside: list[float] = []
    slower: list[float] = []
    for i in range(repeats):
        long = [prompt(LONG_TOKENS) for _ in range(NUM_LONG)]
        alone, _ = waits(engine, (long, ()), f"a{i}")
        _, times = waits(engine, ((), [prompt(SHORT_TOKENS) for _ in range(NUM_SHORT)]), f"b{i}")
        short_alone += times
        long = [prompt(LONG_TOKENS) for _ in range(NUM_LONG)]
        beside, times = waits(engine, (long, [prompt(SHORT_TOKENS) for _ in range(NUM_SHORT)]), f"c{i}")
        short_beside += times
        slower.append(max(beside) / max(alone))
    p95 = [sorted(each)[int(0.95 * (len(each) - 1))] for each in (short_alone, short_beside)]
    return {
        "short alone p95 ms": round(1000 * p95[0], 1),
        "short beside p95 ms": round(1000 * p95[1], 1),
        "times": round(p95[1] / p95[0], 2),
        "long slower, times": round(statistics.median(slower), 3),
        "runs": [round(each, 3) for each in slower],
    }
