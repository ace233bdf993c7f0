"""The generated pages of the manual: `make docs` writes them, a test checks that they are up to date."""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from io import StringIO
from pathlib import Path
from typing import Any

from docstring_parser import parse_from_object
from rich.console import Console

from docs.python_api import python_page
from hotloop.cli.app import load_all
from hotloop.cli.commands import overview
from hotloop.cli.settings import CONFIG_FILE, env_name, flag_name
from hotloop.core.config import CONFIG_CLASSES, FEATURES, RELOADABLE

DOCS = Path(__file__).parent
_WIDTH = 100
app = load_all()

_CLI_INTRO = """# The command line
Every command explains itself with `--help`; this page is the same text. Exit codes: 0 done, 1 failed, 2 usage error,
130 interrupted; of `hotloop run` 143 after SIGTERM. Errors are one line on stderr. Settings can also come from the
environment and from a file: see [configuration](configuration.md).
"""

_RELOADABLE = ", ".join(f"`{name}`" for name in sorted(RELOADABLE))

_CONFIGURATION_INTRO = f"""# Configuration
`hotloop serve`, `hotloop route` and `hotloop chat` take each setting from the first of these that has it:

1. the flag,
2. the environment; an empty variable counts as not set, and the items of a list are separated by spaces,
3. `{CONFIG_FILE}` in the current folder, or the file named by `--config`,
4. the default.

Unknown keys in the file are an error. Models and caches are kept in the user's cache folder, or where
`HOTLOOP_HOME` says. `hotloop bench replay` and `hotloop chat --url` send `HOTLOOP_API_KEY` too.

```toml
# {CONFIG_FILE}
model = "smollm2-135m"
kv_memory = "4GiB"
max_running = 32
port = 8700
cors_origins = ["http://localhost:3000"]
disable = ["retention", "drafts"]

[classes]
interactive_share = 0.9
workflow_wait_s = 0.05
background_wait_s = 0.5
background_share = 0.1

[route]
port = 8780
```

What classes of requests may wait, and their shares, may stand in the table `[classes]` or at the top. What only one of
the two is to have can stand in a table of its own, `[serve]` or `[route]`, and is taken before what
stands at the top. `{CONFIG_FILE}` in the current folder is read by both: the `port` at its top is that of `serve`,
and `route` has its own below `[route]`, or 8780. In a file that is named by `--config`, the `port` at the top is that
of the command it is given to.

## Reload
SIGHUP has `hotloop serve` and `hotloop route` read all of this again, and the files that the settings name, by the
same code and just as strictly as at the start: an unknown key or a wrong value changes nothing, and the log says why
(`reload refused, nothing has changed: …`). Else these are applied, without dropping a request or a stream, and the
log says what has changed (`reload: changed: API keys, log_level=debug; needs a restart: max_running`):

{_RELOADABLE}

and, for `route`, replicas, tiers and routes of its file. Whatever else has changed is named in that line, and waits
for a restart; so do keys where there were none, and none where there were keys. A terminal that is closed also sends
SIGHUP to what runs in it: both then stop as they do on SIGTERM.

## What leaves this machine
hotloop sends nothing anywhere by itself. It connects to the addresses it is given (replicas, `--url`, MCP servers,
`trace_otlp`), and downloads a model, or the questions of `hotloop bench tools`, that a command needs and this machine
does not have. The telemetry of `huggingface_hub` and [Ray](ray.md) is switched off in what hotloop starts. Outside the
cache folder nothing is written into the home folder, but for the hub's cache.
"""


_FEATURES_INTRO = """## Features
All of these are on. `--disable retention,drafts` turns some off, as do `HOTLOOP_DISABLE` and the list `disable` in the
file; of several such lists the first, in the order above, counts. In Python each is a field of `EngineConfig` or
`ServerConfig`: `EngineConfig(drafts=False)`.
"""


_LLMS_INTRO = """# hotloop

> Serves, routes and examines what AI agents ask language models: prefix caching that survives tool calls, a router by
> cached prefix, a linter and a doctor for prompts and deployments. OpenAI's and Anthropic's APIs.

## Documentation
"""


def cli_page() -> str:
    parts = [_CLI_INTRO, f"## hotloop\n```text\n{overview(_WIDTH)}\n```\n"]
    for command in _commands():
        console = Console(file=StringIO(), width=_WIDTH, color_system=None, force_terminal=False)
        with console.capture() as capture:
            app.help_print(command, console=console)
        text = "\n".join(line.rstrip() for line in capture.get().strip().splitlines())
        parts.append(f"## {' '.join(['hotloop', *command])}\n```text\n{text}\n```\n")
    return "\n".join(parts)


def configuration_page() -> str:
    return "\n".join([_CONFIGURATION_INTRO, _features_section(), *(_class_section(cls) for cls in CONFIG_CLASSES)])


def llms_page() -> str:
    """The index for programs that read it (llmstxt.org): each task with its pages."""
    rows = re.findall(r"^\| ([^|]+) \| (.*\]\(.*) \|$", (DOCS / "index.md").read_text("utf-8"), re.MULTILINE)
    lines = [f"- {page}: {task}" for task, pages in rows for page in re.findall(r"\[[^]]+\]\([^)]+\)", pages)]
    return "\n".join([_LLMS_INTRO, *lines, ""])


def _commands() -> Iterator[list[str]]:
    for name in sorted(name for name in app if not name.startswith("-")):
        yield [name]
        yield from ([name, sub] for sub in sorted(app[name]) if not sub.startswith("-") and app[name][sub].show)


def _features_section() -> str:
    help_of = {name: text for cls in CONFIG_CLASSES for name, text in _help_of(cls).items()}
    rows = "\n".join(f"| `{name}` | {help_of[name]} |" for name in FEATURES)
    return f"{_FEATURES_INTRO}\n| feature | what it does |\n|---|---|\n{rows}\n"


def _help_of(cls: type) -> dict[str, str]:
    params = (param for base in reversed(cls.__mro__[:-1]) for param in parse_from_object(base).params)
    return {param.arg_name: " ".join((param.description or "").split()) for param in params}


def _class_section(cls: type) -> str:
    help_of = _help_of(cls)
    lines = [
        f"## {cls.__name__.removesuffix('Config')}",
        f"{parse_from_object(cls).short_description}\n",
        "| key | flag | environment | default | what it does |",
        "|---|---|---|---|---|",
    ]
    for setting in (field for field in fields(cls) if field.name not in FEATURES):
        name, default = setting.name, _default(setting.default)
        lines.append(f"| `{name}` | `{flag_name(name)}` | `{env_name(name)}` | {default} | {help_of[name]} |")
    return "\n".join([*lines, ""])


def _default(value: Any) -> str:
    assert value is not MISSING, "a setting has a default"
    if value is None or value == ():
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    (DOCS / "cli.md").write_text(cli_page(), encoding="utf-8")
    (DOCS / "configuration.md").write_text(configuration_page(), encoding="utf-8")
    (DOCS / "python.md").write_text(python_page(), encoding="utf-8")
    (DOCS / "llms.txt").write_text(llms_page(), encoding="utf-8")
