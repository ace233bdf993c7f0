"""`hotloop size`."""

import json
from pathlib import Path

import pytest
from tests.models.int4 import Recipe
from tests.models.tiny import spec_config, tiny_spec, tiny_weights, write_gguf, write_json

from hotloop.cli.main import run
from hotloop.size.hardware import GPUS
from hotloop.size.shapes import SHAPES

TURN = ["--sessions", "64", "--context", "8192", "--tokens-in", "512", "--tokens-out", "128", "--gap-s", "2"]


def test_all_gpus_in_one_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["size", "llama-3.1-8b", *TURN]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "llama-3.1-8b: weights bf16 15.0 GiB, KV bf16 1.0 GiB per session"
    for gpu in GPUS.values():
        assert sum(gpu.name in line.split()[:4] or f"{gpu.name}*" in line.split()[:4] for line in lines) == 1
    assert len([line for line in lines if line.startswith("> ")]) == 2  # the GPU, and what the mark means


def test_one_gpu_in_full(capsys: pytest.CaptureFixture[str]):
    assert run(["size", "--gpu", "H200", *TURN, "--price", "7.2"]) == 0
    out = capsys.readouterr().out
    for part in ("107 on the device", "from host memory", "TTFT, cold prompt", "turns/s", "$0.145"):
        assert part in out
    assert run(["size", "llama-3.1-70b", "--gpu", "t4"]) == 0
    assert "no: not even one session" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]):
    assert run(["size", "qwen2.5-32b", "--weights", "fp8", "--kv", "fp8", "--gpus", "4", *TURN, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["load"]["kv"]) == ("qwen2.5-32b", "fp8")
    assert [each["hardware"]["num_gpus"] for each in found["hardware"]] == [4] * len(GPUS)
    assert [each["is_cheapest"] for each in found["hardware"]].count(True) == 1
    assert found["hardware"][0]["memory"].keys() >= {"weights_bytes", "kv_bytes", "session_bytes", "num_device"}
    assert found["hardware"][-1]["latency"]["tokens_s_all"] > 0


def test_a_file_and_a_shape_by_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    spec = tiny_spec("llama")
    path = write_gguf(tmp_path / "tiny.gguf", spec, tiny_weights(spec))
    argv = ["--gpu", "l4", "--context", "64", "--tokens-in", "8", "--tokens-out", "8", "--host-memory", "0", "--json"]
    sizes = []
    for more in ([], ["--num-layers", "4"]):
        assert run(["size", str(path), *argv, *more]) == 0
        room = json.loads(capsys.readouterr().out)["hardware"][0]["memory"]
        assert room["num_host"] == 0
        sizes.append(room["session_bytes"])
    assert sizes[1] == 2 * sizes[0] == 2 * 72 * 2 * 2 * 2 * 16 * 2


def test_a_checkpoint_in_four_bits_is_counted_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "m"
    folder.mkdir()
    shape = SHAPES["llama-3.1-8b"]
    write_json(folder / "config.json", spec_config(shape) | {"quantization_config": Recipe("awq", 128).config()})
    found = []
    for argv in ([str(folder)], ["llama-3.1-8b", "--weights", "int4"]):
        assert run(["size", *argv, "--gpu", "h200", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    num_weights = 32 * (4096 * (6144 + 4096) + 3 * 4096 * 14336)
    bytes_of_layers = num_weights // 2 + num_weights // 128 * 4
    for each in found:
        assert each["load"]["weights"] == "int4"
        size = each["hardware"][0]["memory"]["weights_bytes"]
        assert size == bytes_of_layers + 2 * 2 * 128_256 * 4096 + 4 * 65 * 4096


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--gpu", "h300"], "there is no GPU 'h300'"),
        (["--sessions", "0"], "sessions cannot be 0"),
        (["--gpu", "h200", "--gpus", "3"], "cannot be split over 3 GPUs"),
        (["--host-memory", "lots"], "not a size"),
    ],
)
def test_a_wrong_question_is_one_line(argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]):
    assert run(["size", *argv]) == 2
    assert reason in capsys.readouterr().err
