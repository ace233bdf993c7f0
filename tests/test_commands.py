"""Every command of README and docs runs here as it stands, is run by the test named here, or is listed with the reason.

That list is in docs/contributing.md. Addresses, ports and names of runs are those of the servers and runs of the test.
"""

import gzip
import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.agent.predict.talks import clerk
from tests.bench.fake_server import FakeServer
from tests.cli.trace.spans import OLD, Trace, fill
from tests.http.test_tls import write_certificate
from tests.models.fake_hub import FakeHub
from tests.models.tiny import tiny_spec, tiny_weights, write_folder, write_gguf, write_smallest
from tests.server.calls import write_call
from tests.server.serving import Serving
from tests.test_house import pages, shell_lines
from tests.test_tutorials import LIMIT_S, blocks, environment, run
from tests.vllm_server import VllmServer

from hotloop.agent.predict.predictor import Predictor, save_predictor
from hotloop.cli.main import run as main
from hotloop.trace import names
from hotloop.trace.span import Span

ROOT = Path(__file__).parents[1]
LIST = ROOT / "docs" / "contributing.md"
SPEC = tiny_spec("qwen2", num_layers=1)

BY_OTHERS = {
    ".ci/run": ("make check", "make test", "make test-long"),
    "tests/test_docs.py": ("hotloop lint examples/clock.requests.jsonl",),
    "tests/cli/test_light.py": ("hotloop serve",),
    "tests/test_commands.py": ('hotloop run weather.py "Is it warmer in Paris or in Rome?"',),
    "tests/test_tutorials.py": ("python weather.py", "hotloop trace show last"),
}
"""Those of the default address, without a file of their own or with what the test's own setting brings."""

ENDING = {
    "hotloop batch questions.jsonl --url http://127.0.0.1:8700": 0,
    "hotloop bench replay --url http://127.0.0.1:8700": 0,
    "hotloop bench replay --url http://127.0.0.1:8700 --compare http://127.0.0.1:8000 --rounds 2": 0,
    "hotloop bench replay --url http://127.0.0.1:8700 --data runs.jsonl.gz --agents 4 --jobs 8": 0,
    "hotloop check --baseline main.requests.jsonl --against branch.requests.jsonl": 1,
    "hotloop check --baseline main.requests.jsonl --against http://127.0.0.1:8000 --tolerance 0.05": 1,
    "hotloop doctor": 1,
    "hotloop doctor http://127.0.0.1:8000": 1,
    'hotloop doctor https://gateway.example --model large --api-key "$KEY" --json': 1,
    "hotloop lint --list": 0,
    "hotloop lint --run last": 0,
    "hotloop lint agent.requests.jsonl": 1,
    "hotloop lint agent.requests.jsonl --fix --out fixed.jsonl": 0,
    "hotloop models": 0,
    "hotloop models recommend": 0,
    "hotloop predict show speculation.json": 0,
    "hotloop size ./Qwen3-32B --gpu h200 --gpus 2 --weights fp8 --kv fp8": 0,
    "hotloop size llama-3.1-8b --num-layers 48 --hidden-size 5120": 0,
    "hotloop size llama-3.1-8b --sessions 64 --context 8192 --tokens-in 512 --tokens-out 128 --gap-s 2": 0,
    "hotloop trace diff 4f3a 91c0": 0,
    "hotloop trace export last --format perfetto --output run.json": 0,
    "hotloop trace export last --format traffic --output traffic.jsonl": 0,
    "hotloop trace export last --format transcript --output said.jsonl": 0,
    "hotloop trace export last --output run.jsonl": 0,
    "hotloop trace import run.jsonl": 0,
    "hotloop trace ls --since 2h": 0,
    "hotloop trace show 4f3a --turns 3-7": 0,
}
"""Beside each its exit status."""

OF_A_HUB = (
    "hotloop pull Qwen/Qwen3-4B@main",
    "hotloop models show Qwen/Qwen3-4B",
    "hotloop rm Qwen/Qwen3-4B",
    "hotloop pull unsloth/Qwen3-4B-GGUF:Q4_K_M",
)
"""In this order."""
SERVED_FROM_A_HUB = "hotloop serve Qwen/Qwen3-4B-Instruct-2507"

OF_THE_DEFAULT_MODEL = (
    "hotloop models show smollm2-135m",
    "hotloop lint runs.jsonl.gz --tokenizer default --format json",
    "hotloop size smollm2-135m --gpu this --weights int8 --sessions 4 --context 2048 --json",
)

