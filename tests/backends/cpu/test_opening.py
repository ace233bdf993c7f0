"""How models are held and computed, by what the CPU has and what is asked for, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.backends.batches import batch
from tests.backends.cpu.models import make_prompt, quantised_model, tiny_model
from tests.backends.cpu.test_decoder import assert_rows_alike
from tests.backends.reference import reference_logits

from hotloop.backends.backend import Backend
from hotloop.backends.cpu import opening
from hotloop.backends.cpu.attention import Kernel
from hotloop.backends.cpu.build import compiler
from hotloop.backends.cpu.decoder import Holding, NativeBackend, choose_holding, held_bytes
from hotloop.backends.cpu.library import KvType, load_kernel
from hotloop.backends.cpu.opening import describe_cpu, open_cpu
from hotloop.core.config import EngineConfig, KvPrecision, Precision, WeightFormat, parse_bytes
from hotloop.core.errors import ConfigError
from hotloop.models.model import Model

CONFIG = EngineConfig(kv_memory="8MiB")
needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture
def model() -> Model:
    return tiny_model("llama", head_dim=64)


@pytest.fixture
def gguf_model(model: Model, empty_home: Path) -> Model:
    return quantised_model(model)


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch, tiles: dict[KvType, Kernel | None], empty_home: Path) -> None:
    """A CPU with AMX, which is emulated where there is none."""
    monkeypatch.setattr(opening, "has_amx", lambda: True)
    monkeypatch.setattr("hotloop.backends.cpu.decoder.has_amx", lambda: True)
    monkeypatch.setattr(opening, "load_kernel", lambda kv_type: tiles.get(kv_type) or load_kernel(kv_type))


@pytest.fixture
def no_amx(monkeypatch: pytest.MonkeyPatch, empty_home: Path) -> Iterator[None]:
    monkeypatch.setattr(opening, "has_amx", lambda: False)
    monkeypatch.setattr("hotloop.backends.cpu.decoder.has_amx", lambda: False)
    return


def check_native(backend: Backend, model: Model) -> None:
    assert isinstance(backend, NativeBackend)
    prompt = make_prompt(model, 40)
    want = reference_logits(model.spec, model.weights, prompt)
    assert_rows_alike(backend.run(batch((prompt, 0, [1, 0]))), want, 0.1)
    backend.close()


HELD: list[tuple[bool, bool, WeightFormat, Precision, Holding]] = [
    (True, False, "auto", "fast", Holding("int8")),
    (True, False, "int8", "fast", Holding("int8")),
    (True, False, "bf16", "fast", Holding("bf16")),
    (True, True, "stored", "fast", Holding("packed_ggml")),
    (True, True, "auto", "fast", Holding("int8")),
    (False, False, "auto", "fast", Holding("packed_ggml")),
    (False, True, "auto", "fast", Holding("packed_ggml")),
    (False, False, "int4", "fast", Holding("packed_ggml", is_narrow=True)),
    (False, False, "bf16", "fast", Holding("bf16", in_floats=True)),
    (False, False, "f32", "fast", Holding("f32", in_floats=True)),
    (True, False, "bf16", "exact", Holding("bf16", in_floats=True)),
    (True, False, "auto", "exact", Holding(None, in_floats=True)),
    (False, False, "int8", "exact", Holding("packed_ggml", in_floats=True)),
]


@pytest.mark.parametrize(("has_amx", "is_quantised", "weights", "precision", "holding"), HELD)
def test_how_weights_are_held(
    model: Model, has_amx: bool, is_quantised: bool, weights: WeightFormat, precision: Precision, holding: Holding
) -> None:
    model = quantised_model(model) if is_quantised else model
    assert choose_holding(weights, precision, amx=has_amx) == holding


@needs_compiler
@pytest.mark.parametrize("weight_format", ["auto", "int8", "bf16"])
def test_with_amx_weights_are_tiles(amx: None, model: Model, weight_format: WeightFormat) -> None:
    check_native(open_cpu(model, CONFIG, weight_format=weight_format), model)
    held = "bf16" if weight_format == "bf16" else "int8"
    assert describe_cpu(model, weight_format, "fast") == f"by the native decoder, with AMX, with weights in {held}"


@needs_compiler
def test_a_quantised_file_is_computed_with_as_it_is(no_amx: None, gguf_model: Model) -> None:
    check_native(open_cpu(gguf_model, CONFIG), gguf_model)
    assert "without AMX, with weights as the file has them" in describe_cpu(gguf_model, "auto", "fast")
    assert "with weights as the file has them, in float32" in describe_cpu(gguf_model, "auto", "exact")


@needs_compiler
@pytest.mark.parametrize("weight_format", ["auto", "int8", "bf16", "f32"])
def test_weights_that_are_not_quantised_need_no_amx(no_amx: None, model: Model, weight_format: WeightFormat) -> None:
    check_native(open_cpu(model, CONFIG, weight_format=weight_format), model)
    held = "int8" if weight_format == "auto" else weight_format
    assert f"without AMX, with weights in {held}" in describe_cpu(model, weight_format, "fast")


@needs_compiler
def test_with_amx_a_quantised_file_is_held_in_int8(
    amx: None, gguf_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is asked to stay as it is, which is the advice where memory is short."""
    check_native(open_cpu(gguf_model, CONFIG), gguf_model)
    working_bytes = opening._working_bytes(gguf_model.spec, CONFIG)
    stored = held_bytes(gguf_model, choose_holding("stored", "fast"))
    monkeypatch.setattr(opening, "available_bytes", lambda: stored + parse_bytes(CONFIG.kv_memory) + working_bytes)
    with pytest.raises(ConfigError, match="--weights int4 would fit"):
        open_cpu(gguf_model, CONFIG)
    check_native(open_cpu(gguf_model, CONFIG, weight_format="stored"), gguf_model)


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_codes_take_what_they_are_held_as(is_tied: bool) -> None:
    """And nothing of the embedding, which stays in its file, unless it is the head as well."""
    model = quantised_model(tiny_model("llama", has_tied_head=is_tied))
    spec, head = model.spec, model.spec.vocab_size * model.spec.hidden_size
    norms = 4 * spec.hidden_size * (2 * spec.num_layers + 1)
    in_codes, in_bytes = (held_bytes(model, Holding(form)) - norms for form in ("packed_ggml", "int8"))
    assert in_codes * 8 / 4.5 == pytest.approx(in_bytes)
    assert in_bytes > head


