"""Which CPU backend is opened, and why."""

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from tests.backends.batches import batch
from tests.backends.cpu.test_native_backend import assert_rows_alike
from tests.backends.cpu.test_openvino import make_prompt, tiny_model
from tests.backends.reference import reference_logits
from tests.models.tiny import QuantisedWeights

from hotloop.backends.backend import Backend
from hotloop.backends.cpu import opening
from hotloop.backends.cpu.attention import Kernel
from hotloop.backends.cpu.build import compiler
from hotloop.backends.cpu.decoder import NativeBackend, strips_bytes
from hotloop.backends.cpu.library import KvType, load_kernel
from hotloop.backends.cpu.opening import describe_cpu, open_cpu, why_not_native
from hotloop.core.config import EngineConfig, KvPrecision, Precision, WeightFormat, parse_bytes
from hotloop.core.errors import ConfigError
from hotloop.models.layout import tensor_places
from hotloop.models.model import Model

CONFIG = EngineConfig(kv_memory="8MiB")
NATIVE = replace(CONFIG, cpu_backend="native")


@pytest.fixture
def model() -> Model:
    return tiny_model("llama", head_dim=64)


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch, tiles: dict[KvType, Kernel | None], empty_home: Path) -> None:
    """A CPU with AMX, which is emulated where there is none."""
    monkeypatch.setattr(opening, "has_amx", lambda: True)
    monkeypatch.setattr(opening, "load_kernel", lambda kv_type: tiles.get(kv_type) or load_kernel(kv_type))


def check_native(backend: Backend, model: Model) -> None:
    assert isinstance(backend, NativeBackend)
    prompt = make_prompt(model, 40)
    want = reference_logits(model.spec, model.weights, prompt)
    assert_rows_alike(backend.run(batch((prompt, 0, [1, 0]))), want, 0.1)
    backend.close()


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("weight_format", ["auto", "int8", "bf16"])
def test_the_native_decoder_is_opened_where_there_is_amx(amx: None, model: Model, weight_format: WeightFormat) -> None:
    backend = open_cpu(model, CONFIG, weight_format=weight_format)
    check_native(backend, model)
    who = f"by the native decoder, with AMX, with weights in {'bf16' if weight_format == 'bf16' else 'int8'}"
    assert describe_cpu(model, CONFIG, weight_format, "fast") == who


def test_where_it_is_insisted_on_and_cannot_be_had_the_reason_is_told(amx: None, model: Model) -> None:
    with pytest.raises(ConfigError, match="cpu_backend native is not supported: precision is exact"):
        open_cpu(model, NATIVE, precision="exact")


@pytest.mark.parametrize(
    ("precision", "weight_format", "config", "reason"),
    [
        ("exact", "int8", CONFIG, "precision is exact"),
        ("fast", "int4", CONFIG, "weights are int4"),
        ("fast", "int8", replace(CONFIG, cpu_backend="openvino"), "cpu_backend is openvino"),
    ],
)
def test_settings_may_leave_it_to_openvino(
    amx: None, model: Model, precision: Precision, weight_format: WeightFormat, config: EngineConfig, reason: str
) -> None:
    assert describe_cpu(model, config, weight_format, precision) == f"by OpenVINO: {reason}"
    backend = open_cpu(model, config, weight_format=weight_format, precision=precision)
    assert not isinstance(backend, NativeBackend)
    backend.close()


def test_models_that_it_does_not_know_are_left_to_openvino(amx: None, model: Model) -> None:
    def reason(**changes: object) -> str | None:
        changed = replace(model.spec, **changes)  # type: ignore[arg-type]
        return why_not_native(replace(model, spec=changed), CONFIG, "int8", "fast")

    assert reason(windows=(8, None)) == "the model has sliding windows"
    assert reason(has_sinks=True) == "the model has attention sinks"
    assert why_not_native(tiny_model("qwen3moe"), CONFIG, "int8", "fast") == "the model has experts"


def test_a_library_that_cannot_be_built_is_told(amx: None, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kv_type: str) -> None:
        raise OSError("no compiler")

    monkeypatch.setattr(opening, "load_kernel", fail)
    assert describe_cpu(model, NATIVE, "int8", "fast") == "by OpenVINO: it could not be built: no compiler"


def test_without_amx_that_is_the_reason(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "has_amx", lambda: False)
    assert describe_cpu(model, CONFIG, "int8", "fast").startswith("by OpenVINO: this CPU has no AMX, without which")


@pytest.mark.parametrize(
    ("machine", "features", "has_them"),
    [
        ("x86_64", {"avx2", "f16c", "fma"}, True),
        ("x86_64", {"avx", "f16c"}, False),
        ("aarch64", {"asimddp"}, True),
        ("aarch64", {"asimd"}, False),
        ("riscv64", {"avx2", "f16c", "fma", "asimddp"}, False),
    ],
)
def test_products_of_bytes_are_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, machine: str, features: set[str], has_them: bool
) -> None:
    monkeypatch.setattr(opening.platform, "machine", lambda: machine)
    monkeypatch.setattr(opening, "cpu_features", lambda: frozenset(features))
    assert opening.has_dot_products() is has_them


