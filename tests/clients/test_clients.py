"""Each client asks, calls a tool, hands its result back and prints the answer: straight and through a router."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.backends.scripted import ScriptedBackend
from tests.chat.thinking_templates import thinking_template
from tests.clients.rows import ROWS, Row
from tests.engine.tiny import TOKENIZER
from tests.server.calls import write_call
from tests.server.serving import CHATML, MODEL, Routing, Serving

from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.trace import names
from hotloop.trace.span import Span
from hotloop.trace.tracer import ListTracer

PROGRAMS = Path(__file__).parent / "programs"
WORD = "heron-4711"
"""Only the tool knows it: whoever has it in a prompt has been given the tool's result."""
ANSWER = "The word is known."
LIMIT_S = 240


@dataclass(frozen=True)
class Client:
    name: str
    command: Sequence[str]
    """{py}, {npm}, {programs}, {url} and {model} are filled in."""
    needs: str
    """The file below the folder of clients without which it is not installed."""
    script: Sequence[str] = (write_call("lookup", kind="bird"), ANSWER)
    environment: Sequence[tuple[str, str]] = ()
    file: tuple[str, str] | None = None
    """What it reads where it is started: a name, and what is in it."""
    has_tools: bool = True
    output: str = ANSWER
    thinks: bool = False
    """Whether it is tried with a model that thinks."""


def python(name: str, program: str, package: str, **more: Any) -> Client:
    command = ("{py}/bin/python", f"{{programs}}/{program}.py")
    return Client(name, command, f"py/lib/python3*/site-packages/{package}", **more)


def node(name: str, program: str, package: str, **more: Any) -> Client:
    return Client(name, ("node", f"{{programs}}/{program}.mjs"), f"npm/node_modules/{package}", **more)