SERVING = (
    "hotloop lint --proxy http://127.0.0.1:8000 --port 8720",
    "hotloop lint --proxy https://api.openai.com --port 8720",
    "hotloop route --host 0.0.0.0 --tls-cert fullchain.pem --tls-key key.pem --api-key-file keys --replica https://gpu-1:8700",
    "hotloop route --replica http://127.0.0.1:8000 --replica http://127.0.0.1:8001",
    "hotloop route --replica http://127.0.0.1:8701 --replica http://127.0.0.1:8702",
    "hotloop serve --host 0.0.0.0 --tls-cert fullchain.pem --tls-key key.pem --api-key-file keys",
    "hotloop serve --port 8701",
    "hotloop serve --port 8701 --kv-peers http://127.0.0.1:8702",
    "hotloop serve --port 8702",
    "hotloop serve --port 8702 --kv-peers http://127.0.0.1:8701",
    "hotloop serve-agent weather.py --port 8760",
    "hotloop trace open last",
)
"""Until they are told to stop, which they have to do cleanly. The model is a tiny one."""

SAMPLE = [line for line in SERVING if line.startswith("hotloop serve --host")]
"""Those of them in `make test`: each is a process."""


def commands() -> set[str]:
    """As they stand on the pages: lines of shell blocks, and what follows a `$` where output is shown."""
    found = {re.sub(r"(^|\s+)#.*", "", line) for page in pages() for line in shell_lines(page)}
    for page in pages():
        if page.name != "cli.md":
            found |= {*re.findall(r"^\$ (hotloop .+)$", page.read_text("utf-8"), re.MULTILINE)}
    return {line for line in found if line and not line.startswith("export ")}


def reasons() -> dict[str, str]:
    """Why commands that begin so are not run."""
    table = LIST.read_text("utf-8").partition("\n## Commands that CI does not run\n")[2].partition("\n## ")[0]
    return {
        begin: why
        for cell, why in re.findall(r"^\| (`.+`) \| (.+) \|$", table, re.MULTILINE)
        for begin in re.findall(r"`([^`]+)`", cell)
    }


def test_every_command_is_run_or_listed_with_the_reason() -> None:
    run_here = {*ENDING, *OF_A_HUB, SERVED_FROM_A_HUB, *OF_THE_DEFAULT_MODEL, *SERVING}
    run_elsewhere = {line for lines in BY_OTHERS.values() for line in lines}
    assert not run_here & run_elsewhere
    left = commands() - run_here - run_elsewhere
    listed = {begin: {line for line in left if line.startswith(begin)} for begin in reasons()}
    assert left == set().union(*listed.values()), "run it, or list it in docs/contributing.md"
    assert not [begin for begin, lines in listed.items() if not lines], "listed, and on no page"
    assert run_here | run_elsewhere <= commands(), "run, and on no page"
    assert all((ROOT / place).exists() for place in BY_OTHERS)


