"""`hotloop size`: which hardware a load needs, and how fast it will be."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveInt
from rich.console import Group
from rich.table import Table

from hotloop.cli.output import console, show
from hotloop.cli.settings import JsonOutput
from hotloop.core.config import parse_bytes
from hotloop.size.hardware import GPUS, Hardware, find_gpu
from hotloop.size.load import Load

if TYPE_CHECKING:
    from hotloop.size.roofline import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFlags:
    """Overrides of the model's shape."""

    num_layers: PositiveInt | None = None
    """Number of layers."""
    hidden_size: PositiveInt | None = None
    """Hidden size."""
    intermediate_size: PositiveInt | None = None
    """MLP size."""
    num_heads: PositiveInt | None = None
    """Number of attention heads."""
    num_kv_heads: PositiveInt | None = None
    """Number of key-value heads."""
    head_dim: PositiveInt | None = None
    """Head size."""
    vocab_size: PositiveInt | None = None
    """Vocabulary size."""
    max_context: PositiveInt | None = None
    """Maximum context, in tokens."""


def size(
    model: str = "llama-3.1-8b",
    *,
    gpu: str | None = None,
    gpus: PositiveInt | None = None,
    load: Annotated[Load, Parameter(name="*")] = Load(),
    host_memory: str | None = None,
    price: NonNegativeFloat | None = None,
    min_speed: NonNegativeFloat = 20.0,
    shape: Annotated[ShapeFlags, Parameter(name="*", group="Shape")] = ShapeFlags(),
    as_json: JsonOutput = False,
) -> None:
    """Estimate the hardware a load needs: memory, TTFT, tokens/s, cost. Runs no model.

    Parameters
    ----------
    model
        A well-known shape, such as qwen3-32b, or a model: name, hub id, GGUF file, or folder with config.json.
    gpu
        A GPU from the built-in table, such as h200, or `this` to measure this machine; the whole table if not given.
    gpus
        Number of GPUs, tensor parallel; if not given 1, or the fewest of 1, 2, 4 and 8 that suffice.
    host_memory
        Host memory for offloaded KV; if not given 128GiB, or half of what is free on this machine.
    price
        Price of one GPU per hour; the table's if not given.
    min_speed
        Minimum tokens/s per user for hardware to count as sufficient.
    """
    from hotloop.models.layout import check_spec
    from hotloop.size.roofline import cheapest, estimate_all
    from hotloop.size.shapes import find_shape

    name, spec = find_shape(model)
    spec = replace(spec, **{key: value for key, value in asdict(shape).items() if value is not None})
    check_spec(Path(name), spec, spec.num_layers)
    if spec.int4 and load.weights == "bf16":  # as a GPU holds them
        load = replace(load, weights="int4")
    if spec.fp8 and load.weights == "bf16":
        load = replace(load, weights="fp8")
    found = _hardware(gpu, price, host_memory)
    num_gpus = gpus or (1 if gpu else None)
    estimates = estimate_all(spec, load, found, num_gpus=num_gpus, min_tokens_s=min_speed)
    best = cheapest(estimates, min_speed)
    values = {"model": name, "load": asdict(load), "hardware": [_as_json(each, each is best) for each in estimates]}
    table = _details(estimates[0]) if gpu else _comparison(estimates, best, min_speed)
    show(values, _titled(name, estimates[0], table), as_json)


def _hardware(gpu: str | None, price: float | None, host_memory: str | None) -> list[Hardware]:
    found = [find_gpu(gpu)] if gpu and gpu != "this" else list(GPUS.values())
    if gpu == "this":
        from hotloop.size.machine import measure_machine

        with console.status("measuring this machine ..."):
            found = [measure_machine()]
    if price is not None:
        found = [replace(each, price_hour=price) for each in found]
    if host_memory is not None:
        host_bytes = 0 if host_memory == "0" else parse_bytes(host_memory)
        found = [replace(each, host_bytes=host_bytes) for each in found]
    return found


def _as_json(each: "Estimate", is_cheapest: bool) -> dict[str, Any]:
    verdict = {"fits": each.fits, "is_all_hot": each.is_all_hot, "is_cheapest": is_cheapest}
    values = asdict(each)
    del values["load"]
    return values | verdict | {"cost_1000_turns": each.cost_1000_turns}


