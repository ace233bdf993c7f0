"""hotloop sends nothing anywhere by itself, whatever is installed beside it: every command, the library, every import.

A command without a case here fails the test of the list.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from cyclopts import App
from tests.egress.guard import Guard
from tests.loopback import http_at
from tests.models.fake_hub import FakeHub
from tests.models.tiny import tiny_spec, tiny_weights, write_folder, write_gguf
from tests.ray.test_ray import PATIENCE

from hotloop.cli.app import load_all
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.home import home
from hotloop.http.listen import bind

AGENT = """
from hotloop import Agent, ScriptedCall, ScriptedModel, tool
from hotloop.agent.speculation import SpeculativeTools

@tool(read_only=True)
def weather(city: str) -> str:
    return f"18 degrees in {city}"

def answer(ask):
    return "18 degrees" if ask.messages[-1].role == "tool" else [ScriptedCall("weather", city="Rome")]

agent = Agent(ScriptedModel(answer), tools=[weather], speculation=SpeculativeTools(path="speculation.json"))
"""
LIBRARY = """
import asyncio, contextlib, sys
from hotloop import Agent, Engine, HotloopError, SamplingParams

with Engine.load() as engine:
    engine.generate("Once", SamplingParams(max_tokens=2))
with contextlib.suppress(HotloopError):  # the answer is cut off
    asyncio.run(Agent(sys.argv[1] + "/v1", max_tokens=2).run("Hello"))
"""
IMPORTS = """
import importlib, pkgutil
import hotloop

