"""From a shape, hardware and a load to memory, waiting time and money. docs/sizing.md has the formulas in words.

A step of the engine reads every weight once, of experts those that some row goes to, and computes with the rows of all
that take part:

    step   = weights / bytes_s + layers x layer_s            once, whoever takes part
    row    = KV of one session / bytes_s + flop / flop_s     for each session that decodes
    prefill = flop of the new tokens / flop_s + KV of the past / bytes_s
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import NamedTuple

from hotloop.core.config import WeightFormat
from hotloop.core.errors import ConfigError
from hotloop.models.layout import num_active_weights
from hotloop.models.memory import INT8_SCALE_BYTES, gpu_weight_bytes, kv_token_bytes, state_bytes, weight_bytes
from hotloop.models.spec import Int4Spec, ModelSpec
from hotloop.size.hardware import Hardware
from hotloop.size.load import Load

_FORMATS: dict[str, WeightFormat] = {"bf16": "bf16", "fp8": "int8", "int8": "int8", "int4": "int4"}
_INT4 = Int4Spec("awq", 128)  # what most checkpoints in four bits are
_KV_BYTES = {"bf16": (2, 0), "fp8": (1, 0), "int8": (1, INT8_SCALE_BYTES)}  # of a number, and of a scale
_COUNTS = (1, 2, 4, 8)
_SESSION_STATES = 3  # that a session of a hybrid keeps: fewer cost it hits, more gain it none (docs/caching.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    weights_bytes: int
    kv_bytes: int
    session_bytes: int
    num_device: int
    """Sessions whose KV the device holds."""
    num_host: int
    """Sessions whose KV host memory holds beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """What one session sees, alone and with all of them; and what all get."""

    ttft_cold_s: float
    ttft_warm_s: float
    ttft_host_s: float | None
    """A warm turn whose KV comes from host memory."""
    tokens_s_alone: float
    ttft_loaded_s: float
    """The mean of all turns, wherever their KV is, `wait_s` included."""
    wait_s: float
    """Of that: until there is room on the device."""
    tokens_s_user: float
    tokens_s_all: float
    turns_s: float
    busy: float
    """Share of the time in which the device computes for others than the one who asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    hardware: Hardware
    load: Load
    memory: MemoryFit
    latency: Latency | None
    """None where not even one session fits."""

    @property
    def fits(self) -> bool:
        return self.latency is not None

    @property
    def cost_1000_turns(self) -> float | None:
        price_hour = self.hardware.price_hour
        return None if price_hour is None or not self.latency else 1000 * price_hour / 3600 / self.latency.turns_s

    @property
    def is_all_hot(self) -> bool:
        """Whether every session's KV is kept, on the device or in host memory."""
        return self.fits and self.memory.num_device + self.memory.num_host >= self.load.sessions

    def keeps_up(self, min_tokens_s: float) -> bool:
        """Whether every session stays hot, none waits for memory, and a user sees that many tokens a second."""
        return (
            self.latency is not None
            and self.is_all_hot
            and not self.latency.wait_s
            and self.latency.tokens_s_user >= min_tokens_s
        )


class Roofline(NamedTuple):
    """How long the parts of a turn take with the device to themselves."""

    spec: ModelSpec
    hardware: Hardware
    load: Load

    def step_s(self, num_rows: int) -> float:
        # The embedding is looked up, not read; as large as the head, it is left out by counting them as one.
        spec, experts = replace(self.spec, has_tied_head=True), self.spec.experts
        if experts:
            share = 1 - (1 - experts.num_chosen / experts.num_experts) ** num_rows
            spec = replace(spec, experts=replace(experts, num_experts=ceil(share * experts.num_experts)))
        read_bytes = self._weight_bytes(spec)
        return read_bytes / self.hardware.engine_bytes_s() + self.spec.num_layers * self.hardware.layer_s

    def row_s(self, context: float) -> float:
        head_flop = 2 * self.spec.hidden_size * self.spec.vocab_size
        state_s = 2 * state_bytes(self.spec) / self.hardware.engine_bytes_s()  # read and written
        return self.prefill_s(1, context) + head_flop / self._products_s() + state_s

    def prefill_s(self, num_new: int, num_past: float) -> float:
        spec = self.spec
        products = 2 * num_active_weights(spec) * num_new
        pairs = num_new * (num_past + num_new / 2)
        attention = 2 * spec.num_kv_layers * (spec.num_heads * spec.head_dim + spec.mixed_size) * pairs
        read_s = num_past * self.token_bytes() / self.hardware.engine_bytes_s()
        return products / self._products_s() + attention / self.hardware.engine_flop_s() + read_s

    def token_bytes(self) -> int:
        return kv_token_bytes(self.spec, *_KV_BYTES[self.load.kv])

    def memory(self) -> MemoryFit:
        weights_bytes = self._weight_bytes(self.spec)
        allowed_bytes = int(self.hardware.memory_bytes * self.hardware.memory_share)
        kv_bytes = max(0, allowed_bytes - weights_bytes - self.hardware.working_bytes)
        session_bytes = (self.load.context + self.load.tokens_out) * self.token_bytes()
        session_bytes += _SESSION_STATES * state_bytes(self.spec)
        has_host = self.hardware.link_bytes_s and not self.spec.linear
        return MemoryFit(
            weights_bytes=weights_bytes,
            kv_bytes=kv_bytes,
            session_bytes=session_bytes,
            num_device=kv_bytes // session_bytes,
            num_host=self.hardware.host_bytes // session_bytes if has_host else 0,
        )

    def _weight_bytes(self, spec: ModelSpec) -> int:
        is_gpu = self.hardware.link_bytes_s > 0
        if is_gpu and self.load.weights == "int4":  # embedding and head are bf16 there
            return gpu_weight_bytes(replace(spec, int4=spec.int4 or _INT4), "bf16", 1)
        return weight_bytes(spec, _FORMATS[self.load.weights])

    def _products_s(self) -> float:
        return self.hardware.engine_flop_s(is_fp8=self.load.weights == "fp8")