@pytest.fixture
def folder(tmp_path: Path, home_for_processes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands read: requests, transcripts, runs, an agent, a model's folder, a certificate, keys."""
    clock = ROOT / "examples" / "clock.requests.jsonl"
    for name in ("agent", "branch"):
        shutil.copy(clock, tmp_path / f"{name}.requests.jsonl")
    without = re.sub(r"\d\d:\d\d:\d\d\.", "noon.", clock.read_text("utf-8"))
    (tmp_path / "main.requests.jsonl").write_text(without)
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello to you."}]
    transcript = {"id": "a", "system": "Be kind.", "tools": [], "messages": messages}
    (tmp_path / "runs.jsonl.gz").write_bytes(gzip.compress(json.dumps(transcript).encode()))
    body = {"model": "fake", "messages": messages[:1]}
    question = {"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question))
    predictor = Predictor()
    predictor.learn(clerk(0))
    save_predictor(predictor, tmp_path / "speculation.json")
    (tmp_path / "weather.py").write_text(blocks("An agent", "python")[0])
    certificate = write_certificate(tmp_path, "hotloop")
    shutil.copy(certificate.cert, tmp_path / "fullchain.pem")
    (tmp_path / "keys").write_text("secret\n")
    shape = write_folder(tmp_path / "Qwen3-32B", SPEC, tiny_weights(SPEC)) / "config.json"
    shape.write_text(json.dumps(json.loads(shape.read_text()) | {"max_position_embeddings": 40960}))
    (tmp_path / "run.jsonl").touch()
    return tmp_path


SERVERS: dict[str, Callable[[], FakeServer]] = {
    "http://127.0.0.1:8700": FakeServer,
    "http://127.0.0.1:8000": VllmServer,
    "http://127.0.0.1:8001": VllmServer,
    "https://gateway.example": VllmServer,
    "https://api.openai.com": FakeServer,
}
"""What the pages have at these addresses."""


def argv_of(line: str, servers: ExitStack) -> list[str]:
    """With servers of its own in place of those that it names, and its arguments from here in place of ports."""
    if line.partition(" --")[0] == "hotloop doctor":
        line += " http://127.0.0.1:8700"  # where it looks if it is told nothing
    for address, serve in SERVERS.items():
        if address in line:
            line = line.replace(address, servers.enter_context(serve()).url)
    return shlex.split(re.sub(r"--port \d+", "--port 0", line).replace("0.0.0.0", "127.0.0.1"))


MORE = {"hotloop bench replay": "--turns 2 --gap 0", "hotloop doctor": "--idle 0"}
"""What makes a command shorter, by how it begins."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: the newest as an agent left it, with what was said; before it two whose ids the pages name."""
    folder = tmp_path_factory.mktemp("recorded")
    fill(folder / "trace.db", *map(long_run, ("4f3a", "91c0")))
    (folder / "weather.py").write_text(blocks("An agent", "python")[0])
    calls = "\n".join(write_call("weather", city=city) for city in ("Paris", "Rome"))
    with Serving(script=[calls, "In Rome."]) as server, pytest.MonkeyPatch.context() as settings:
        settings.chdir(folder)
        settings.setenv("HOTLOOP_TRACE", str(folder / "trace.db"))
        settings.setenv("HOTLOOP_TRACE_CONTENT", "1")
        assert main(["run", "weather.py", "Is it warmer in Paris or in Rome?", "--url", f"{server.url}/v1"]) == 0
    return folder / "trace.db"


def long_run(begin: str) -> list[Span]:
    """Of seven turns, an hour ago."""
    trace = Trace(begin + OLD[len(begin) :], time.time_ns() - 3600 * 10**9)
    whole = trace.add(names.RUN, "agent", 0, 700, agent="clerk", end="done", run_id=begin, num_turns=7)
    for turn in range(7):
        at = 100 * turn, 100 * turn + 90
        trace.add(names.CHAT, "agent", *at, trace.add(names.TURN, "agent", *at, whole, turn=turn + 1), num_prompt=9)
    return trace.spans


@pytest.mark.parametrize("line", ENDING)
@pytest.mark.sampled(8)
def test_it_does_what_it_is_shown_for(
    line: str, folder: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOTLOOP_TRACE", str(shutil.copy(recorded, folder)))
    more = [f" {words}" for begin, words in MORE.items() if line.startswith(begin)]
    with ExitStack() as servers:
        status = main(argv_of(line + "".join(more), servers)[1:])
    said = capsys.readouterr()
    assert status == ENDING[line], said.out + said.err


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On loopback, with tiny models by the names on the pages."""
    fake = FakeHub()
    files = {path.name: path.read_bytes() for path in (folder / "Qwen3-32B").iterdir()}
    fake.add("Qwen/Qwen3-4B", files)
    fake.add("Qwen/Qwen3-4B-Instruct-2507", files)
    gguf = write_gguf(folder / "tiny.gguf", SPEC, tiny_weights(SPEC)).read_bytes()
    fake.add("unsloth/Qwen3-4B-GGUF", {f"Qwen3-4B-{kind}.gguf": gguf for kind in ("Q4_K_M", "Q8_0")})
    with fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(folder / "hf"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield


@pytest.mark.long
def test_models_of_a_hub_are_pulled_shown_removed_and_served(hub: None, folder: Path) -> None:
    run(folder, "hotloop", "pull", "Qwen/Qwen3-4B")
    said = [run(folder, *shlex.split(line)) for line in OF_A_HUB]
    assert "qwen2" in said[1]
    with until_stopped(folder, [*shlex.split(SERVED_FROM_A_HUB), "--port", "0"]) as url:
        [model] = httpx.get(f"{url}/v1/models", verify=False).json()["data"]
    assert model["id"] == "Qwen/Qwen3-4B-Instruct-2507"


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("line", OF_THE_DEFAULT_MODEL)
def test_it_does_so_with_the_default_model(line: str, folder: Path, default_model_path: Path) -> None:
    (folder / "home" / "models").symlink_to(default_model_path.parent)
    run(folder, *shlex.split(line))


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.long] * (line not in SAMPLE)) for line in SERVING]
)
def test_it_serves_until_it_is_told_to_stop(
    line: str, folder: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(recorded, folder / "home")
    monkeypatch.setenv("HOTLOOP_MODEL", str(write_smallest(folder / "smallest")))
    with ExitStack() as servers, until_stopped(folder, argv_of(line, servers)) as url:
        answer = httpx.get(f"{url}/health", verify=False)
        assert answer.status_code in (200, 404, 503), "of a proxy and of a dashboard there is no health"


@contextmanager
def until_stopped(folder: Path, command: Sequence[str]) -> Iterator[str]:
    """The address that the command says first."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment(folder)) as process:
        try:
            assert process.stdout
            said = (re.findall(r"https?://127.0.0.1:\d+", line) for line in process.stdout)
            yield next(found[-1] for found in said if found)
            process.terminate()
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()
