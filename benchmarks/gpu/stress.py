"""Ten thousand random requests through a real engine on a tiny model: nothing is lost, told twice, or left behind.

Several threads ask for answers of all kinds, many of them abort, and the KV pool is too small for all who run. Every
request must end in one terminal event and hear nothing after it, whatever is said of its answer must hold, and between
rounds the idle engine must use no block and as much memory as after the first.
"""

import argparse
import json
import math
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu.engines import LentBackend, tell, wait_until_idle
from benchmarks.gpu.vocabularies import write_byte_tokenizer
from hotloop.backends.backend import Backend
from hotloop.backends.cuda.runner import CudaBackend
from hotloop.backends.cuda.workers import Plan
from hotloop.core.config import EngineConfig
from hotloop.core.errors import Overloaded
from hotloop.core.grammar import Grammar, json_schema
from hotloop.core.request import FinishReason, Priority, Request, SamplingParams, TokenEvent, TokenLogprob
from hotloop.engine.engine import Engine
from hotloop.models.memory import kv_token_bytes
from hotloop.models.model import Model, load_model
from hotloop.models.tokenizer import Tokenizer

VOCAB_SIZE = 640
NUM_THREADS, NUM_ROUNDS = 4, 10
MAX_OPEN, MAX_RUNNING = 192, 64
NUM_KV_TOKENS, MAX_CONTEXT = 2304, 1024
MAX_GROWTH_BYTES = 4 << 20
BANNED_ID = 40
CONFIG = EngineConfig(max_running=MAX_RUNNING, max_step_tokens=512, debug_checks=True, max_context=MAX_CONTEXT)
SHAPE = {
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": MAX_CONTEXT,
    "rms_norm_eps": 1e-5,
}
_UNIT = {"enum": ["celsius", "fahrenheit"]}
_DATE = {"type": "string", "format": "date"}
_CITY = {"type": "string", "minLength": 1, "maxLength": 12}
GRAMMARS = (
    json_schema({"type": "object", "properties": {"n": {"enum": ["one", "two", "three"]}}, "required": ["n"]}),
    json_schema({"type": "object", "properties": {"city": _CITY, "unit": _UNIT}, "required": ["city", "unit"]}),
    json_schema({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "maxItems": 5}),
    json_schema({"type": "object", "properties": {"ok": {"type": "boolean"}, "at": _DATE}}),
    Grammar("regex", "[a-c]{2,9}"),
    Grammar("regex", "[0-9]{3}-[0-9]{4}( ext [0-9]{1,3})?"),
    Grammar("regex", "(yes|no|maybe)"),
)


