"""A client as the tests run it: its command, its settings, what its model says, and where its tools come late."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from tests.clients.speaking import ANSWER, QUESTION, WORD
from tests.server.serving import MODEL

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 300
_RULES = "You help with a repository, and you say what you know of it in as few words as can be. " * 250
"""In front of what is asked where a client's own prompt is short: about 5,000 tokens."""


@dataclass(frozen=True)
class Late:
    """A way in which tools come on a later turn; what is given here is in addition to the client's."""

    how: str
    script: Sequence[str]
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Client:
    """In commands, environment and files {npm}, {py}, {aider}, {programs}, {python}, {home}, {url}, {model},
    {rules} and {question} are filled in."""

    name: str
    command: Sequence[str]
    needs: str
    """The file below the folder of clients without which it is not installed."""
    script: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """What it reads, below the folder in which it is started unless it says {home}."""
    has_tools: bool = True
    output: str = ANSWER
    least_cached: float = 0.97
    """Of the prompt of each turn after the first, with the tools it began with."""
    late: Sequence[Late] = ()

    def made_late(self, late: Late) -> Self:
        return replace(
            self,
            command=(*self.command, *late.command),
            environment={**self.environment, **late.environment},
            files={**self.files, **late.files},
            script=late.script,
        )


@dataclass(frozen=True)
class Ended:
    """`code` is None if it had to be ended."""

    code: int | None
    output: str
    errors: str

    def __str__(self) -> str:
        how = f"was ended after {LIMIT_S} s" if self.code is None else f"ended with status {self.code}"
        return f"{how}\n{self.output[-2000:]}\n{self.errors[-3000:]}"


def run(client: Client, url: str, clients: Path, folder: Path) -> Ended:
    """In a process group of its own, so that nothing of it is left."""
    programs, home = folder / "programs", folder / "home"
    shutil.copytree(PROGRAMS, programs)  # Node looks for modules from where the program lies
    (programs / "node_modules").symlink_to(clients / "npm/node_modules")
    home.mkdir()
    values = {name: str(clients / name) for name in ("py", "npm", "aider")}
    values |= {"programs": str(programs), "python": str(clients / "py/bin/python"), "home": str(home)}
    values |= {"url": url, "model": MODEL, "rules": _RULES, "question": _RULES + QUESTION}

    def fill(text: str) -> str:
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    for name, content in client.files.items():
        path = folder / fill(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(content))
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "NO_COLOR": "1", "DO_NOT_TRACK": "1",
        "BASE_URL": url, "MODEL": MODEL, "WORD": WORD, "QUESTION": values["question"],
        "OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none",
    }  # fmt: skip
    environment |= {name: fill(value) for name, value in client.environment.items()}
    if "ANTHROPIC_AUTH_TOKEN" in environment:
        environment.pop("ANTHROPIC_API_KEY")
    process = subprocess.Popen(
        [fill(part) for part in client.command],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        return Ended(None, output, errors)
    return Ended(process.returncode, output, errors)
