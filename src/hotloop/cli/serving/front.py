"""The process that speaks HTTP for an engine in another one: `python -m hotloop.cli.serving.front LINK LISTENER`, both
numbers of open sockets. `hotloop serve` starts it, and tells it to stop: whoever sends a signal to all processes of a
service, as systemd does, would else have told it twice, which ends what runs at once.
"""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from hotloop.cli.serving.fronts import Begin, read_served
from hotloop.cli.serving.http import serve_http
from hotloop.core.config import parse_bytes
from hotloop.core.errors import EngineClosed
from hotloop.http.logs import start_logging
from hotloop.models.model import load_model
from hotloop.server.app import HttpServer
from hotloop.server.fronts.link import read_one
from hotloop.server.fronts.messages import Told
from hotloop.server.fronts.remote import RemoteEngine


class _Front:
    def __init__(self, link: socket.socket, listener: socket.socket) -> None:
        told = msgspec.msgpack.decode(read_one(link), type=Told)
        begin = msgspec.convert(told.value, Begin)
        self._served = self._latest = begin.served
        self._begin = begin
        self._listener = listener
        self._server: HttpServer | None = None
        start_logging(self._served.server)
        model = load_model(self._served.model.model, load_format=self._served.model.load_format)
        grammar_bytes = parse_bytes(self._served.engine.grammar_memory)
        self._engine = RemoteEngine(
            link, begin.facts, model.tokenizer, model.template, grammar_bytes=grammar_bytes, on_told=self._hear
        )

    def run(self) -> None:
        serve_http(
            self._engine,
            self._served,
            self._listener,
            (lambda: self._latest) if self._begin.can_reload else None,
            on_made=self._use,
            on_ready=lambda: self._engine.tell("ready"),
            on_closing=self._close_listener,
            own_socket=Path(self._begin.folder) / str(os.getpid()) if self._begin.folder else None,
            is_first=self._begin.is_first,
            heeds_signals=False,
        )

    def _use(self, server: HttpServer) -> None:
        self._server = server

    def _hear(self, what: str, value: Any) -> None:
        assert self._server  # it listens to the link
        if what == "stop":
            self._server.stop()
        elif what == "reload":
            self._latest = read_served(value)
            self._server.reload()

    async def _close_listener(self) -> None:
        with suppress(EngineClosed):  # its process is gone, and its end of the listener with it
            await self._engine.ask("close_listener")


def main() -> None:
    link, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    _Front(link, listener).run()


if __name__ == "__main__":
    main()
