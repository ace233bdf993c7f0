"""An MCP server that misbehaves costs its tools an error, in their time, and leaves nothing behind.

FUZZ_INPUTS says how many answers are damaged at random, beside those that are wrong in a way that has a name.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.fuzz.bad_mcp_server import MANNERS, TOOLS, answer

from hotloop.agent.mcp import McpServer
from hotloop.agent.tools.dispatch import carry_out
from hotloop.agent.tools.result import MAX_CHARS
from hotloop.agent.tools.tool import RunContext
from hotloop.core.errors import ConfigError

SERVER = str(Path(__file__).with_name("bad_mcp_server.py"))
NUM_INPUTS = min(int(os.environ.get("FUZZ_INPUTS", "10")), 500)  # each is a process
SEED = int(os.environ.get("FUZZ_SEED", "0"))
START_S, TIMEOUT_S = 20.0, 0.5
NUM_AT_ONCE = 8
ABOUT = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "bad", "version": "1"},
}


def children() -> set[str]:
    """What was started for these tests and still runs."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return {line for line in lines if SERVER in line}


async def ask(*arguments: str, start_s: float = START_S) -> tuple[str, bool]:
    """What a tool of such a server says, and whether that is an error; or why there is none."""
    server = McpServer.stdio(sys.executable, "-S", SERVER, *arguments, start_s=start_s, timeout_s=TIMEOUT_S)
    try:
        async with AsyncExitStack() as stack:
            [tool] = await server.open(stack)
            outcome = await carry_out(tool, "{}", RunContext())
            return outcome.text, outcome.is_error
    except ConfigError as error:
        return str(error), True


async def ask_all(asked: list[tuple[str, ...]], start_s: float = START_S) -> dict[tuple[str, ...], tuple[str, bool]]:
    room = asyncio.Semaphore(NUM_AT_ONCE)

    async def one(arguments: tuple[str, ...]) -> tuple[str, bool]:
        async with room:
            return await ask(*arguments, start_s=start_s)

    async with asyncio.timeout(60 + len(asked)):
        told = await asyncio.gather(*map(one, asked))
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not children()
    return dict(zip(asked, told, strict=True))


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked for in /proc")
@pytest.mark.parametrize("at", ["tools/call", "tools/list", "initialize"] if NUM_INPUTS > 10 else ["tools/call"])
async def test_whatever_it_answers_is_an_error_in_its_time(at: str) -> None:
    is_start = at != "tools/call"
    told = await ask_all([(manner, at, "stubborn") for manner in MANNERS], 3.0 if is_start else START_S)
    fine = {"twice", "huge", "many pieces", "an id that is a text"}
    for (manner, *_), (text, is_error) in told.items():
        assert is_error or (manner in fine and not is_start), (manner, text)
        assert len(text) < 1.1 * MAX_CHARS
        assert "validation error" not in text, "what a library calls it helps no model"


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked for in /proc")
async def test_a_damaged_answer_is_an_error_or_an_answer() -> None:
    print(f"seed {SEED}: {NUM_INPUTS} damaged answers")
    asked = [("random", "tools/call", str(SEED * 100_000 + number)) for number in range(NUM_INPUTS)]
    assert len(await ask_all(asked)) == NUM_INPUTS


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speaks MCP over HTTP until a tool is called, and then for ever."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            asked = json.loads(await reader.readexactly(int(length[1]))) if length else {}
            if asked.get("method") == "tools/call":
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n"
                )
                while True:
                    writer.write(b"x" * (1 << 20))
                    await writer.drain()
            known = {"tools/list": {"tools": TOOLS}, "initialize": ABOUT}.get(asked.get("method", ""))
            said = json.dumps(answer(asked, known)).encode() if known else b""
            status = b"200 OK" if known else b"202 Accepted" if asked else b"405 Not Allowed"
            writer.write(
                b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (status, len(said), said)
            )
            await writer.drain()
    writer.close()


async def test_an_answer_over_http_without_end_is_not_kept() -> None:
    async with await asyncio.start_server(flood, "127.0.0.1", 0) as server, AsyncExitStack() as stack:
        host, port = server.sockets[0].getsockname()
        [tool] = await McpServer.http(f"http://{host}:{port}/mcp").open(stack)
        outcome = await carry_out(tool, "{}", RunContext())
        assert outcome.is_error
        assert "has gone" in outcome.text