LOOKUP = write_call("lookup", kind="bird")
THOUGHT = "; ".join(["I should look it up, since nobody has told me the word yet"] * 8)
THINKING: dict[str, Any] = {
    "thinks": True,
    "script": (f"<think>\n{THOUGHT}\n</think>\n\n{LOOKUP}", f"<think>\nNow I know.\n</think>\n\n{ANSWER}"),
}
OPENCODE = {
    "provider": {
        "hotloop": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}/v1"},
            "models": {"{model}": {"limit": {"context": 65536, "output": 32000}}},
        }
    }
}
CLIENTS = [
    python("openai, chat", "openai_chat", "openai"),
    python("openai, responses", "openai_responses", "openai"),
    python("anthropic", "anthropic_messages", "anthropic"),
    python("langgraph", "langgraph_agent", "langgraph"),
    python("openai agents", "openai_agents", "agents"),
    python("pydantic-ai", "pydantic_agent", "pydantic_ai"),
    python("litellm", "litellm_chat", "litellm"),
    python(
        "smolagents", "smolagents_agent", "smolagents", script=(LOOKUP, write_call("final_answer", answer=ANSWER))
    ),
    python("instructor", "instructor_chat", "instructor", script=('{"word": "owl"}',), has_tools=False, output="owl"),
    node("openai, js", "openai_chat", "openai"),
    node("anthropic, js", "anthropic_messages", "@anthropic-ai/sdk"),
    node("vercel ai", "vercel_ai", "ai"),
    node("openai, js, thinking", "openai_responses", "openai", **THINKING),
    node("vercel ai, thinking", "vercel_ai_responses", "@ai-sdk/openai", **THINKING),
    python("langchain, thinking", "langchain_responses", "langchain_openai", **THINKING),
    python("openai agents, thinking", "openai_agents", "agents", **THINKING),
    Client(
        "claude code",
        ("{npm}/node_modules/.bin/claude", "-p", "What is the word?", "--model", "{model}", "--allowedTools", "Bash"),
        "npm/node_modules/.bin/claude",
        script=(write_call("Bash", command="cat word.txt", description="Reads the word"), ANSWER),
        environment=(
            ("ANTHROPIC_BASE_URL", "{url}"),
            ("ANTHROPIC_AUTH_TOKEN", "none"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ),
    ),
    Client(
        "codex",
        (
            "{npm}/node_modules/.bin/codex", "exec", "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "-c", "model_provider=hotloop", "-c", "model={model}",
            "-c", 'model_providers.hotloop={{name="hotloop", base_url="{url}/v1", wire_api="responses"}}',
            "What is the word?",
        ),
        "npm/node_modules/.bin/codex",
        script=(write_call("exec_command", cmd="cat word.txt"), ANSWER),
    ),
    Client(
        "opencode",
        ("{npm}/node_modules/.bin/opencode", "run", "--model", "hotloop/{model}", "What is the word?"),
        "npm/node_modules/.bin/opencode",
        script=(write_call("bash", command="cat word.txt"), ANSWER),
        file=("opencode.json", json.dumps(OPENCODE)),
    ),
    Client(
        "aider",
        (
            "{aider}/bin/aider", "--model", "openai/{model}", "--no-git", "--yes-always", "--no-show-model-warnings",
            "--no-check-update", "--no-gitignore", "--message", "What is the word?",
        ),
        "aider/bin/aider",
        script=(ANSWER,) * 9,  # its prompts show conversations of their own
        environment=(("OPENAI_API_BASE", "{url}/v1"),),
        has_tools=False,
    ),
]  # fmt: skip


@pytest.mark.parametrize("way", ["direct", "routed"])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_works_as_it_is(client: Client, way: str, clients: Path, tmp_path: Path) -> None:
    if not list(clients.glob(client.needs)):
        pytest.skip(f"{client.name} is not installed")
    row = Row(client.name, way, has_tools=client.has_tools)
    ROWS.append(row)
    (tmp_path / "word.txt").write_text(f"{WORD}\n")
    tracer = ListTracer(keeps_content=True)
    backend = ScriptedBackend(TOKENIZER, client.script, num_blocks=30_000)
    template = thinking_template() if client.thinks else CHATML
    with Serving(ServerConfig(port=0), EngineConfig(), backend=backend, tracer=tracer, template=template) as serving:
        if way == "direct":
            said = run(client, serving.url, clients, tmp_path)
        else:
            with Routing(serving.url) as url:
                said = run(client, url, clients, tmp_path)
    assert client.output in said
    requests = [span for span in tracer.spans if span.name == names.REQUEST]
    assert len(requests) >= (2 if client.has_tools else 1)
    if client.has_tools:
        assert any(WORD in str(span.attributes) for span in tracer.spans), "the tool's result came back"
    if client.thinks:
        first, last = (requests[i].attributes[names.NUM_PROMPT] for i in (0, -1))
        assert last > first + len(THOUGHT), "the thought came back"
    row.cached, row.works = cached_share(requests), True


def cached_share(requests: list[Span]) -> float | None:
    """Of the prompts that are longer than the longest so far with the same tools: turns of one conversation, and not
    the questions that some clients ask beside it, such as for a title."""
    longest: dict[str, int] = {}
    num_prompt = num_cached = 0
    for span in sorted(requests, key=lambda span: span.start_ns):
        size, tools = (
            span.attributes[names.NUM_PROMPT],
            str(json.loads(span.attributes[names.CONTENT_REQUEST]).get("tools")),
        )
        if tools in longest and size > longest[tools]:
            num_prompt += size
            num_cached += span.attributes[names.NUM_CACHED]
        longest[tools] = max(longest.get(tools, 0), size)
    return num_cached / num_prompt if num_prompt else None


def run(client: Client, url: str, clients: Path, folder: Path) -> str:
    values = {"py": clients / "py", "npm": clients / "npm", "aider": clients / "aider", "programs": PROGRAMS}
    values |= {"url": url, "model": MODEL}
    programs = folder / "programs"
    if client.command[0] == "node":  # modules are looked for from where the program lies
        programs.mkdir()
        shutil.copy(PROGRAMS / Path(client.command[1]).name, programs)
        (programs / "node_modules").symlink_to(clients / "npm/node_modules")
        values["programs"] = programs
    if client.file:
        name, content = client.file
        (folder / name).write_text(content.replace("{url}", url).replace("{model}", MODEL))
    home = folder / "home"
    home.mkdir()
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "BASE_URL": url, "MODEL": MODEL, "WORD": WORD,
        "OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none", "NO_COLOR": "1", "DO_NOT_TRACK": "1",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }  # fmt: skip
    environment |= {name: value.format(**values) for name, value in client.environment}
    if "ANTHROPIC_AUTH_TOKEN" in environment:
        environment.pop("ANTHROPIC_API_KEY")
    ended = subprocess.run(
        [part.format(**values) for part in client.command],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-3000:]}"
    return ended.stdout
