"""Which commands there are, and what `hotloop --help` says of them: nothing is loaded for that."""

import difflib
import shutil
import textwrap
from collections.abc import Mapping

ABOUT = "The inference stack for agents: every turn pays only for what is new."
COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Serving": {
        "serve": ("serving.serve:serve", "Serve a model over the OpenAI and Anthropic APIs."),
        "chat": ("chat:chat", "Chat with a model in the terminal; /help lists the commands."),
        "route": (
            "serving.serve:route",
            "Route requests to many replicas: each goes to the one that has its prefix cached.",
        ),
        "batch": (
            "batch:batch",
            "Send every request in a file with background priority, and write each answer as it arrives.",
        ),
        "ray": ("serving.ray:ray", "Deploy replicas and their router on Ray Serve (needs the extra `ray`)."),
    },
    "Agents": {
        "run": (
            "agent.run:run_agent",
            "Run the agent defined in a file, showing turns, tools, cached tokens and cost.",
        ),
        "runs": ("agent.runs:runs", "List agents' runs, and resume those that were interrupted."),
        "serve-agent": (
            "agent.serve_agent:serve_agent",
            "Serve the agent defined in a file over OpenAI's chat completions and responses, and as an MCP tool.",
        ),
        "predict": ("agent.predict:predict", "Inspect what speculative tool execution has learned."),
    },
    "Measuring and checking": {
        "trace": ("trace.app:trace", "Analyse recorded runs: time, tokens, cache."),
        "bench": ("bench:bench", "Benchmark a server with agent workloads."),
        "doctor": (
            "advice.doctor:doctor",
            "Check a live deployment for common production problems and suggest fixes.",
        ),
        "lint": (
            "advice.lint:lint",
            "Find patterns in prompts that waste tokens, time or money, and suggest fixes.",
        ),
        "check": (
            "advice.check:check",
            "Compare recorded runs with those after a change; fail if they take more steps, tokens recomputed or cost.",
        ),
        "size": (
            "advice.size:size",
            "Estimate the hardware a load needs: memory, TTFT, tokens/s, cost. Runs no model.",
        ),
        "spend": (
            "serving.spend:spend",
            "Show what was spent behind a router: requests, tokens and money, by key, model or session tree.",
        ),
        "simulate": (
            "serving.simulate:simulate",
            "Replay recorded traffic against simulated replicas and compare routing policies.",
        ),
    },
    "Models": {
        "models": (
            "models:models",
            "List the models that can be loaded by name; show one; find one for this machine.",
        ),
        "pull": ("models:pull", "Download a model, or register a local one under its name."),
        "rm": ("models:rm", "Remove a model and its downloaded files. Your own files are not deleted."),
    },
    "Other": {
        "demo": (
            "demo:demo",
            "Run a few agents without and with prefix reuse and batching, then tool calls without and with shortcuts.",
        ),
        "version": (
            "models:version",
            "Print the versions of hotloop, Python and, where it is installed, PyTorch.",
        ),
    },
}
"""Where each command is, and the first line of its help; its module is imported when it is run."""

_FLAGS = {"COMMAND --help": "Explain a command.", "--version": "Print the version."}


def overview(width: int = 0) -> str:
    """What `hotloop --help` prints; as wide as the terminal if not told."""
    width = max(min(width or shutil.get_terminal_size().columns, 120), 40)
    groups = {title: {name: text for name, (_, text) in commands.items()} for title, commands in COMMANDS.items()}
    lines = ["Usage: hotloop COMMAND [OPTIONS]", "", *textwrap.wrap(ABOUT, width)]
    for title, commands in {**groups, "Flags": _FLAGS}.items():
        longest = max(map(len, commands))
        lines += ["", title]
        for name, text in commands.items():
            first, behind = f"  {name:{longest}}  ", " " * (longest + 4)
            lines += textwrap.wrap(text, width, initial_indent=first, subsequent_indent=behind)
    return "\n".join(lines)


def unknown_command(name: str) -> str:
    """What is said where there is no command of that name."""
    near = difflib.get_close_matches(name, [each for commands in COMMANDS.values() for each in commands], n=1)
    guess = f"did you mean `hotloop {near[0]}`? " if near else ""
    return f"there is no command {name!r}: {guess}`hotloop --help` lists them"
