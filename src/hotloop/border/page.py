"""A page beside an API: everything below /ui is the page's, which looks after its own key."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

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
