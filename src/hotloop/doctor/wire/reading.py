"""What comes back over HTTP, read with an end to it: no answer is too long, and none is taken for what it is not."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeVar

import httpx
import msgspec

from hotloop.core.errors import RemoteError
from hotloop.router.translate import Translation

_MAX_BYTES = 8 * 2**20  # of a page or an answer: far more than anything that is asked for here

_MAX_SAID = 300  # characters of an error that are quoted

Page = TypeVar("Page")


class _Error(msgspec.Struct):
    """OpenAI and Anthropic have an `error` with a message, SGLang a message, others what they like."""

    error: Any = None
    message: str | None = None


async def read_pieces(
    response: httpx.Response, translation: Translation | None, is_streamed: bool
) -> AsyncGenerator[bytes, None]:
    """In the shape of chat completions. What is translated is cut where it came in pieces."""
    if not is_streamed:
        whole = await read_whole(response)
        yield translation.answer(200, whole)[1] if translation else whole
        return
    stream = translation.stream() if translation else None
    async with aclosing(_bounded(response)) as pieces:
        async for data in pieces:
            if said := stream.feed(data) if stream else data:
                yield said
    if stream and (said := stream.end()):
        yield said


async def read_whole(response: httpx.Response) -> bytes:
    async with aclosing(_bounded(response)) as pieces:
        return b"".join([data async for data in pieces])


async def _bounded(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    num_bytes = 0
    async for data in response.aiter_bytes():
        num_bytes += len(data)
        if num_bytes > _MAX_BYTES:
            raise RemoteError(f"{response.url} sent more than {_MAX_BYTES // 2**20} MiB, which nobody asked for")
        yield data


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


def read_words(body: bytes) -> str:
    """What an error says, in a line: its message where it has one, else how it begins."""
    try:
        error = msgspec.json.decode(body, type=_Error)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        error = _Error()
    inner = error.error if error.error is not None else error
    message = inner.get("message") if isinstance(inner, dict) else inner if isinstance(inner, str) else error.message
    said = message if isinstance(message, str) and message else body[:1000].decode(errors="replace")
    return " ".join(said.split())[:_MAX_SAID]