@dataclass(slots=True)
class Record:
    """A request as its caller sees it."""

    request: Request
    abort_after: int | None
    """After how many events it is aborted; 0: as soon as it was submitted."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    text: str = ""
    num_events: int = 0
    last: TokenEvent | None = None

    @property
    def is_over(self) -> bool:
        return self.last is not None


class Writer:
    """Makes requests up. Many share a beginning, some all of it."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._rng = random.Random(f"{name} {seed}")
        trunks = random.Random(seed)  # the same for all
        self._trunks = [[trunks.randrange(VOCAB_SIZE - 1) for _ in range(240)] for _ in range(8)]
        self._num_written = 0

    def write(self) -> Record:
        rng = self._rng
        self._num_written += 1
        trunk = rng.choice(self._trunks)[: rng.randrange(241)]
        prompt = [*trunk, *(rng.randrange(VOCAB_SIZE - 1) for _ in range(rng.randrange(1, 40)))]
        grammar = rng.choice(GRAMMARS) if rng.random() < 0.3 else None
        request = Request(
            f"{self._name}-{self._num_written}",
            prompt,
            self._sampling(),
            rng.choice([*Priority]),
            rng.choice(["", "", "red", "blue", self._name]),
            grammar,
            rng.choice(["", "", "", "salt"]),
        )
        return Record(request, rng.randrange(6) if rng.random() < 0.1 else None)

    def _sampling(self) -> SamplingParams:
        rng = self._rng
        max_tokens = rng.choice([1, 2, 8, 16, 32, 64, 128])
        is_plain = rng.random() < 0.3
        changes: dict[str, Any] = {} if is_plain else dict(self._changes(max_tokens))
        return SamplingParams(
            temperature=rng.choice([0.0, 0.0, 0.7, 1.0, 1.5]),
            max_tokens=max_tokens,
            seed=rng.choice([None, rng.randrange(1 << 60)]),
            ignore_eos=rng.random() < 0.3,
            **changes,
        )

    def _changes(self, max_tokens: int) -> Iterator[tuple[str, Any]]:
        """Each of these now and then."""
        rng = self._rng
        changes: dict[str, Callable[[], Any]] = {
            "top_p": lambda: rng.choice([0.1, 0.5, 0.95]),
            "top_k": lambda: rng.choice([1, 5, 50]),
            "min_p": lambda: rng.choice([0.05, 0.5]),
            "repetition_penalty": lambda: rng.choice([0.8, 1.1, 2.0]),
            "presence_penalty": lambda: rng.uniform(-2, 2),
            "frequency_penalty": lambda: rng.uniform(-2, 2),
            "logit_bias": lambda: {BANNED_ID: -100.0, rng.randrange(100, 200): 3.0},
            "min_tokens": lambda: rng.randrange(max_tokens + 1),
            "stop": lambda: tuple(rng.sample(["a", "w3", "e", "9 ", "zz"], rng.randrange(1, 3))),
            "stop_token_ids": lambda: frozenset(rng.sample(range(300), 3)),
            "include_stop": lambda: True,
            "logprobs": lambda: rng.choice([0, 1, 5, 20]),
            "shortcuts": lambda: False,
        }
        return ((name, make()) for name, make in changes.items() if rng.random() < 0.15)


