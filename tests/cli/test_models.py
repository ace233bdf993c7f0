"""`hotloop pull | models | rm` and `hotloop serve MODEL`, from the outside, with a hub on loopback."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.cli.test_main import hotloop
from tests.models.fake_hub import COMMIT, FakeHub
from tests.models.tiny import tiny_spec, tiny_weights, write_folder, write_gguf

from hotloop.bench.serving import ChildServer
from hotloop.cli.main import run
from hotloop.models.model import pull

SPEC = tiny_spec("qwen2", num_layers=1)
TINY = "org/tiny-qwen"


@pytest.fixture
def server(home_for_processes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """What child processes take for the hub; its one model is gated."""
    folder = write_folder(tmp_path / "made", SPEC, tiny_weights(SPEC))
    fake = FakeHub(gated={TINY})
    fake.add(TINY, {path.name: path.read_bytes() for path in folder.iterdir()})
    with fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", "secret")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield fake


@pytest.mark.long
def test_pull_list_show_and_remove(server: FakeHub):
    pulled = hotloop("pull", TINY, "--json")
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stderr.startswith(f"pulling {TINY}, ")
    assert pulled.stderr.count("\n") == 1
    assert json.loads(pulled.stdout)["commit"] == COMMIT
    listed = json.loads(hotloop("models", "--json").stdout)
    assert [(entry["name"], entry["is_pulled"]) for entry in listed] == [("smollm2-135m", False), (TINY, True)]
    shown = json.loads(hotloop("models", "show", TINY, "--json", HF_HUB_OFFLINE="1").stdout)
    assert (shown["name"], shown["family"], shown["precision"]) == (TINY, "qwen2", {"F32": 1.0})
    assert (shown["max_context"], shown["tool_format"], shown["has_chat_template"]) == (512, "generic", True)
    removed = json.loads(hotloop("rm", TINY, "--json").stdout)
    assert removed["freed_bytes"] > shown["size_bytes"] * 0.9
    assert len(json.loads(hotloop("models", "--json").stdout)) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"HF_TOKEN": "wrong"}, f"{TINY} is gated: accept its terms"),
        ({"HF_HUB_OFFLINE": "1"}, f"{TINY} is not in "),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, f"{TINY} could not be downloaded from "),
    ],
)
def test_what_goes_wrong_is_one_line(server: FakeHub, environ: dict[str, str], line: str):
    result = hotloop("pull", TINY, **environ)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"hotloop: {line}")
    assert result.stderr.count("\n") == 1


@pytest.mark.long
def test_an_interrupt_ends_a_pull_that_stands_still_and_the_next_goes_on(server: FakeHub, tmp_path: Path):
    server.stalls.add("model.safetensors")
    size = len(server.repos[f"{TINY}@{COMMIT}"]["model.safetensors"])
    half = size // 2
    with subprocess.Popen(
        [sys.executable, "-m", "hotloop", "pull", TINY], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert server.has_stalled.wait(60)
            while half not in [path.stat().st_size for path in (tmp_path / "hf").rglob("*.incomplete")]:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, errors.count("\n")) == (130, 1)
    server.stalls.clear()
    assert hotloop("pull", TINY).returncode == 0
    assert server.sent_bytes["model.safetensors"] == size - half


@pytest.mark.long
def test_serve_takes_the_model_as_its_argument_and_pulls_it(server: FakeHub):
    with ChildServer((TINY,)) as child:
        assert httpx.get(f"{child.url}/v1/models", verify=False).json()["data"][0]["id"] == TINY
        body = {"model": TINY, "prompt": "The quick", "max_tokens": 2}
        assert httpx.post(f"{child.url}/v1/completions", verify=False, json=body, timeout=60).status_code == 200


@pytest.mark.long
def test_without_the_extra_a_line_says_what_to_install(empty_home: Path, tmp_path: Path):
    code = "import sys; sys.modules['huggingface_hub'] = None; from hotloop.cli.main import main; main()"
    command = [sys.executable, "-c", code]
    result = subprocess.run([*command, "pull", "org/name"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "hotloop: models from a hub need the extra `hub`: pip install 'hotloop[hub]'\n"
    path = write_gguf(tmp_path / "mine.gguf", SPEC, tiny_weights(SPEC))
    result = subprocess.run([*command, "pull", str(path)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_show_says_what_was_recognised(empty_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    template = '{% for t in tools %}{{ t }}{% endfor %}<tool_call>\n{"name": x, "arguments": y}'
    path = write_gguf(tmp_path / "m.gguf", SPEC, tiny_weights(SPEC), {"tokenizer.chat_template": template})
    pull(str(path))
    assert run(["models", "show", "m"]) == 0
    shown = capsys.readouterr().out
    for words in ("qwen2", "F32 100%", "512 tokens", "hermes (a chat template)", str(path)):
        assert words in shown


def test_recommend_names_what_fits(capsys: pytest.CaptureFixture[str]):
    assert run(["models", "recommend", "--gpu", "h200", "--json"]) == 0
    choices = json.loads(capsys.readouterr().out)
    assert [choice["model"] for choice in choices if choice["is_best"]] == [choices[-1]["model"]]
    assert run(["models", "recommend", "--gpu", "h200"]) == 0
    shown = capsys.readouterr().out
    assert f"> {choices[-1]['model']}" in shown
    assert choices[-1]["command"] in shown
    assert run(["models", "recommend", "--gpu", "h200", "--min-speed", "1e6"]) == 0
    assert "no model reaches 1e+06 tokens/s" in capsys.readouterr().out
    assert run(["models", "recommend", "--gpu", "l4", "--sessions", "10000"]) == 0
    assert "no recommended model fits" in capsys.readouterr().out
    assert run(["models", "recommend", "--gpu", "abacus"]) == 2
