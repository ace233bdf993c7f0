"""What comes back over HTTP, read with an end to it: no answer is too long, and none is taken for what it is not."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

import httpx
import msgspec

from hotloop.core.errors import RemoteError
from hotloop.wire.errors import read_failure

_MAX_BYTES = 8 * 2**20  # of a page or an answer: far more than anything that is asked for here
_MAX_SAID = 300  # characters of an error that are quoted

Page = TypeVar("Page")


async def read_bounded(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    num_bytes = 0
    async for data in response.aiter_bytes():
        num_bytes += len(data)
        if num_bytes > _MAX_BYTES:
            raise RemoteError(f"{response.url} sent more than {_MAX_BYTES // 2**20} MiB, which nobody asked for")
        yield data


async def read_whole(response: httpx.Response) -> bytes:
    async with aclosing(read_bounded(response)) as pieces:
        return b"".join([data async for data in pieces])


def read_ends(response: httpx.Response) -> tuple[str, str]:
    """The client's end of the connection, which no other has, and the address of the server's."""
    stream = response.extensions["network_stream"]
    client, server = (stream.get_extra_info(name) or ("", "") for name in ("client_addr", "server_addr"))
    return f"{client[0]}:{client[1]}", str(server[0])


def read_retry_after_s(given: str) -> float:
    try:
        return max(float(given), 0.0)
    except ValueError:
        return 1.0


def parse_page(status: int, body: bytes, page: type[Page]) -> Page | None:
    """None if it is another page, or none."""
    try:
        return msgspec.json.decode(body, type=page) if status == 200 else None
    except msgspec.MsgspecError:
        return None


def read_words(status: int, body: bytes) -> str:
    """What an error says, in a line: its message where it has one, else how it begins."""
    return " ".join(str(read_failure(status, body)).split())[:_MAX_SAID]
