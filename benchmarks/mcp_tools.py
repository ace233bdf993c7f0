"""Are the tools of real MCP servers taken, and how much of their schemas is enforced?

`python -m benchmarks.mcp_tools COMMANDS` starts the servers that a file names, one command a line, asks each for its
tools over stdio, and does with them what the server does under `tool_choice: auto`. `NAME=VALUE` before a command goes
into its environment: many servers want a key before they list anything, and take any. `--schemas FILE` keeps what was
listed as JSON; such a file, if its name ends in `.json`, is taken in place of commands.
"""

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import dropwhile
from pathlib import Path
from typing import Any

from hotloop.agent.mcp import McpServer
from hotloop.chat.formats import choose_format
from hotloop.chat.tools import ToolChoice, check_tools
from hotloop.core.config import DEFAULT_MODEL, ToolFormatName
from hotloop.core.errors import HotloopError, RequestError
from hotloop.core.message import Tool
from hotloop.engine.grammar.matcher import Grammars
from hotloop.models.model import load_model
from hotloop.models.template import ChatTemplate
from hotloop.server.loose import Loosened, Loosener

FORMATS: tuple[ToolFormatName, ...] = ("hermes", "qwen3_coder")
START_S = 60.0


async def list_tools(command: str) -> list[Tool]:
    """The tools of one server. Raises ConfigError if it does not start."""
    words = shlex.split(command)
    program = [*dropwhile(lambda word: "=" in word, words)]
    env = dict(word.split("=", 1) for word in words[: len(words) - len(program)])
    async with AsyncExitStack() as stack:
        tools = await McpServer.stdio(*program, env=env, start_s=START_S).open(stack)
        return [tool.spec for tool in tools]


class Checker:
    """Does with tools what a server of one tool format does."""

    def __init__(self, name: ToolFormatName) -> None:
        model = load_model(DEFAULT_MODEL)
        self._tokenizer = model.tokenizer
        template = ChatTemplate("{{ tools }}", bos_token="", eos_token="")
        self._format = choose_format(template, model.tokenizer, name)
        self._grammars = Grammars(model.tokenizer, model.tokenizer.vocab_size)
        self._loosener = Loosener(self._format, model.tokenizer, self._grammars)
        self.tally: Counter[str] = Counter()
        """Tools: all of them, those enforced fully or partly, and those accepted under strict."""

    def check(self, tools: list[Tool]) -> list[str]:
        """What is refused, and what is not enforced."""
        notes: list[str] = []
        taken: list[Loosened] = []
        for tool in tools:
            self.tally["tools"] += 1
            self.tally["strict"] += self._compiles(tool)
            try:
                check_tools([tool], ToolChoice())
                loosened = self._loosener.look_at(tool)
                loosened = self._loosener.loosen([tool]).get(tool.name, loosened)
            except RequestError as error:
                notes.append(f"REFUSED {tool.name}: {error}")
                continue
            taken.append(loosened)
            self.tally["whole"] += not loosened.dropped
            self.tally["partly"] += bool(loosened.dropped)
            notes += [f"{tool.name}: {', '.join(loosened.dropped)}"] if loosened.dropped else []
        began_at = time.perf_counter()
        try:
            grammar = self._format.grammar([each.tool for each in taken], ToolChoice(), self._tokenizer)
            if grammar:
                self._grammars.prepare(grammar)
        except RequestError as error:
            notes.append(f"REFUSED together: {error}")
        return [*notes, f"all together in {time.perf_counter() - began_at:.2f} s"]

    def _compiles(self, tool: Tool) -> bool:
        try:
            grammar = self._format.grammar([tool], ToolChoice("required", tool.name), self._tokenizer)
            assert grammar
            self._grammars.prepare(grammar)
        except RequestError:
            return False
        return True


def read_servers(path: Path) -> dict[str, list[Tool]]:
    if path.suffix == ".json":
        listed: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return {command: [Tool(**tool) for tool in tools] for command, tools in listed.items()}
    servers: dict[str, list[Tool]] = {}
    for command in path.read_text("utf-8").splitlines():
        if command and not command.startswith("#"):
            try:
                servers[command] = asyncio.run(list_tools(command))
                print(f"{len(servers[command]):4} tools: {command}", flush=True)
            except HotloopError as error:
                print(f"   no tools: {command}: {error}", flush=True)
    return servers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", type=Path)
    parser.add_argument("--schemas", type=Path)
    arguments = parser.parse_args()
    servers = read_servers(arguments.commands)
    if arguments.schemas:
        listed = {
            command: [{"name": tool.name, "parameters": tool.parameters} for tool in tools]
            for command, tools in servers.items()
        }
        arguments.schemas.write_text(json.dumps(listed), "utf-8")
    num_refused = 0
    for name in FORMATS:
        checker = Checker(name)
        for command, tools in servers.items():
            for note in checker.check(tools):
                print(f"  {name}: {command}: {note}", flush=True)
        tally = checker.tally
        num_refused += tally["tools"] - tally["whole"] - tally["partly"]
        print(
            f"{name}: {tally['tools']} tools of {len(servers)} servers; accepted under auto "
            f"{tally['whole'] + tally['partly']}: enforced fully {tally['whole']}, partly {tally['partly']}; "
            f"accepted under strict {tally['strict']}"
        )
    return 1 if num_refused else 0


if __name__ == "__main__":
    sys.exit(main())
