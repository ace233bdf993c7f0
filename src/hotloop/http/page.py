"""The dashboard beside an API: everything below /ui is its own, with its own check of keys. And which host names both
accept where there is no key.
"""

import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from hotloop.http.requests import OPEN_PATHS, render_refusal

PAGE_PATH = "/ui"

Application = Callable[[Any, Any, Any], Awaitable[None]]


class WithPage:
    """An ASGI application that is two."""

    def __init__(self, app: Application, page: Application) -> None:
        self._app = app
        self._page = page

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        is_page = path == PAGE_PATH or path.startswith(f"{PAGE_PATH}/")
        await (self._page if is_page else self._app)(scope, receive, send)


# Nobody can own a name without a dot, or below one of these, where a browser would look it up.
_PRIVATE_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.(localhost|local|internal|svc)|[\w-]+", re.ASCII)


class TrustedHosts:
    """An application without a key: only requests that call it by a name of its own reach it."""

    def __init__(self, app: Application, names: Collection[str]) -> None:
        self.app = app
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        host = dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1")
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or is_own_name(host, self._names):
            await self.app(scope, receive, send)
            return
        message = "without an API key this is only answered at an IP address, localhost or a name in allowed_hosts"
        headers, body = render_refusal(403, "unknown_host", message)
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def is_own_name(host: str, names: Collection[str]) -> bool:
    """Whether a `Host` header is an address, one of the names, or a private one. Any other may have been pointed here
    by whoever owns it, to have a browser read this for a page of theirs (DNS rebinding).
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if (name and name in names) or _PRIVATE_NAME.fullmatch(name):
            return True
        ip_address(name)
    except ValueError:
        return False
    return True
