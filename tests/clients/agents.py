"""Ten coding CLIs, each with the settings under which it talks to nobody but the server."""

import json

from tests.clients.client import Client, Late
from tests.clients.speaking import ANSWER, QUESTION
from tests.server.calls import write_call

_OPEN = {"shelf": "birds"}
_BIRD = {"kind": "bird"}
_LATE = "MCP tools that are added"
_SLOW = "MCP server that starts late"
_SEARCH = "its own tool search"


def _serve(how: str = "") -> dict[str, object]:
    """An MCP server of ours, as most clients are told of one."""
    return {"command": "{python}", "args": ["{programs}/birds.py", *([how] if how else [])]}


def _claude_code() -> Client:
    def late(how: str, script: tuple[str, ...], search: str, serves: str) -> Late:
        return Late(
            how,
            script,
            command=("--mcp-config", "birds.json"),
            environment={"ENABLE_TOOL_SEARCH": search},
            files={"birds.json": json.dumps({"mcpServers": {"birds": _serve(serves)}})},
        )

    read = write_call("Bash", command="cat word.txt", description="Reads the word")
    found = write_call("ToolSearch", query="select:mcp__birds__lookup", max_results=5)
    lookup = write_call("mcp__birds__lookup", **_BIRD)
    return Client(
        "claude code",
        ("{npm}/node_modules/.bin/claude", "-p", QUESTION, "--model", "{model}", "--allowedTools", "Bash,mcp__birds"),
        "npm/node_modules/.bin/claude",
        script=(read, ANSWER),
        environment={
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_AUTH_TOKEN": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        late=(
            late(_SEARCH, (found, lookup, ANSWER), "true", ""),
            late(_LATE, (write_call("mcp__birds__open", **_OPEN), read, lookup, ANSWER), "false", "late"),
        ),
    )


def _codex() -> Client:
    read = write_call("exec_command", cmd="cat word.txt")
    wait = write_call("exec_command", cmd="sleep 5", yield_time_ms=20000)
    return Client(
        "codex",
        (
            "{npm}/node_modules/.bin/codex", "exec", QUESTION,
            "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
            "-c", "model_provider=hotloop", "-c", "model={model}",
            "-c", 'model_providers.hotloop={name="hotloop", base_url="{url}/v1", wire_api="responses"}',
            "-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false",
        ),
        "npm/node_modules/.bin/codex",
        script=(read, ANSWER),
        late=(
            Late(
                _SLOW,
                (wait, write_call("mcp__birds__lookup", **_BIRD), ANSWER),
                command=(
                    "-c",
                    'mcp_servers.birds={command="{python}", args=["{programs}/birds.py", "slow"], env_vars=["WORD"]}',
                ),
            ),
        ),
    )  # fmt: skip


def _opencode() -> Client:
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "provider": {
            "hotloop": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": "{url}/v1"},
                "models": {"{model}": {"limit": {"context": 400_000, "output": 32_000}}},
            }
        },
    }
    birds = {"type": "local", "command": ["{python}", "{programs}/birds.py", "late"]}
    read = write_call("bash", command="cat word.txt")
    return Client(
        "opencode",
        ("{npm}/node_modules/.bin/opencode", "run", "--model", "hotloop/{model}", QUESTION),
        "npm/node_modules/.bin/opencode",
        script=(read, ANSWER),
        files={"opencode.json": json.dumps(settings)},
        late=(
            Late(
                _LATE,
                (write_call("birds_open", **_OPEN), read, write_call("birds_lookup", **_BIRD), ANSWER),
                files={"opencode.json": json.dumps({**settings, "mcp": {"birds": birds}})},
            ),
        ),
    )