for module in pkgutil.walk_packages(hotloop.__path__, "hotloop."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError as error:  # an extra that is not installed
            print(error)
"""

COMMANDS_OF_A_PROCESS = """
import contextlib, json, os, sys, tempfile
from hotloop.cli.main import run

report = os.fdopen(os.dup(1), "w")  # `hotloop run` puts the standard output back to where it found it

def contacted():
    return open(sys.argv[1]).read() if os.path.exists(sys.argv[1]) else ""

def file():
    return tempfile.TemporaryFile("w+")

for name, argv in json.load(sys.stdin).items():
    before = contacted()
    with file() as input, file() as output, file() as errors:
        input.write("Hello\\n")
        input.seek(0)
        sys.stdin = input
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = run([*name.split(), *argv])
        output.seek(0)
        errors.seek(0)
        said = [output.read(), errors.read()]
    print(json.dumps([name, status, *said, contacted().removeprefix(before)]), file=report, flush=True)
"""

LONG = pytest.mark.long
CHAT = "/v1/chat/completions"
SERVING = {
    "serve": "--port 0",
    "serve-agent": "agent.py --port 0",
    "route": "--port 0 --replica {url}",
    "trace open": "",
}
COMMANDS = {
    "batch": "batch.jsonl --url {url}",
    "bench replay": "--url {url} --agents 1 --jobs 1 --turns 1 --max-out 2 --gap 0",
    "bench tools": "--url {url} --repeat-workload --questions 1 --max-tokens 2",
    "chat": "--max-tokens 2",
    "check": "--baseline requests.jsonl --against requests.jsonl",
    "demo": "--agents 1 --turns 1",
    "doctor": "{url} --idle 0",
    "lint": "requests.jsonl --fail-on never",
    "models": "",
    "models recommend": "--gpu h100",
    "models show": "",
    "predict show": "speculation.json",
    "pull": "other.gguf",
    "rm": "other",
    "run": "agent.py Rome?",
    "runs approve": "{run} call_0",
    "runs cancel": "{run}",
    "runs list": "",
    "runs pause": "{run}",
    "runs resume": "{run}",
    "runs send": "{run} Rome?",
    "runs show": "{run}",
    "simulate": "traffic.jsonl --replicas 2",
    "size": "--gpu this",
    "spend": "spend.json",
    "trace diff": "last last",
    "trace export": "last",
    "trace import": "spans.jsonl",
    "trace ls": "",
    "trace show": "last",
    "version": "",
}
REFUSED = {"runs approve": "does not wait"} | {
    f"runs {name}": "is done" for name in ("cancel", "pause", "resume", "send")
}
"""What there is nothing left to do for, once a run has ended, and a word of the refusal."""
SAMPLE = ("lint", "models", "run", "size", "trace show", "version")
"""Those of `make test`."""
RAY = ("ray up", "ray status", "ray down")


def command_names(group: App, *before: str) -> Iterator[str]:
    """Every command that runs something and is in the help."""
    for name in group:
        command = group[name]
        if name.startswith("-") or not command.show:
            continue
        if command.default_command:
            yield " ".join((*before, name))
        yield from command_names(command, *before, name)


def test_every_command_has_a_case():
    assert {*SERVING, *COMMANDS, *RAY} == set(command_names(load_all()))


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Guard:
    """A tiny model has the place of the default one, kernels are this machine's, and what commands read is there."""
    guard = Guard(tmp_path_factory.mktemp("egress"))
    kept, native = guard.home / ".cache" / "hotloop", home() / "cache" / "native"
    if sys.platform == "darwin":
        kept = guard.home / "Library" / "Caches" / "hotloop"
    native.mkdir(parents=True, exist_ok=True)
    for folder in (kept / "models", kept / "cache"):
        folder.mkdir(parents=True)
    (kept / "cache" / "native").symlink_to(native)
    spec = tiny_spec("llama", max_context=16_384)
    model = write_gguf(kept / "models" / f"{DEFAULT_MODEL}.gguf", spec, tiny_weights(spec))
    (guard.work / "other.gguf").symlink_to(model)
    messages = [{"role": "user", "content": "Hello"}]
    files = {
        "agent.py": AGENT,
        "batch.jsonl": json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": {"messages": messages}}),
        "requests.jsonl": json.dumps({"model": "m", "messages": messages}),
        "spend.json": json.dumps({"spent": []}),
        "traffic.jsonl": json.dumps({"timestamp": 0, "input_length": 512, "output_length": 2, "hash_ids": [1]}),
    }
    for name, text in files.items():
        (guard.work / name).write_text(text)
    first = {"run": ["agent.py", "Rome?"], "trace export": [], "runs list": ["--json"], "pull": ["other.gguf"]}
    done = guard.python("-c", COMMANDS_OF_A_PROCESS, str(guard.record), stdin=json.dumps(first))
    outputs = {name: output for name, status, output, *_ in map(json.loads, done.stdout.splitlines()) if status == 0}
    assert outputs.keys() == first.keys(), done.stdout + done.stderr
    (guard.work / "spans.jsonl").write_text(outputs["trace export"])
    (guard.work / "run").write_text(json.loads(outputs["runs list"])[0]["run_id"])
    return guard


@pytest.fixture(scope="module")
def url(guard: Guard) -> Iterator[str]:
    with guard.serving("serve", *SERVING["serve"].split()) as url:
        yield url


def check_nothing_left_the_machine(guard: Guard) -> None:
    assert guard.contacted() == []
    ours = {Path(".cache/hotloop"), Path("Library/Caches/hotloop")}
    strange = [
        path for each in guard.home.rglob("*") if not ours & {path := each.relative_to(guard.home), *path.parents}
    ]
    assert [path for path in strange if not any(path in each.parents for each in ours)] == []


class Ran(NamedTuple):
    """A command that has ended, and whom it tried to reach."""

    name: str
    status: int
    output: str
    errors: str
    contacted: str


@pytest.fixture(scope="module")
def ran(guard: Guard, request: pytest.FixtureRequest) -> dict[str, Ran]:
    """All commands that are tested, one after another in a process."""
    chosen = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_a_command_contacts_nobody"
    }
    needs_url = any("{url}" in COMMANDS[name] for name in chosen)
    url = request.getfixturevalue("url") if needs_url else ""
    run = (guard.work / "run").read_text()
    argvs = {name: options.format(url=url, run=run).split() for name, options in COMMANDS.items() if name in chosen}
    done = guard.python("-c", COMMANDS_OF_A_PROCESS, str(guard.record), stdin=json.dumps(argvs))
    assert done.returncode == 0, done.stderr
    return {each.name: each for each in (Ran(*json.loads(line)) for line in done.stdout.splitlines())}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[LONG] * (name not in SAMPLE)) for name in COMMANDS])
