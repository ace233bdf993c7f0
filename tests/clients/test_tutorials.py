"""The tutorials of docs/tutorials.md that need what only `make test-clients` installs."""

import re
from pathlib import Path

import pytest
from tests.clients.client import Client, run
from tests.clients.speaking import ANSWER, QUESTION, WORD, SpeakingBackend, follow
from tests.server.calls import write_call
from tests.server.serving import MODEL, Serving
from tests.test_tutorials import blocks

from hotloop.core.config import EngineConfig, ServerConfig


def ask(client: Client, clients: Path, folder: Path) -> str:
    if not list(clients.glob(client.needs)):
        pytest.skip(f"{client.name} is not installed")
    backend = SpeakingBackend(follow(client.script))
    with Serving(ServerConfig(port=0), EngineConfig(), backend=backend) as serving:
        ended = run(client, serving.url, clients, folder)
    assert ended.code == 0, str(ended)
    return ended.output


def test_langgraph(clients: Path, tmp_path: Path) -> None:
    [code] = blocks("LangGraph", "python")
    code = code.replace("http://127.0.0.1:8700", "{url}").replace("smollm2-135m", MODEL)
    code = code.replace("What is the word for a bird?", QUESTION)
    script = (write_call("lookup", kind="bird"), ANSWER)
    client = Client(
        "langgraph",
        ("{py}/bin/python", "tutorial.py"),
        "py/lib/python3*/site-packages/langgraph",
        script,
        files={"tutorial.py": code},
    )
    said = ask(client, clients, tmp_path)
    assert ANSWER in said
    [cached] = re.findall(r"'cache_read': (\d+)", said)
    assert int(cached) > 0


def test_claude_code(clients: Path, tmp_path: Path) -> None:
    *_, shell = blocks("Claude Code", "bash")
    *exports, command = shell.splitlines()
    settings = dict(line.removeprefix("export ").split("=", 1) for line in exports)
    stub = {"coder": MODEL, "65536": str(8 * 65536)}  # a token of the stub is a byte
    settings = {name: stub.get(value, value) for name, value in settings.items()}
    assert command == 'claude -p "What does word.txt say?" --allowedTools Bash'
    (tmp_path / "word.txt").write_text(f"{WORD}\n")
    client = Client(
        "claude code",
        ("{npm}/node_modules/.bin/claude", "-p", QUESTION, "--allowedTools", "Bash"),
        "npm/node_modules/.bin/claude",
        (write_call("Bash", command="cat word.txt", description="Reads the word"), ANSWER),
        environment=settings | {"ANTHROPIC_BASE_URL": "{url}"},
    )
    assert ANSWER in ask(client, clients, tmp_path)