def _titled(name: str, first: "Estimate", table: Any) -> Group:
    load, memory = first.load, first.memory
    turn = f"{load.tokens_in:,} in, {load.tokens_out:,} out, {load.gap_s:g} s between turns"
    weights = f"weights {load.weights} {_size(memory.weights_bytes)}"
    sizes = f"{weights}, KV {load.kv} {_size(memory.session_bytes)} per session"
    return Group(f"{name}: {sizes}", f"{load.sessions:,} sessions of {load.context:,} tokens: {turn}\n", table)


def _comparison(estimates: "list[Estimate]", best: "Estimate | None", min_speed: float) -> Group:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("\nGPU", no_wrap=True)
    waits, rates = ("TTFT\nCOLD", "\nWARM", "\nLOADED"), ("TOKENS/S\nALONE", "\nLOADED", "\nALL")
    for title in ("SESSIONS\nDEVICE", "HOT\nHOST", *waits, *rates, "1,000\nTURNS"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in estimates:
        mark = "> " if each is best else "  "
        note = "" if each.hardware.is_supported else "*"
        table.add_row(mark + each.hardware.name + note, *_cells(each))
    verdict = "> is the cheapest" if best else "none of these is enough; enough"
    means = f"with every session hot, nobody waiting for memory, and {min_speed:g} tokens/s for a user"
    return Group(table, f"\n{verdict}: {means}\n* hotloop does not run there\nestimates: see docs/sizing.md")


def _cells(each: "Estimate") -> list[str]:
    if each.latency is None:
        return ["too small"]
    memory, latency = each.memory, each.latency
    waits = [_seconds(wait) for wait in (latency.ttft_cold_s, latency.ttft_warm_s, latency.ttft_loaded_s)]
    rates = [f"{rate:,.0f}" for rate in (latency.tokens_s_alone, latency.tokens_s_user, latency.tokens_s_all)]
    return [f"{memory.num_device:,}", f"{memory.num_host:,}", *waits, *rates, _cost(each)]


def _details(each: "Estimate") -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    hardware, memory, latency = each.hardware, each.memory, each.latency
    source = "measured" if hardware.is_measured else "datasheet"
    rates = f"{hardware.bytes_s / 1e9:,.0f} GB/s, {hardware.flop_s / 1e12:,.4g} TFLOP/s ({source})"
    table.add_row("hardware", f"{hardware.name}: {_size(hardware.memory_bytes)}, {rates}")
    table.add_row("memory for KV", _size(memory.kv_bytes))
    if latency is None:
        table.add_row("fits", "no: not even one session beside the weights")
        return table
    rest = "all of them" if each.is_all_hot else "the others are computed again every turn"
    table.add_row("sessions hot", f"{memory.num_device:,} on the device, {memory.num_host:,} in host memory: {rest}")
    table.add_row("TTFT, cold prompt", f"{_seconds(latency.ttft_cold_s)} alone")
    host = "" if latency.ttft_host_s is None else f", {_seconds(latency.ttft_host_s)} from host memory"
    table.add_row("TTFT, warm turn", f"{_seconds(latency.ttft_warm_s)} alone{host}")
    waiting = f", {_seconds(latency.wait_s)} of it waiting for room" if latency.wait_s else ""
    table.add_row("TTFT, with all", f"{_seconds(latency.ttft_loaded_s)} in the mean{waiting}")
    table.add_row("a user's tokens/s", f"{latency.tokens_s_alone:,.1f} alone, {latency.tokens_s_user:,.1f} with all")
    table.add_row("all of them", f"{latency.tokens_s_all:,.0f} tokens/s, {latency.turns_s:,.2f} turns/s")
    table.add_row("1,000 turns", _cost(each))
    return table


def _cost(each: "Estimate") -> str:
    cost = each.cost_1000_turns
    return "-" if cost is None else f"${cost:.3f}" if cost < 1 else f"${cost:,.2f}"


def _seconds(value: float) -> str:
    return f"{value * 1e3:,.0f} ms" if value < 1 else f"{value:,.1f} s"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB" if num_bytes >> 30 else f"{num_bytes / (1 << 20):,.0f} MiB"
