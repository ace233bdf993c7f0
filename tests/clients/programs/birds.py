"""An MCP server over stdio: `birds.py` has its tools from the start, `late` gets them when `open` is called and says
so, and `slow` is ready some seconds late.
"""

import json
import os
import sys
import time
from typing import Any

SLOW_S = 3.0


def tool(name: str, description: str, argument: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"name": name, "description": description, "inputSchema": schema}


OPEN = tool("open", "Opens the catalogue, whose tools can be called from then on.", "shelf")
CATALOGUE = [
    tool("lookup", "Looks a word up.", "kind"),
    tool("describe", "Describes a bird: where it lives, what it eats and when it leaves.", "bird"),
    tool("count", "Counts the birds of a region.", "region"),
]


def answer(method: str, params: dict[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            server = {"name": "birds", "version": "1"}
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": server,
            }
        case "tools/list":
            return {"tools": tools}
        case "tools/call":
            text = "The catalogue is open." if params["name"] == "open" else os.environ["WORD"]
            return {"content": [{"type": "text", "text": text}]}
        case "ping":
            return {}
    return None


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def main(how: str) -> None:
    tools = [OPEN] if how == "late" else [OPEN, *CATALOGUE]
    if how == "slow":
        time.sleep(SLOW_S)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        params = request.get("params", {})
        result = answer(request["method"], params, tools)
        if params.get("name") == "open" and tools == [OPEN]:
            tools = [OPEN, *CATALOGUE]
            send(method="notifications/tools/list_changed")
        if result is None:
            send(id=request["id"], error={"code": -32601, "message": "no such method"})
        else:
            send(id=request["id"], result=result)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
