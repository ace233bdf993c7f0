"""The little of MCP that one tool takes, over streamable HTTP without sessions: `run` has the agent answer a prompt."""

from typing import Any

from hotloop.core.version import __version__
from hotloop.wire.field import Json

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
_SCHEMA: Json = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "what is to be done, with all there is to know for it"}},
    "required": ["prompt"],
    "additionalProperties": False,
}
_NO_METHOD, _BAD_PARAMS = -32601, -32602


def is_notification(body: Json) -> bool:
    return "id" not in body


def answer(body: Json, name: str) -> Json:
    """To anything but a call."""
    match body.get("method"):
        case "initialize":
            asked = _params(body).get("protocolVersion")
            about = {"name": name, "version": __version__}
            version = asked if asked in VERSIONS else VERSIONS[0]
            return _wrap(body, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about})
        case "ping":
            return _wrap(body, {})
        case "tools/list":
            told = {
                "name": "run",
                "title": name,
                "description": f"Have {name} answer a prompt.",
                "inputSchema": _SCHEMA,
            }
            return _wrap(body, {"tools": [told]})
        case method:
            return _fail(body, _NO_METHOD, f"there is no method {method!r:.80}")


def read_call(body: Json) -> str | None:
    """The prompt; None if it is none."""
    match _params(body):
        case {"name": "run", "arguments": {"prompt": str(prompt)}}:
            return prompt
    return None


def refuse_call(body: Json) -> Json:
    return _fail(body, _BAD_PARAMS, "call the tool `run` with a `prompt`, a text")


def progress_token(body: Json) -> Any:
    meta = _params(body).get("_meta")
    return meta.get("progressToken") if isinstance(meta, dict) else None


def progress(token: Any, number: int, message: str) -> Json:
    params = {"progressToken": token, "progress": number, "message": message}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def result(body: Json, text: str, *, is_error: bool) -> Json:
    return _wrap(body, {"content": [{"type": "text", "text": text}], "isError": is_error})


def _params(body: Json) -> Json:
    params = body.get("params")
    return params if isinstance(params, dict) else {}


def _wrap(body: Json, result: Json) -> Json:
    return {"jsonrpc": "2.0", "id": body["id"], "result": result}


def _fail(body: Json, code: int, message: str) -> Json:
    return {"jsonrpc": "2.0", "id": body["id"], "error": {"code": code, "message": message}}
