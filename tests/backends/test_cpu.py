"""Which CPU backend is opened, and why."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.backends.batches import batch
from tests.backends.reference import reference_logits
from tests.backends.test_native_backend import assert_rows_alike
from tests.backends.test_openvino import make_prompt, tiny_model

from hotloop.backends import cpu
from hotloop.backends.build import compiler
from hotloop.backends.cpu import describe_cpu, open_cpu, why_not_native
from hotloop.backends.native.backend import NativeBackend
from hotloop.core.config import EngineConfig, Precision, WeightFormat
from hotloop.models.model import Model

CONFIG = EngineConfig(kv_memory="8MiB")


@pytest.fixture
def model() -> Model:
    return tiny_model("llama", head_dim=64)


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch, empty_home: Path) -> None:
    """A CPU with AMX; the decoder emulates it where there is none."""
    monkeypatch.setattr(cpu, "has_amx", lambda: True)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("weight_format", ["int8", "bf16"])
def test_the_native_decoder_is_opened_where_there_is_amx(amx: None, model: Model, weight_format: WeightFormat) -> None:
    backend = open_cpu(model, CONFIG, weight_format=weight_format)
    assert isinstance(backend, NativeBackend)
    prompt = make_prompt(model, 40)
    want = reference_logits(model.spec, model.weights, prompt)
    assert_rows_alike(backend.run(batch((prompt, 0, [1, 0]))), want, 0.1)
    backend.close()
    assert describe_cpu(model.spec, CONFIG, weight_format, "fast") == "by the native decoder, with AMX"


@pytest.mark.parametrize(
    ("precision", "weight_format", "config", "reason"),
    [
        ("exact", "int8", CONFIG, "precision is exact"),
        ("fast", "int4", CONFIG, "weights are int4"),
        ("fast", "int8", replace(CONFIG, kv_precision="f16"), "kv_precision is f16"),
    ],
)
def test_settings_may_leave_it_to_openvino(
    amx: None, model: Model, precision: Precision, weight_format: WeightFormat, config: EngineConfig, reason: str
) -> None:
    assert describe_cpu(model.spec, config, weight_format, precision) == f"by OpenVINO: {reason}"
    backend = open_cpu(model, config, weight_format=weight_format, precision=precision)
    assert not isinstance(backend, NativeBackend)
    backend.close()


def test_models_that_it_does_not_know_are_left_to_openvino(amx: None, model: Model) -> None:
    def reason(**changes: object) -> str | None:
        return why_not_native(replace(model.spec, **changes), CONFIG, "int8", "fast")  # type: ignore[arg-type]

    assert reason(windows=(8, None)) == "the model has sliding windows"
    assert reason(has_sinks=True) == "the model has attention sinks"
    assert reason(head_dim=80) == "heads have 80 dimensions"
    assert why_not_native(tiny_model("qwen3moe").spec, CONFIG, "int8", "fast") == "the model has experts"


def test_a_library_that_cannot_be_built_is_told(amx: None, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("no compiler")

    monkeypatch.setattr(cpu, "load_kernel", fail)
    assert describe_cpu(model.spec, CONFIG, "int8", "fast") == "by OpenVINO: it could not be built: no compiler"


def test_without_amx_that_is_the_reason(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has_amx", lambda: False)
    assert describe_cpu(model.spec, CONFIG, "int8", "fast") == "by OpenVINO: this CPU has no AMX"


def test_what_a_model_takes_is_said_before_it_is_taken(
    model: Model, empty_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "hotloop.backends"):
        open_cpu(model, CONFIG).close()
    assert "takes weights 0.0 GiB + KV 0.0 GiB + working memory 0." in caplog.text
