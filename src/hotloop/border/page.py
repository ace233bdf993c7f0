"""A page beside an API: everything below /ui is the page's, which looks after its own key. And by which names it may be
called where there is no key.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

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


def is_own_name(host: str, served_at: str) -> bool:
    """Whether a `Host` header is an address, or a name of this machine. Any other name may have been pointed here by
    whoever owns it, to have a browser read this for a page of theirs (DNS rebinding).
    """
    try:
        name = urlsplit(f"//{host}").hostname
        if name and name in ("localhost", served_at.lower()):
            return True
        ip_address(name or "")
    except ValueError:
        return False
    return True