def estimate(spec: ModelSpec, hardware: Hardware, load: Load) -> Estimate:
    load.check(spec.max_context)
    line = Roofline(spec, hardware, load)
    memory = line.memory()
    latency = _latency(line, memory) if memory.num_device else None
    return Estimate(hardware=hardware, load=load, memory=memory, latency=latency)


def _latency(line: Roofline, memory: MemoryFit) -> Latency:
    load, hardware = line.load, line.hardware
    step_s, row_s = line.step_s(load.sessions), line.row_s(load.context + load.tokens_out / 2)
    alone_step_s, prompt_step_s = line.step_s(1), line.step_s(load.tokens_in)
    cold_s, warm_s = line.prefill_s(load.context, 0), line.prefill_s(load.tokens_in, load.context - load.tokens_in)
    fetch_s = memory.session_bytes / hardware.link_bytes_s if memory.num_host else 0.0

    on_device = min(1.0, memory.num_device / load.sessions)
    on_host = min(1.0 - on_device, memory.num_host / load.sessions)
    prefill_s = (on_device + on_host) * warm_s + (1 - on_device - on_host) * cold_s
    alone_s = prefill_s + load.tokens_out * (step_s + row_s)
    shared_s = prefill_s + load.tokens_out * row_s  # what a turn adds to the time of everybody else

    fetched_s, wait_s = on_host * fetch_s, 0.0
    cycle_s, busy = _cycle(load.sessions, alone_s, shared_s, load.gap_s + fetched_s)
    num_running = load.sessions * alone_s / (1 - busy) / cycle_s
    if load.sessions > memory.num_device and num_running > memory.num_device:
        # No room for all that want to run: as many as fit run all the time, the others wait.
        turn_s, busy = _cycle(memory.num_device, alone_s, shared_s, 0.0)
        cycle_s = max(cycle_s, load.sessions * turn_s / memory.num_device)
        wait_s = cycle_s - load.gap_s - fetched_s - turn_s
    return Latency(
        ttft_cold_s=cold_s + prompt_step_s,
        ttft_warm_s=warm_s + prompt_step_s,
        ttft_host_s=warm_s + prompt_step_s + fetch_s if memory.num_host else None,
        tokens_s_alone=1 / (alone_step_s + row_s),
        wait_s=wait_s,
        ttft_loaded_s=wait_s + fetched_s + (prefill_s + prompt_step_s) / (1 - busy),
        tokens_s_user=(1 - busy) / (step_s + row_s),
        tokens_s_all=load.sessions * load.tokens_out / cycle_s,
        turns_s=load.sessions / cycle_s,
        busy=busy,
    )


def _cycle(num_sessions: int, alone_s: float, shared_s: float, gap_s: float) -> tuple[float, float]:
    """Seconds from one turn of a session to its next, and the share of them that others take from it.

    The others take busy = (sessions - 1) x shared / cycle, so a turn lasts alone / (1 - busy), and

        cycle = gap + alone / (1 - busy)

    is a quadratic equation. Without a gap its solution is what they all take one after the other, step shared.
    """
    others_s = (num_sessions - 1) * shared_s
    total_s = gap_s + others_s + alone_s
    cycle_s = (total_s + sqrt(total_s**2 - 4 * gap_s * others_s)) / 2
    return cycle_s, others_s / cycle_s


def estimate_all(
    spec: ModelSpec, load: Load, hardware: Iterable[Hardware], *, num_gpus: int | None, min_tokens_s: float
) -> list[Estimate]:
    """With `num_gpus` of each, or with as few as keep up; with the most, if not even they do."""
    num_heads = 1 if spec.latent or spec.linear else spec.num_kv_heads  # these run on one GPU only
    counts = [num_gpus] if num_gpus else [count for count in _COUNTS if not num_heads % count]
    if num_heads % counts[-1]:
        raise ConfigError(f"{num_heads} heads of keys and values cannot be split over {num_gpus} GPUs")
    tried = [[estimate(spec, each.several(count), load) for count in counts] for each in hardware]
    return [next((one for one in each if one.keeps_up(min_tokens_s)), each[-1]) for each in tried]


def cheapest(estimates: Sequence[Estimate], min_tokens_s: float) -> Estimate | None:
    """For 1,000 turns, of those that keep up and that hotloop runs on."""
    able = [each for each in estimates if each.hardware.is_supported and each.keeps_up(min_tokens_s)]
    return min(able, key=lambda each: each.cost_1000_turns or 0.0, default=None)