class Ordeal:
    """Asks and listens. `failures` has everything that should not have happened."""

    def __init__(self, engine: Engine, deadline: float) -> None:
        self.engine = engine
        self.failures: list[str] = []
        self.reasons: Counter[str] = Counter()
        self.num_submitted = 0
        self._deadline = deadline
        self._room = threading.Semaphore(MAX_OPEN)
        self._over: SimpleQueue[Record] = SimpleQueue()
        self._lock = threading.Lock()

    def round(self, writers: list[Writer], num_requests: int) -> None:
        """So many requests from all writers together, until all have ended and the engine is idle."""
        before = self.num_submitted
        share = -(-num_requests // len(writers))
        threads = [threading.Thread(target=self._submit, args=(writer, share)) for writer in writers]
        for thread in threads:
            thread.start()
        num_over = 0
        while any(thread.is_alive() for thread in threads) or num_over < self.num_submitted - before:
            try:
                self._judge(self._over.get(timeout=1))
                num_over += 1
            except Empty:
                if time.monotonic() > self._deadline + 60:
                    self.fail(f"{self.num_submitted - before - num_over} requests never ended")
                    return
        try:
            wait_until_idle(self.engine)
        except TimeoutError as error:
            self.fail(str(error))
        num_used = self.engine.stats().num_blocks_used
        if num_used:
            self.fail(f"{num_used} blocks are used while nothing runs")
        if self.engine.failure:
            self.fail("the engine's loop failed")

    def fail(self, what: str) -> None:
        with self._lock:
            self.failures.append(what)

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _submit(self, writer: Writer, count: int) -> None:
        for i in range(count):
            self._room.acquire()
            if self.is_late or self.engine.failure:
                self._room.release()
                return
            self._submit_one(writer.write())
            if i % 50 == 0:  # what is wrong then fails whoever runs, and is seen
                self.engine._post(self.engine._core.check)

    def _submit_one(self, record: Record) -> None:
        while True:
            try:
                self.engine.submit([record.request], lambda event: self._hear(record, event))
                break
            except Overloaded:
                time.sleep(0.01)
            except Exception as error:
                self._room.release()
                self.fail(f"{record.request.id} was refused: {error!r}")
                return
        with self._lock:
            self.num_submitted += 1
        if record.abort_after == 0:
            self.engine.abort(record.request.id)

    def _hear(self, record: Record, event: TokenEvent) -> None:
        """On the engine's thread."""
        if record.is_over:
            self.fail(f"{record.request.id} heard of something after its end")
            return
        record.num_events += 1
        record.token_ids += event.token_ids
        record.logprobs += event.logprobs
        record.text += event.text
        if event.finish_reason is not None:
            record.last = event
            self._room.release()
            self._over.put(record)
        elif record.abort_after == record.num_events:
            self.engine.abort(record.request.id)

    def _judge(self, record: Record) -> None:
        assert record.last
        assert record.last.finish_reason
        self.reasons[record.last.finish_reason] += 1
        for fault in _faults(record, self.engine):
            self.fail(f"{record.request.id}: {fault}")


def _faults(record: Record, engine: Engine) -> Iterator[str]:
    """Whatever of an answer is not as it was asked for."""
    request, params, last = record.request, record.request.sampling, record.last
    assert last
    if last.error:
        yield f"failed: {last.error!r}"
        return
    if last.finish_reason is FinishReason.ABORT and record.abort_after is None:
        yield "was aborted by nobody"
    if last.usage.num_output != len(record.token_ids):
        yield f"{last.usage.num_output} tokens of output, of which {len(record.token_ids)} were told"
    if len(record.token_ids) > (params.max_tokens or 0):
        yield "is longer than it may be"
    if BANNED_ID in params.logit_bias and request.grammar is None and BANNED_ID in record.token_ids:
        yield "has a token that its bias forbids"
    if params.logprobs is not None:
        yield from _logprob_faults(record, params.logprobs)
    if last.finish_reason is FinishReason.STOP:
        yield from _stop_faults(record, engine)
    is_cut = last.finish_reason is FinishReason.LENGTH and request.grammar is None
    if is_cut and len(record.token_ids) != params.max_tokens:
        yield "ended before its time"


def _logprob_faults(record: Record, num_top: int) -> Iterator[str]:
    if len(record.logprobs) != len(record.token_ids):
        yield f"{len(record.logprobs)} logprobs of {len(record.token_ids)} tokens"
    for found, token_id in zip(record.logprobs, record.token_ids, strict=False):
        values = [value for _, value in found.top]
        if found.token_id != token_id or len(values) != num_top or values != sorted(values, reverse=True):
            yield "has logprobs of something else"
        if not all(math.isfinite(value) and value <= 1e-3 for value in [found.logprob, *values]):
            yield "has logprobs that are none"


def _stop_faults(record: Record, engine: Engine) -> Iterator[str]:
    request, params, last = record.request, record.request.sampling, record.last
    assert last
    if request.grammar is None and len(record.token_ids) < params.min_tokens:  # where one leaves only the end, it ends
        yield "ended before it was long enough"
    is_cut = last.stop_match is not None
    if isinstance(last.stop_match, str) and record.text.endswith(last.stop_match) != params.include_stop:
        yield "has its stop string where it should not, or has not where it should"
    if is_cut or request.grammar is None:
        return
    matcher = engine.grammars.matcher(request.grammar)
    if not all(map(matcher.advance, record.token_ids)) or not matcher.is_complete:
        yield f"does not obey its grammar: {record.text!r}"
    elif request.grammar.kind == "regex" and not re.fullmatch(request.grammar.text, record.text):
        yield f"does not match {request.grammar.text}: {record.text!r}"
    elif request.grammar.kind == "json_schema":
        try:
            json.loads(record.text)
        except ValueError:
            yield f"is not JSON: {record.text!r}"


def open_tiny(device: str) -> tuple[Model, CudaBackend]:
    """A model that is quick, and far fewer blocks than all who run would like."""
    with tempfile.TemporaryDirectory(prefix="hotloop-stress-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(SHAPE))
        write_byte_tokenizer(folder, VOCAB_SIZE)
        model = load_model(str(folder), load_format="dummy")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    kv_bytes = NUM_KV_TOKENS * kv_token_bytes(model.spec, dtype.itemsize)
    return model, CudaBackend(model, kv_bytes, Plan(CONFIG, dtype, has_graphs=device == "cuda"), device=device)


def run(
    tokenizer: Tokenizer, backend: Backend, *, num_requests: int = 10_000, limit_s: float = 180.0, seed: int = 0
) -> dict[str, Any]:
    """All requests, or as many as there is time for, in ten rounds. The backend stays open."""
    began_at = time.monotonic()
    writers = [Writer(f"thread{i}", seed) for i in range(NUM_THREADS)]
    memory: list[dict[str, int]] = []
    with Engine(tokenizer, LentBackend(backend, NUM_KV_TOKENS // backend.block_size), CONFIG) as engine:
        ordeal = Ordeal(engine, began_at + limit_s)
        for _ in range(NUM_ROUNDS):
            if ordeal.is_late or engine.failure:
                break
            ordeal.round(writers, -(-num_requests // NUM_ROUNDS))
            memory.append(_memory())
            progress = f"{ordeal.num_submitted:,} requests, {len(ordeal.failures)} failures, {memory[-1]['device']:,} B"
            print(f"{time.monotonic() - began_at:4.0f} s  {progress}, {json.dumps(ordeal.reasons)}", flush=True)
        stats = engine.stats()
    if ordeal.num_submitted < num_requests:
        ordeal.fail(f"only {ordeal.num_submitted:,} of {num_requests:,} requests were submitted in {limit_s:g} s")
    growth = memory[-1]["device"] - memory[0]["device"]
    if growth > MAX_GROWTH_BYTES:
        ordeal.fail(f"memory on the device grew by {growth:,} bytes")
    return {
        "passed": not ordeal.failures,
        "requests": ordeal.num_submitted,
        "seconds": round(time.monotonic() - began_at, 1),
        "finished": dict(ordeal.reasons),
        "output_tokens": stats.usage.num_output,
        "steps": stats.num_steps,
        "forced": stats.usage.num_forced,
        "drafted": stats.usage.num_drafted,
        "accepted": stats.usage.num_accepted,
        "cached_tokens": stats.usage.num_cached,
        "preempted": stats.num_preemptions,
        "evicted_blocks": stats.num_evicted_blocks,
        "memory": memory,
        "num_failures": len(ordeal.failures),
        "failures": ordeal.failures[:50],
    }


def _memory() -> dict[str, int]:
    """Bytes in use between two rounds."""
    num_pages = int(Path("/proc/self/statm").read_text().split()[1])
    device = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    return {"device": int(device), "host": num_pages * 4096}


def show(report: Mapping[str, Any], console: Console) -> None:
    table = Table("Stress", "", show_header=True)
    for name, value in report.items():
        if isinstance(value, int | float):
            table.add_row(name, f"{value:,}")
    for reason, count in report["finished"].items():
        table.add_row(f"finished: {reason}", f"{count:,}")
    for place in ("device", "host"):
        table.add_row(f"{place} MB after each round", " ".join(f"{each[place] / 1e6:.1f}" for each in report["memory"]))
    console.print(table)
    for failure in report["failures"]:
        console.print(f"failed: {failure}", markup=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds after which nothing more is submitted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the report there")
    flags = parser.parse_args()
    model, backend = open_tiny(flags.device)
    report = run(model.tokenizer, backend, num_requests=flags.requests, limit_s=flags.limit, seed=flags.seed)
    backend.close()
    return tell(report, show, flags.json)


if __name__ == "__main__":
    sys.exit(main())
