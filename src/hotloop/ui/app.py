"""The dashboard as an ASGI application: its files, and its API. It writes nothing, and loads nothing from elsewhere.

The dashboard is for everybody, what it shows only for who carries the key: it asks for the key and sends it with each
request. No text of a user's is ever put into HTML here: there is one HTML file, and it is always the same.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from hotloop.core.errors import HotloopError
from hotloop.http.keys import AccessDenied, ApiKeys
from hotloop.http.page import PAGE_PATH, TrustedHosts
from hotloop.ui.source import RunFilter, SummaryFilter
from hotloop.ui.store_source import StoreSource

Filter = TypeVar("Filter", RunFilter, SummaryFilter)

MAX_RUNS = 1000
"""Runs in one answer."""
_MAX_TEXT = 200
_STATIC = Path(__file__).parent / "static"
_API = f"{PAGE_PATH}/api"
_QUERY = {"q": "text", "errors": "has_errors"} | {
    name: name for name in ("end", "min_wall_s", "since_s", "from_s", "to_s", "limit", "before")
}

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


def create_ui(source: StoreSource, *, keys: ApiKeys | None = None, names: Sequence[str] = ()) -> Starlette:
    """Everything below /ui, as an application of its own. Without keys it answers only to names of its own; `names`
    are more of them.
    """
    api, files = _Api(source), _Files(directory=_STATIC)
    routes = [
        Route(PAGE_PATH, files.page),
        Route(f"{PAGE_PATH}/", _leave_slash),
        Mount(f"{PAGE_PATH}/static", files),
        Route(f"{_API}/overview", api.overview),
        Route(f"{_API}/live", api.live),
        Route(f"{_API}/runs", api.runs),
        Route(f"{_API}/summary", api.summary),
        Route(f"{_API}/runs/{{id}}", api.run),
        Route(f"{_API}/runs/{{id}}/lint", api.lint),
    ]
    keys = keys or ApiKeys()
    own = [] if keys.current else [Middleware(TrustedHosts, names=names)]
    guarded = Mount("", routes=routes, middleware=[Middleware(_Guard, keys=keys), *own])
    return Starlette(routes=[guarded], exception_handlers={HTTPException: _refuse, HotloopError: _refuse})


class _Guard:
    """With keys, the API is for who carries one: of several keys, each is shown its own runs."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(_API):
            try:
                tenant = self._keys.current.admit(dict(scope["headers"]), scope["path"])
            except AccessDenied as error:
                raise HTTPException(error.status, str(error)) from None
            scope.setdefault("state", {})["sees_only"] = tenant.sees_only
        await self._app(scope, receive, send)


class _Files(StaticFiles):
    """The dashboard's own files, checked with the server before they are used again."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS | {"cache-control": "no-cache"})
        return response

    async def page(self, request: Request) -> Response:
        return await self.get_response("index.html", request.scope)


async def _leave_slash(request: Request) -> Response:
    return RedirectResponse("../ui", headers=HEADERS)


class _Api:
    """What the dashboard asks."""

    def __init__(self, source: StoreSource) -> None:
        self._source = source

    async def overview(self, request: Request) -> Response:
        about = self._source.about
        return _answer(about | {"has_live": False} if _sees_only(request) else about)

    async def live(self, request: Request) -> Response:
        """Live figures are those of all tenants together, so with several of them only an admin sees them."""
        live = None if _sees_only(request) else await self._source.live()
        if live is None:
            raise HTTPException(404, "nothing runs here: these are recorded runs")
        return _answer(live)

    async def runs(self, request: Request) -> Response:
        wanted = parse_filter(request.query_params)
        return _answer(await asyncio.to_thread(self._source.runs, wanted, _sees_only(request)))

    async def summary(self, request: Request) -> Response:
        wanted = _parse(request.query_params, SummaryFilter)
        return _answer(await asyncio.to_thread(self._source.summary, wanted, _sees_only(request)))

    async def run(self, request: Request) -> Response:
        """Who has seen it as it is hears so, and no more: a page that watches a run asks every second."""
        run_id, tenant = request.path_params["id"], _sees_only(request)
        version = await asyncio.to_thread(
            self._source.version, run_id, tenant
        )  # asked first: what comes meanwhile is news
        etag = f'"{version}"'
        if version and request.headers.get("if-none-match") == etag:
            return _answer(status=304, etag=etag)
        run = await asyncio.to_thread(self._source.run, run_id, tenant)
        if run is None:
            raise HTTPException(404, "there is no such run; it may have been too old to keep")
        return _answer(run, etag=etag)

    async def lint(self, request: Request) -> Response:
        findings = await asyncio.to_thread(self._source.lint, request.path_params["id"], _sees_only(request))
        if findings is None:
            raise HTTPException(404, "there is no linter here, or no such run")
        return _answer({"findings": findings})


def _sees_only(request: Request) -> str | None:
    """The tenant whose runs may be shown; None: all."""
    tenant: str | None = request.state.sees_only
    return tenant


def parse_filter(query: Mapping[str, str]) -> RunFilter:
    """From the query of an address. Raises HTTPException where that is nonsense."""
    wanted = _parse({_QUERY[name]: value for name, value in query.items() if name in _QUERY}, RunFilter)
    return replace(wanted, text=wanted.text[:_MAX_TEXT].strip(), limit=min(wanted.limit, MAX_RUNS))


def _parse(query: Mapping[str, str], kind: type[Filter]) -> Filter:
    names = {field.name for field in fields(kind)}
    given = {name: value for name, value in query.items() if value and name in names}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        raise HTTPException(400, f"{place.rstrip('`')}: {reason}") from None


def _answer(value: object = None, status: int = 200, **headers: str) -> Response:
    body = b"" if status == 304 else msgspec.json.encode(value)
    return Response(body, status, {**HEADERS, "cache-control": "no-store", **headers}, "application/json")


async def _refuse(request: Request, error: Exception) -> Response:
    """Of ours: the store cannot be read, or the engine does not answer."""
    status, message = (error.status_code, error.detail) if isinstance(error, HTTPException) else (503, str(error))
    return _answer({"error": {"message": message}}, status)
