"""Closing sessions: a client says that one is over, so that its prefix is held no longer."""

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.routing import Route

from hotloop.core.errors import RequestError
from hotloop.server.border import read_json
from hotloop.server.options import decode
from hotloop.server.service import Service
from hotloop.wire.hints import MAX_SESSION_ID, shorten

_MAX_BODY = 4 * MAX_SESSION_ID + 1024


async def close(http: HttpRequest) -> JSONResponse:
    """Free what the cache has of a session, and of those that work for it. Nothing is, if there is no such session."""
    return await _close(http, http.path_params["id"])


async def close_by_body(http: HttpRequest) -> JSONResponse:
    """The same, as SGLang has it."""
    name = decode(await read_json(http, _MAX_BODY)).get("session_id")
    if not isinstance(name, str) or not name:
        raise RequestError("session_id must be a text", param="session_id")
    return await _close(http, name)


async def _close(http: HttpRequest, name: str) -> JSONResponse:
    service = Service.of(http)
    num_blocks = await service.engine.close_session(http.state.tenant.qualify(shorten(name)))
    freed = {"freed_blocks": num_blocks, "freed_tokens": num_blocks * service.engine.facts.block_size}
    return JSONResponse({"id": name, "object": "session.closed", **freed})


ROUTES = (
    Route("/v1/sessions/{id:path}/close", close, methods=["POST"]),
    Route("/close_session", close_by_body, methods=["POST"]),
)