def test_what_a_model_takes_is_said_before_it_is_taken(
    model: Model, empty_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "hotloop.backends"):
        open_cpu(model, CONFIG).close()
    assert "takes weights 0.0 GiB + KV 0.0 GiB + working memory 0." in caplog.text


@pytest.fixture
def gguf_model(model: Model, empty_home: Path) -> Model:
    return replace(model, weights=QuantisedWeights(model.spec, model.weights))


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("kv_precision", ["f16", "int8"])
def test_keys_and_values_may_be_in_another_precision(amx: None, model: Model, kv_precision: KvPrecision) -> None:
    check_native(open_cpu(model, replace(CONFIG, kv_precision=kv_precision)), model)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
def test_heads_that_make_no_tiles_have_the_portable_attention(amx: None) -> None:
    model = tiny_model("llama", head_dim=32)
    check_native(open_cpu(model, CONFIG), model)
    reason = why_not_native(model, replace(CONFIG, kv_precision="bf16"), "auto", "fast")
    assert reason == "kv_precision bf16 needs AMX and heads of 64, 96 or 128 dimensions"


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("has_amx", "weight_format"), [(True, "stored"), (False, "stored"), (False, "auto")])
def test_a_quantised_file_is_computed_with_as_it_is(
    gguf_model: Model,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    has_amx: bool,
    weight_format: WeightFormat,
) -> None:
    if has_amx:
        request.getfixturevalue("amx")
    else:
        monkeypatch.setattr(opening, "has_amx", lambda: False)
    monkeypatch.setattr(opening, "has_dot_products", lambda: not has_amx)
    backend = open_cpu(gguf_model, CONFIG, weight_format=weight_format)
    check_native(backend, gguf_model)
    who = f"by the native decoder, {'with' if has_amx else 'without'} AMX, with weights as the file has them"
    assert describe_cpu(gguf_model, CONFIG, weight_format, "fast") == who


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
def test_with_amx_a_quantised_file_is_held_in_int8(
    amx: None, gguf_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is asked to stay as it is, which is the advice where memory is short."""
    check_native(open_cpu(gguf_model, CONFIG), gguf_model)
    assert describe_cpu(gguf_model, CONFIG, "auto", "fast") == "by the native decoder, with AMX, with weights in int8"
    with_codes = (
        strips_bytes(gguf_model) + parse_bytes(CONFIG.kv_memory) + opening._working_bytes(gguf_model.spec, CONFIG)
    )
    monkeypatch.setattr(opening, "available_bytes", lambda: with_codes)
    with pytest.raises(ConfigError, match="--weights stored would fit"):
        open_cpu(gguf_model, CONFIG)
    check_native(open_cpu(gguf_model, CONFIG, weight_format="stored"), gguf_model)


def test_what_is_not_asked_to_stay_as_it_is_or_cannot_does_not(
    gguf_model: Model, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "has_amx", lambda: False)
    monkeypatch.setattr(opening, "has_dot_products", lambda: True)
    assert str(why_not_native(gguf_model, CONFIG, "int8", "fast")).startswith("this CPU has no AMX, without which")
    assert str(why_not_native(model, CONFIG, "auto", "fast")).startswith("this CPU has no AMX, without which")
    assert why_not_native(gguf_model, CONFIG, "auto", "exact") == "precision is exact"
    monkeypatch.setattr(opening, "has_dot_products", lambda: False)
    assert str(why_not_native(gguf_model, CONFIG, "auto", "fast")).startswith(
        "this CPU has no int8 dot-product instructions"
    )


def test_stored_is_refused_where_it_cannot_be_had(gguf_model: Model, model: Model, amx: None) -> None:
    with pytest.raises(ConfigError, match="is not supported: precision is exact"):
        open_cpu(gguf_model, CONFIG, weight_format="stored", precision="exact")
    with pytest.raises(ConfigError, match="is not supported: the model's matrices are not quantised"):
        open_cpu(model, CONFIG, weight_format="stored")


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_codes_take_what_they_are_held_as(is_tied: bool) -> None:
    """And nothing of the embedding, which stays in its file, unless it is the head as well."""
    model = tiny_model("llama", has_tied_head=is_tied)
    model = replace(model, weights=QuantisedWeights(model.spec, model.weights))
    shapes = [place.shape for place in tensor_places(model.spec) if place.name != "embed" or is_tied]
    matrices, vectors = ([shape for shape in shapes if len(shape) == num_axes] for num_axes in (2, 1))
    count, num_outputs = sum(map(prod, matrices)), sum(shape[0] for shape in matrices)
    assert strips_bytes(model) == count * 9 // 16
    assert opening._held_bytes(model, "int8", "fast", "native") == count + 2 * num_outputs + 4 * sum(map(prod, vectors))
