"""An MCP server over stdio that starts at once, for want of the package `mcp`: for tests that start one many times."""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def add(a: int, b: int = 2) -> int:
    return a + b


def process() -> int:
    return os.getpid()


def environment(name: str) -> str:
    return os.environ.get(name, "not set")


def refuse(reason: str) -> str:
    raise ValueError(reason)


def block() -> int:
    """Answers nobody else meanwhile."""
    time.sleep(5)
    return os.getpid()


def die() -> None:
    os._exit(3)


def mutter() -> str:
    """Says what is no UTF-8 where messages are."""
    sys.stdout.buffer.write(b"caf\xe9\n")
    return "said"


TOOLS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (add, process, environment, refuse, block, die, mutter)
}


def call(name: str, arguments: Json) -> Json:
    try:
        text, is_error = str(TOOLS[name](**arguments)), False
    except ValueError as error:
        text, is_error = str(error), True
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def result_of(method: str, params: Json) -> Json:
    if method == "initialize":
        about = {"name": "plain", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in [*TOOLS, "hang", "limit"]]}
    return call(params["name"], params.get("arguments") or {})


def serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        method, params = asked.get("method"), asked.get("params", {})
        answer: Json = {"jsonrpc": "2.0", "id": asked.get("id")}
        if method not in ("initialize", "tools/list", "tools/call"):
            answer["error"] = {"code": -32601, "message": "unknown"}
        elif params.get("name") == "hang":
            continue
        elif params.get("name") == "limit":
            answer["error"] = {"code": -32000, "message": "too many calls"}
        else:
            answer["result"] = result_of(method, params)
        if "id" in asked:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["crash"]:
            sys.exit("the notes are nowhere to be found")
        case ["mute"]:
            sys.stdin.read()
        case _:
            serve()
