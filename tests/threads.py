"""A server in a thread of the tests' own process, on a free port of loopback."""

import socket
import threading
from typing import Self

import uvicorn


class ThreadedServer:
    """Uvicorn while its context is open; whoever connects before it has started waits for it."""

    def __init__(self, server: uvicorn.Server, port: int = 0) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=server.run, args=([self._listener],))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._listener.close()