def make_qwen_code(more: dict[str, object]) -> Client:
    path = "{home}/.qwen/settings.json"
    settings = {
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
        "memory": {"enableManagedAutoMemory": False},
        **more,
    }
    found = write_call("tool_search", query="select:mcp__birds__lookup")
    return Client(
        "qwen code",
        ("{npm}/node_modules/.bin/qwen", "--yolo", "--auth-type", "openai", "-p", QUESTION),
        "npm/node_modules/.bin/qwen",
        script=(write_call("run_shell_command", command="cat word.txt", is_background=False), ANSWER),
        environment={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_MODEL": "{model}"},
        files={path: json.dumps(settings)},
        late=(
            Late(
                _SEARCH,
                (found, write_call("mcp__birds__lookup", **_BIRD), ANSWER),
                files={path: json.dumps({**settings, "mcpServers": {"birds": {**_serve(), "trust": True}}})},
            ),
        ),
    )


def _copilot() -> Client:
    birds = {"birds": {"type": "local", **_serve("late"), "tools": ["*"], "env": {"WORD": "${WORD}"}}}
    read = write_call("bash", command="cat word.txt", description="Reads the word")
    return Client(
        "copilot cli",
        ("{npm}/node_modules/.bin/copilot", "--allow-all-tools", "-p", QUESTION),
        "npm/node_modules/.bin/copilot",
        script=(read, ANSWER),
        environment={
            "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
            "COPILOT_MODEL": "{model}",
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
        },
        late=(
            Late(
                _LATE,
                (write_call("birds-open", **_OPEN), read, write_call("birds-lookup", **_BIRD), ANSWER),
                files={"{home}/.copilot/mcp-config.json": json.dumps({"mcpServers": birds})},
            ),
        ),
    )


def _continue() -> Client:
    model = {
        "name": "hotloop", "provider": "openai", "model": "{model}", "apiBase": "{url}/v1", "apiKey": "none",
        "roles": ["chat"], "capabilities": ["tool_use"],
    }  # fmt: skip
    settings = {"name": "words", "version": "1.0.0", "schema": "v1", "models": [model]}
    return Client(
        "continue",
        ("{npm}/node_modules/.bin/cn", "--config", "config.yaml", "--auto", "-p", "{question}"),
        "npm/node_modules/.bin/cn",
        script=(write_call("Bash", command="cat word.txt"), ANSWER),
        environment={"CONTINUE_CLI_ENABLE_TELEMETRY": "0", "CONTINUE_METRICS_ENABLED": "0"},
        files={"config.yaml": json.dumps(settings)},
    )


def _pi() -> Client:
    models = [{"id": "{model}", "reasoning": True}]
    provider = {"baseUrl": "{url}/v1", "api": "openai-completions", "apiKey": "none", "models": models}
    return Client(
        "pi",
        ("{npm}/node_modules/.bin/pi", "--provider", "hotloop", "--model", "{model}", "-p", "{question}"),
        "npm/node_modules/.bin/pi",
        script=(write_call("bash", command="cat word.txt"), ANSWER),
        environment={"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
        files={"{home}/.pi/agent/models.json": json.dumps({"providers": {"hotloop": provider}})},
    )


def _grok() -> Client:
    return Client(
        "grok-cli",
        ("{npm}/node_modules/.bin/grok", "--model", "{model}", "-p", "{question}"),
        "npm/node_modules/.bin/grok",
        script=(write_call("bash", command="cat word.txt"), ANSWER),
        environment={"GROK_API_KEY": "none", "GROK_BASE_URL": "{url}/v1"},
    )


def _aider() -> Client:
    """It offers no tools. Of a file that it wrote and that does not parse it asks the model again."""
    return Client(
        "aider",
        (
            "{aider}/bin/aider", "--model", "openai/{model}", "--no-git", "--yes-always", "--no-show-model-warnings",
            "--no-check-update", "--no-gitignore", "--analytics-disable", "--read", "rules.md", "--message", QUESTION,
        ),
        "aider/bin/aider",
        script=("word.py\n```\nWORD = (\n```\n", ANSWER),
        environment={"OPENAI_API_BASE": "{url}/v1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        files={"rules.md": "{rules}"},
        has_tools=False,
        least_cached=0.9,  # what it tells of the file stands in the middle of its prompt
    )  # fmt: skip


def _llm() -> Client:
    model = {"model_id": "{model}", "model_name": "{model}", "api_base": "{url}/v1", "supports_tools": True}
    lookup = 'import os\n\ndef lookup(kind: str) -> str:\n    "Looks a word up."\n    return os.environ["WORD"]\n'
    return Client(
        "llm",
        ("{py}/bin/llm", "--model", "{model}", "--functions", "lookup.py", "{question}"),
        "py/bin/llm",
        script=(write_call("lookup", **_BIRD), ANSWER),
        environment={"LLM_USER_PATH": "{home}/llm"},
        files={"lookup.py": lookup, "{home}/llm/extra-openai-models.yaml": json.dumps([model])},
    )


AGENTS = [
    _claude_code(), _codex(), _opencode(), make_qwen_code({}), _copilot(), _continue(), _pi(), _grok(), _aider(),
    _llm(),
]  # fmt: skip
