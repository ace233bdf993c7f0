"""What is estimated is near what was measured, and moves the way it must."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import ConfigError
from hotloop.models.memory import state_bytes
from hotloop.models.spec import LinearSpec, ModelSpec
from hotloop.size.hardware import GIB, GPUS, Hardware, find_gpu
from hotloop.size.load import Load
from hotloop.size.machine import CPU_LAYER_S
from hotloop.size.roofline import Latency, estimate, estimate_all
from hotloop.size.shapes import SHAPES

LLAMA = SHAPES["llama-3.1-8b"]
SMOLLM = ModelSpec("llama", 30, 576, 1536, 9, 3, 64, 49_152, 8192, 1e-5, 1e5, has_tied_head=True)

H200 = GPUS["h200"]
H200_MEASURED = Hardware(name="H200", memory_bytes=140 * GIB, bytes_s=4.16e12, flop_s=778e12, is_measured=True)
CPU_MEASURED = Hardware(  # two Neoverse N1: the best that measure_machine() found in several tries
    name="CPU", memory_bytes=24 * GIB, bytes_s=40e9, flop_s=125e9, host_bytes=0, layer_s=CPU_LAYER_S, is_measured=True
)
PAGE = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text("utf-8")
_ROW = re.compile(r"^\| ([^|]+) \| [\d,.]+ \| ([\d,.]+) \|$", re.MULTILINE)
MEASURED = {label: float(figure.replace(",", "")) for label, figure in _ROW.findall(PAGE)}
"""What the manual sets beside its estimates."""


def as_measured(label: str) -> object:
    """Within a quarter, as the page says."""
    return pytest.approx(MEASURED[label], rel=0.25)


def latency(hardware: Hardware, spec: ModelSpec = LLAMA, **load: object) -> Latency:
    found = estimate(spec, hardware, Load(**{"gap_s": 0.0, **load})).latency
    assert found
    return found


def prefill_tokens_s(hardware: Hardware, num_tokens: int, spec: ModelSpec = LLAMA, **load: object) -> float:
    return num_tokens / latency(hardware, spec, context=num_tokens, sessions=1, **load).ttft_cold_s


@pytest.mark.parametrize("hardware", [H200, H200_MEASURED], ids=["datasheet", "measured"])
def test_within_a_quarter_of_what_was_measured_on_a_gpu(hardware: Hardware):
    """One H200, Llama-3.1-8B shapes, bf16."""
    assert latency(hardware, sessions=1, context=2048).tokens_s_alone == as_measured(
        "decode alone at 2,048 tokens, tokens/s"
    )
    assert latency(hardware, sessions=1, context=32_768).tokens_s_user == as_measured(
        "decode alone at 32,768 tokens, tokens/s"
    )
    assert prefill_tokens_s(hardware, 8192) == as_measured("prefill of 8,192 tokens, tokens/s")
    batch = {"context": 1024, "tokens_in": 1024, "tokens_out": 128}
    assert latency(hardware, sessions=64, **batch).tokens_s_all == as_measured(
        "64 × (1,024 in + 128 out), output tokens/s"
    )
    assert latency(hardware, sessions=256, **batch).tokens_s_all == as_measured(
        "256 × (1,024 in + 128 out), output tokens/s"
    )


def test_within_a_quarter_of_what_was_measured_on_a_cpu():
    decode = {"spec": SMOLLM, "weights": "int8", "context": 64, "tokens_in": 1, "tokens_out": 64}
    assert prefill_tokens_s(CPU_MEASURED, 512, SMOLLM, weights="int8") == as_measured("prefill of 512 tokens, tokens/s")
    assert latency(CPU_MEASURED, sessions=1, **decode).tokens_s_user == as_measured("decode alone, tokens/s")
    assert latency(CPU_MEASURED, sessions=8, **decode).tokens_s_all == as_measured("decode of 8 at once, tokens/s")


def test_only_the_experts_that_rows_go_to_are_read():
    """Six of 64 for one row; for many rows nearly all of them."""
    spec = SHAPES["deepseek-v2-lite"]
    without = replace(spec, experts=None, intermediate_size=6 * 1408 + 2816)  # as much as a row reads
    assert latency(H200, spec, sessions=1).tokens_s_alone == pytest.approx(
        latency(H200, without).tokens_s_alone, rel=0.02
    )
    few, many = (1 / latency(H200, spec, sessions=sessions, context=600).tokens_s_user for sessions in (1, 64))
    assert many > 2 * few


def test_room_is_what_an_engine_finds():
    """vLLM on an H200 had KV for 896,912 tokens beside these weights."""
    memory = estimate(LLAMA, H200, Load(context=8191, tokens_out=1)).memory
    assert memory.session_bytes == 1 << 30
    assert memory.kv_bytes / (memory.session_bytes / 8192) == pytest.approx(896_912, rel=0.05)
    assert memory.num_device == memory.kv_bytes >> 30
    assert memory.num_host == 128


def test_a_model_that_does_not_fit_has_no_feel():
    found = estimate(SHAPES["llama-3.1-70b"], GPUS["h100"], Load())
    assert (found.latency, found.fits, found.is_all_hot, found.cost_1000_turns) == (None, False, False, None)
    assert estimate(SHAPES["llama-3.1-70b"], GPUS["h100"].several(4), Load()).fits


@given(
    sessions=st.integers(1, 400),
    context=st.integers(600, 60_000),
    tokens_out=st.integers(1, 2000),
    gap_s=st.floats(0, 1000),
    gpu=st.sampled_from(sorted(GPUS)),
)
def test_a_cycle_is_a_gap_and_a_turn(sessions: int, context: int, tokens_out: int, gap_s: float, gpu: str):
    """Turns wait for each other, but the device is never asked for more time than there is."""
    load = Load(sessions=sessions, context=context, tokens_out=tokens_out, gap_s=gap_s)
    found = estimate(LLAMA, GPUS[gpu].several(2), load)
    result = found.latency
    assert result
    cycle_s = sessions / result.turns_s
    assert 0 <= result.busy < 1
    assert result.wait_s >= 0
    assert result.tokens_s_user <= result.tokens_s_alone
    # The first token's row is the estimate's only slack.
    known_s = gap_s + result.ttft_loaded_s + (tokens_out - 1) / result.tokens_s_user
    assert known_s * (1 - 1e-9) <= cycle_s <= (known_s + 1 / result.tokens_s_user) * (1 + 1e-9)


def test_sessions_that_outgrow_the_device_come_from_the_host_and_then_from_nowhere():
    turn = {"context": 32_000, "tokens_in": 512, "tokens_out": 128, "gap_s": 30.0}
    few, host, many = (latency(H200, sessions=count, **turn) for count in (25, 55, 200))
    assert few.ttft_loaded_s < host.ttft_loaded_s < many.ttft_loaded_s / 10
    without = latency(replace(H200, host_bytes=0), sessions=55, **turn)
    assert without.tokens_s_user < host.tokens_s_user
    assert without.ttft_host_s is None


def test_who_finds_no_room_waits_and_throughput_stays():
    turn = {"context": 32_000, "tokens_in": 512, "tokens_out": 128}
    full, over = (latency(replace(H200, host_bytes=1 << 42), sessions=count, **turn) for count in (27, 270))
    assert full.wait_s == 0
    assert over.wait_s > 0
    assert over.tokens_s_all == pytest.approx(full.tokens_s_all, rel=0.02)
    assert over.tokens_s_user == pytest.approx(full.tokens_s_user, rel=0.02)


def test_a_hybrid_has_kv_in_some_layers_and_states_in_the_others():
    """Three of four layers of this one read and write a state for each token, and nothing of the past."""
    linear = LinearSpec(tuple(i for i in range(32) if i % 4 < 3), 16, 32, 128, 128, 4)
    hybrid, load = replace(LLAMA, linear=linear), Load(context=8191, tokens_out=1, sessions=1, gap_s=0.0)
    dense, found = (estimate(spec, H200, load).memory for spec in (LLAMA, hybrid))
    assert found.session_bytes == dense.session_bytes // 4 + 3 * state_bytes(hybrid)
    assert found.num_host == 0
    long = {"context": 100_000, "tokens_in": 1, "tokens_out": 64, "sessions": 32}
    assert latency(H200, hybrid, **long).tokens_s_user > 1.5 * latency(H200, **long).tokens_s_user
    [alone] = estimate_all(hybrid, load, [H200], num_gpus=None, min_tokens_s=1e9)
    assert alone.hardware == H200.several(1)


def test_smaller_numbers_are_faster():
    alone = {weights: latency(H200, sessions=1, weights=weights).tokens_s_alone for weights in ("bf16", "fp8", "int4")}
    assert 1.5 * alone["bf16"] < alone["fp8"] < alone["int4"]
    assert latency(H200, weights="fp8").ttft_cold_s < 0.65 * latency(H200).ttft_cold_s
    assert latency(GPUS["a100"], weights="fp8").ttft_cold_s == pytest.approx(
        latency(GPUS["a100"]).ttft_cold_s, rel=0.05
    )
    assert estimate(LLAMA, H200, Load(kv="fp8")).memory.num_host == 2 * estimate(LLAMA, H200, Load()).memory.num_host
    scaled, plain = (estimate(LLAMA, H200, Load(kv=kv)).memory.session_bytes for kv in ("int8", "bf16"))
    assert scaled == plain * (128 + 4) // 256


def test_two_gpus_are_less_than_twice_one():
    one, two = latency(H200, sessions=1), latency(H200.several(2), sessions=1)
    assert 1.5 < two.tokens_s_alone / one.tokens_s_alone < 1.8
    assert H200.several(2).price_hour == 2 * H200.price_hour
    assert H200.several(1) == H200


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sessions": 0}, "sessions cannot be 0"),
        ({"gap_s": -1.0}, "gap_s cannot be"),
        ({"context": 100, "tokens_in": 200}, "200 new tokens does not fit"),
        ({"context": 131_072}, "more than the model's 131072"),
    ],
)
def test_a_load_that_makes_no_sense(changes: dict[str, float], reason: str):
    with pytest.raises(ConfigError, match=reason):
        estimate(LLAMA, H200, Load(**changes))


def test_gpus_are_found_however_they_are_written():
    assert find_gpu("RTX 4090") is find_gpu("rtx4090") is GPUS["rtx4090"]
    with pytest.raises(ConfigError, match="there is no GPU 'h300'"):
        find_gpu("h300")


def test_the_table_of_the_manual_is_the_one_that_is_used():
    for gpu in GPUS.values():
        fp8 = "" if gpu.fp8_flop_s is None else f"{gpu.fp8_flop_s / 1e12:,.0f}"
        figures = f"{gpu.memory_bytes / GIB:g} | {gpu.bytes_s / 1e9:,.0f} | {gpu.flop_s / 1e12:,.0f} | {fp8} "
        assert f"| {gpu.name} | {figures}| {gpu.link_bytes_s / 1e9:.0f} | {gpu.price_hour:.2f} |" in PAGE
