"""An MCP server over stdio that misbehaves: `python bad_mcp_server.py MANNER METHOD`, when it is asked for METHOD."""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

TOOLS = [{"name": "f", "description": "", "inputSchema": {"type": "object"}}]
Json = dict[str, Any]


def say(value: Any) -> None:
    write((value if isinstance(value, str) else json.dumps(value)).encode() + b"\n")


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def answer(asked: Json, result: Any) -> Json:
    return {"jsonrpc": "2.0", "id": asked.get("id"), "result": result}


def text(words: str) -> Json:
    return {"content": [{"type": "text", "text": words}]}


def hang(asked: Json) -> None:
    time.sleep(3600)


def flood(asked: Json) -> None:
    while True:
        say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 500}})


def endless_line(asked: Json) -> None:
    while True:
        write(b"x" * 65536)


def die(asked: Json) -> None:
    os._exit(3)


def die_in_a_line(asked: Json) -> None:
    write(json.dumps(answer(asked, text("half")))[:30].encode())
    os._exit(0)


def not_utf8(asked: Json) -> None:
    write(b'{"jsonrpc": "2.0", "id": \xff\xfe}\n')
    hang(asked)


def answer_twice(asked: Json) -> None:
    say(answer(asked, text("one")))
    say(answer(asked, text("two")))


MANNERS: dict[str, Callable[[Json], None]] = {
    "hangs": hang,
    "floods": flood,
    "writes a line without end": endless_line,
    "dies": die,
    "dies in a line": die_in_a_line,
    "no UTF-8": not_utf8,
    "no JSON": lambda asked: say("%&$ {["),
    "nested": lambda asked: say("[" * 100_000 + "]" * 100_000),
    "another id": lambda asked: say(answer({"id": 99_999}, text("mine"))),
    "an id that is a text": lambda asked: say(answer({"id": str(asked.get("id"))}, text("mine"))),
    "no id": lambda asked: say({"jsonrpc": "2.0", "result": text("mine")}),
    "another version": lambda asked: say(answer(asked, text("mine")) | {"jsonrpc": "1.0"}),
    "both result and error": lambda asked: say(answer(asked, text("x")) | {"error": {"code": 1, "message": "y"}}),
    "an error that is none": lambda asked: say({"jsonrpc": "2.0", "id": asked.get("id"), "error": "no"}),
    "a result of no shape": lambda asked: say(answer(asked, {"content": 7})),
    "a result that is null": lambda asked: say(answer(asked, None)),
    "twice": answer_twice,
    "huge": lambda asked: say(answer(asked, text("x" * 30_000_000))),
    "many pieces": lambda asked: say(answer(asked, {"content": [{"type": "text", "text": "x"}] * 5_000})),
    "asks back": lambda asked: say({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}}),
}


def serve(manner: str, at: str) -> None:
    """The manner `random` damages a valid answer."""
    for line in sys.stdin:
        asked = json.loads(line)
        method = asked.get("method", "")
        if method == at and manner == "random":
            say(damage(json.dumps(answer(asked, text("fine"))), int(sys.argv[3])))
        elif method == at:
            MANNERS[manner](asked)
        elif method == "initialize":
            about = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            say(answer(asked, about | {"serverInfo": {"name": "bad", "version": "1"}}))
        elif method == "tools/list":
            say(answer(asked, {"tools": TOOLS}))
        elif method == "tools/call":
            say(answer(asked, text("fine")))
        elif "id" in asked and method:
            say({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "unknown"}})


def damage(line: str, seed: int) -> str:
    rng = random.Random(seed)
    letters = [*line]
    for _ in range(rng.randint(1, 4)):
        letters[rng.randrange(len(letters))] = rng.choice('{}[]":,0x\\ ')
    return "".join(letters)


if __name__ == "__main__":
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(sys.argv[1], sys.argv[2])