def test_a_library_that_cannot_be_built_is_told(no_amx: None, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kv_type: str) -> None:
        raise OSError("no compiler")

    monkeypatch.setattr(opening, "load_kernel", fail)
    with pytest.raises(ConfigError, match="cannot be compiled here, and was not shipped: no compiler; install a C"):
        open_cpu(model, CONFIG)


@pytest.mark.parametrize(
    ("machine", "features", "is_slow"),
    [
        ("x86_64", {"avx2", "f16c", "fma"}, False),
        ("x86_64", {"avx", "f16c"}, True),
        ("aarch64", {"asimddp"}, False),
        ("aarch64", {"asimd"}, True),
    ],
)
def test_a_cpu_without_products_of_bytes_is_told_so(
    model: Model, monkeypatch: pytest.MonkeyPatch, machine: str, features: set[str], is_slow: bool
) -> None:
    monkeypatch.setattr(opening.platform, "machine", lambda: machine)
    monkeypatch.setattr(opening, "cpu_features", lambda: frozenset(features))
    assert ("slowly" in describe_cpu(model, "auto", "fast")) is is_slow


def test_what_a_model_takes_is_said_before_it_is_taken(
    model: Model, empty_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "hotloop.backends"):
        open_cpu(model, CONFIG).close()
    assert "takes weights 0.0 GiB + KV 0.0 GiB + working memory 0." in caplog.text


@needs_compiler
@pytest.mark.parametrize("kv_precision", ["f16", "int8"])
def test_keys_and_values_may_be_in_another_precision(amx: None, model: Model, kv_precision: KvPrecision) -> None:
    check_native(open_cpu(model, replace(CONFIG, kv_precision=kv_precision)), model)


@needs_compiler
def test_heads_that_make_no_tiles_have_the_other_attention(amx: None) -> None:
    model = tiny_model("llama", head_dim=32)
    check_native(open_cpu(model, CONFIG), model)
    with pytest.raises(ConfigError, match="kv_precision bf16 is not supported: it needs AMX"):
        open_cpu(model, replace(CONFIG, kv_precision="bf16"))


def test_stored_is_refused_where_it_cannot_be_had(model: Model) -> None:
    with pytest.raises(ConfigError, match="weights stored is not supported: the matrices are not quantised"):
        open_cpu(model, CONFIG, weight_format="stored")
