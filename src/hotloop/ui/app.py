"""The page as an ASGI application: its files, and the API it asks. It writes nothing, and loads nothing from elsewhere.

The page is for everybody, what it shows only for who carries the key: it asks for the key and sends it with each
question. No text of a user's is ever put into HTML here: there is one HTML file, and it is always the same.
"""

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hotloop.border.page import is_own_name
from hotloop.border.requests import has_key
from hotloop.core.errors import HotloopError
from hotloop.ui.source import End, RunFilter, UiSource

ROOT = "/ui"
MAX_RUNS = 1000
"""Runs in one answer."""
_MAX_TEXT = 200
_STATIC = Path(__file__).parent / "static"
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}

_ANSWERED = {**HEADERS, "cache-control": "no-store"}

Endpoint = Callable[[Request], Awaitable[Response]]


class Refusal(Exception):
    """What was asked is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def create_ui(source: UiSource, *, api_key: str | None = None, host: str = "") -> Starlette:
    """Everything below /ui, as an application of its own. `host` is the name it is served at: without a key no other
    name is answered to, but for addresses and this machine's own.
    """
    api, files = _Api(source), _Files()
    answers: dict[str, Endpoint] = {
        "overview": api.overview,
        "live": api.live,
        "runs": api.runs,
        "runs/{id}": api.run,
        "runs/{id}/lint": api.lint,
    }
    routes = [
        Route(ROOT, files.page),
        Route(f"{ROOT}/", files.move),
        Route(f"{ROOT}/static/{{name:path}}", files.file),
        *(Route(f"{ROOT}/api/{path}", _guard(answer, api_key)) for path, answer in answers.items()),
    ]
    return Starlette(routes=routes, middleware=[] if api_key else [Middleware(_HostCheck, host=host)])


class _HostCheck:
    """Whoever holds no key is known by the name that was called."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_own_name(Headers(scope=scope).get("host", ""), self._host):
            await self._app(scope, receive, send)
            return
        reason = "without an API key the page is shown at an IP address or localhost only; set one to use another name"
        await _refuse(Refusal(403, reason))(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    media_type: str
    etag: str


class _Files:
    """The page's own files, read once: only what is among them is ever sent."""

    def __init__(self) -> None:
        paths = [path for path in _STATIC.rglob("*") if path.suffix in _KINDS]
        self._files = {path.relative_to(_STATIC).as_posix(): _read(path) for path in paths}

    async def page(self, request: Request) -> Response:
        return self._send("index.html", request)

    async def move(self, request: Request) -> Response:
        return RedirectResponse("../ui", headers=HEADERS)

    async def file(self, request: Request) -> Response:
        return self._send(request.path_params["name"], request)

    def _send(self, name: str, request: Request) -> Response:
        file = self._files.get(name)
        if not file:
            return _refuse(Refusal(404, "there is no such file"))
        headers = {**HEADERS, "etag": file.etag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)


def _read(path: Path) -> _File:
    body = path.read_bytes()
    return _File(body, _KINDS[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:16]}"')


class _Api:
    """What the page asks."""

    def __init__(self, source: UiSource) -> None:
        self._source = source

    async def overview(self, request: Request) -> Response:
        return _answer(self._source.about())

    async def live(self, request: Request) -> Response:
        live = await self._source.live()
        if live is None:
            raise Refusal(404, "nothing runs here: these are recorded runs")
        return _answer(live)

    async def runs(self, request: Request) -> Response:
        return _answer(await asyncio.to_thread(self._source.runs, parse_filter(request.query_params)))

    async def run(self, request: Request) -> Response:
        """Who has seen it as it is hears so, and no more: a page that watches a run asks every second."""
        run_id = request.path_params["id"]
        version = await asyncio.to_thread(self._source.version, run_id)  # asked first: what comes meanwhile is news
        etag = f'"{version}"'
        if version and request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={**_ANSWERED, "etag": etag})
        run = await asyncio.to_thread(self._source.run, run_id)
        if run is None:
            raise Refusal(404, "there is no such run; it may have been too old to keep")
        return _answer(run, etag=etag)

    async def lint(self, request: Request) -> Response:
        findings = await asyncio.to_thread(self._source.lint, request.path_params["id"])
        if findings is None:
            raise Refusal(404, "there is no linter here, or no such run")
        return _answer({"findings": list(findings)})


def parse_filter(query: Mapping[str, str]) -> RunFilter:
    """From the query of an address. Raises Refusal where that is nonsense."""
    end = query.get("end", "")
    if end and end not in get_args(End):
        raise Refusal(400, f"end must be one of {', '.join(get_args(End))}")
    return RunFilter(
        text=query.get("q", "")[:_MAX_TEXT].strip(),
        end=cast(End, end) if end else None,
        min_wall_s=_number(query, "min_wall_s", 0.0),
        has_errors=query.get("errors") == "1",
        limit=max(1, min(int(_number(query, "limit", 200.0)), MAX_RUNS)),
        before=query.get("before") or None,
    )


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    try:
        number = float(query.get(name) or default)
    except ValueError:
        raise Refusal(400, f"{name} must be a number") from None
    if not math.isfinite(number) or number < 0:
        raise Refusal(400, f"{name} must be a number that is not negative")
    return number


def _guard(endpoint: Endpoint, api_key: str | None) -> Endpoint:
    """Only with the key, if there is one; and what goes wrong is one line of JSON."""
    expected = api_key.encode() if api_key else None

    async def answer(request: Request) -> Response:
        if expected and not has_key(dict(request.scope["headers"]), expected):
            return _refuse(Refusal(401, "the API key is missing or wrong"))
        try:
            return await endpoint(request)
        except Refusal as refusal:
            return _refuse(refusal)
        except HotloopError as error:  # the store cannot be read, or the engine does not answer
            return _refuse(Refusal(503, str(error)))

    return answer


def _answer(value: object, status: int = 200, **headers: str) -> Response:
    return Response(msgspec.json.encode(value), status, {**_ANSWERED, **headers}, "application/json")


def _refuse(refusal: Refusal) -> Response:
    return _answer({"error": {"message": str(refusal)}}, refusal.status)