@pytest.mark.sampled(3)
def test_a_command_contacts_nobody(name: str, guard: Guard, ran: dict[str, Ran]):
    assert ran[name].contacted == ""
    has_findings = name == "doctor" and ran[name].status == 1 and ran[name].output  # of a busy machine, too
    is_refused = name in REFUSED and REFUSED[name] in ran[name].errors
    assert ran[name].status == 0 or has_findings or is_refused, ran[name].errors
    check_nothing_left_the_machine(guard)


def test_a_command_line_contacts_nobody(guard: Guard):
    """Nor does what only a process of a command does, before and after it."""
    done = guard.python("-m", "hotloop", "version")
    check_nothing_left_the_machine(guard)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [pytest.param(name, marks=[LONG] * (name != "route")) for name in SERVING])
def test_a_server_contacts_nobody(name: str, guard: Guard, url: str):
    argv = SERVING[name].format(url=url).split()
    with guard.serving(*name.split(), *argv) as address, http_at(address) as http:
        assert http.get("/v1/models" if name == "serve-agent" else "/ui").status_code == 200
    check_nothing_left_the_machine(guard)


@pytest.mark.ray
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: hotloop[ray]")
def test_ray_contacts_nobody(guard: Guard):
    """Nor does Ray, which is started for it."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as sockets:  # their paths must be short
        environ = {**PATIENCE, "RAY_TMPDIR": sockets}
        with closing(bind("127.0.0.1", 0)) as listener:
            (guard.work / "ray.toml").write_text(f"[ray]\nport = {listener.getsockname()[1]}\ncpus = 0.25\n")
        up, *others = (name.split() for name in RAY)
        with guard.serving(*up, "ray.toml", **environ):
            for name in others:
                done = guard.python("-m", "hotloop", *name, **environ)
                assert done.returncode == 0, done.stderr
    assert guard.contacted() == []


def test_the_library_contacts_nobody(guard: Guard, url: str):
    done = guard.python("-c", LIBRARY, url)
    check_nothing_left_the_machine(guard)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_importing_every_module_contacts_nobody(guard: Guard):
    done = guard.python("-c", IMPORTS)
    check_nothing_left_the_machine(guard)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_hub_is_asked_for_files_only(guard: Guard):
    """Told by name and version who asks, and not what else is installed, or which coding agent started it."""
    pytest.importorskip("huggingface_hub")
    spec = tiny_spec("qwen2", num_layers=1)
    folder = write_folder(guard.work / "tiny", spec, tiny_weights(spec))
    with FakeHub() as hub:
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        hub.add("org/tiny", files)
        environ = {"HF_ENDPOINT": hub.url, "HF_HOME": str(guard.work / "hub"), "AI_AGENT": "some"}
        done = guard.python("-m", "hotloop", "pull", "org/tiny", **environ)
    assert done.returncode == 0, done.stderr
    wanted = ("/api/models/org/tiny", *files)
    assert [asked.path for asked in hub.asked if not any(name in asked.path for name in wanted)] == []
    told = {part.partition("/")[0] for asked in hub.asked for part in (asked.user_agent or "").split("; ")}
    assert told <= {"hotloop", "unknown", "hf_hub", "python"}
    assert guard.contacted() == []


@pytest.mark.parametrize("code", ["socket.create_connection(('198.51.100.1', 9))", "socket.gethostbyname('a.test')"])
def test_the_guard_sees_what_is_sent(tmp_path: Path, code: str):
    guard = Guard(tmp_path)
    done = guard.python("-c", f"import socket; {code}")
    assert "is refused" in done.stderr
    assert len(guard.contacted()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux preloads")
@pytest.mark.parametrize("host", ["198.51.100.1", "a.test"])
def test_the_guard_sees_what_is_not_python(tmp_path: Path, host: str):
    guard = Guard(tmp_path)
    done = guard.python("-c", f"import uvloop; uvloop.run(__import__('asyncio').open_connection({host!r}, 9))")
    assert done.returncode == 1
    assert len(guard.contacted()) == 1
