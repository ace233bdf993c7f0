"""A wire to a replica that is cut, as when its machine is lost: after so many bytes of an answer."""

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit


class Cutter:
    """Passes bytes between whoever connects and a replica. With `cut_after` set, the connection on which a request is
    posted next is reset behind so many bytes of what comes back."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self.url = ""
        self.cut_after: int | None = None
        self.num_cut = 0
        self.num_bytes = 0
        """Of the answer to the latest request that was posted."""

    async def __aenter__(self) -> "Cutter":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            sending = asyncio.create_task(self._send(reader, far_writer))
            try:
                await self._return(far_reader, writer)
            finally:
                sending.cancel()
                far_writer.close()
                writer.close()

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if data.startswith(b"POST"):
                self.num_bytes = 0
            writer.write(data)
        writer.close()

    async def _return(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_posted = False
        while data := await reader.read(1 << 16):
            is_posted = is_posted or b"text/event-stream" in data
            left = self.cut_after - self.num_bytes if is_posted and self.cut_after is not None else len(data) + 1
            self.num_bytes += len(data) if is_posted else 0
            if left <= len(data):
                self.cut_after = None
                self.num_cut += 1
                writer.write(data[: max(0, left)])
                await writer.drain()
                writer.transport.abort()
                return
            writer.write(data)
            await writer.drain()
