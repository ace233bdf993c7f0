"""Tools of MCP servers, over stdio or streamable HTTP; needs the extra `mcp`.

    Agent(model, tools=[McpServer.stdio("python", "notes_server.py"), McpServer.http("http://localhost:9000/mcp")])

A connection lives in a task of its own, for the library wants to leave its contexts in the task that entered them, and
whoever closes a run may be another. Many calls go over one connection at once.
"""

import asyncio
import base64
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hotloop.agent.tools.result import Given, cut, render_result
from hotloop.agent.tools.tool import AgentTool, RunContext, ToolCrashed, ToolError, ToolOptions, read_object
from hotloop.core.errors import ConfigError
from hotloop.core.message import Attachment, Tool

try:
    import httpx2
    from mcp import Client, MCPError, StdioServerParameters, stdio_client
    from mcp import types as wire
    from mcp.client.streamable_http import streamable_http_client
except ImportError as error:
    raise ImportError(f"MCP servers need an extra: pip install 'hotloop[mcp]' ({error})") from None

_Connect = Callable[[], AbstractAsyncContextManager[Client]]

_CLOSED = ("Connection closed", "SSE stream ended")  # the library's words
_MAX_PAGES = 100
_MAX_ANSWER_BYTES = 64 << 20
_MAX_CLOSE_S = 15.0  # the library gives a server 2 s to go by itself, and then stops it
_MAX_ALIVE_S = 2.0  # one that has died fails at once
_SHOWN = {"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"}  # what all APIs take
_HTTP_TIMEOUT = httpx2.Timeout(30.0, read=None)  # how long a call may take is the tool's to say


@dataclass(frozen=True, slots=True)
class McpServer:
    """Where to find a server. `prefix` comes before the names of its tools, where two servers have the same. Without
    `shows_files` images and PDF in results are named, and not given to the model."""

    name: str
    connect: _Connect
    prefix: str
    timeout_s: float | None
    start_s: float
    shows_files: bool = True

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        prefix: str = "",
        timeout_s: float | None = 60.0,
        start_s: float = 30.0,
        shows_files: bool = True,
    ) -> "McpServer":
        """A server started for us. Of our environment it sees only what every program needs, and `env`."""
        parameters = StdioServerParameters(
            command=command, args=list(args), env=dict(env or {}), cwd=cwd, encoding_error_handler="replace"
        )  # by "strict" what is no UTF-8 ends the reading, and calls are not told
        name = " ".join((command, *args))
        return cls(name, lambda: _stdio(parameters), prefix, timeout_s, start_s, shows_files)

    @classmethod
    def http(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        prefix: str = "",
        timeout_s: float | None = 60.0,
        start_s: float = 30.0,
        shows_files: bool = True,
    ) -> "McpServer":
        """A server that runs somewhere, spoken to over streamable HTTP."""
        sent = dict(headers or {})
        return cls(url, lambda: _http(url, sent), prefix, timeout_s, start_s, shows_files)

    async def open(self, stack: AsyncExitStack) -> Sequence[AgentTool]:
        """Connect. Raises ConfigError if there is no server, or none that answers in time."""
        connection = _Connection(self.connect)
        stack.push_async_callback(connection.close)
        try:
            async with asyncio.timeout(self.start_s):
                client, tools = await asyncio.shield(connection.opened)  # who gives up waiting leaves it as it is
        except TimeoutError:
            raise ConfigError(f"the MCP server {self.name} did not answer within {self.start_s:g} s") from None
        except Exception as error:  # the library has no one kind for what goes wrong at the start
            raise ConfigError(f"the MCP server {self.name} cannot be used: {_reason(error)}") from None
        about: dict[str, Any] = {"prefix": self.prefix, "timeout_s": self.timeout_s, "shows_files": self.shows_files}
        return [McpTool(client, tool, **about) for tool in tools]

    async def is_alive(self, tools: Sequence[AgentTool]) -> bool:
        """Whether the server still answers: it is asked for its tools, since newer servers have no ping. A server that
        is busy with a call of another run is alive, though it answers late."""
        client = next((tool.client for tool in tools if isinstance(tool, McpTool)), None)
        if client is None:
            return True
        try:
            async with asyncio.timeout(_MAX_ALIVE_S):
                await client.list_tools(cache_mode="bypass")
        except TimeoutError:
            return True
        except Exception:  # as above: there is no one kind
            return False
        return True


class McpTool:
    """One tool of a server."""

    wants = ()

    def __init__(
        self,
        client: Client,
        tool: wire.Tool,
        *,
        prefix: str = "",
        timeout_s: float | None = 60.0,
        shows_files: bool = True,
    ) -> None:
        self.client = client
        self._shows_files = shows_files
        self._name = tool.name
        name = re.sub(r"[^A-Za-z0-9_-]", "_", prefix + tool.name)  # what every API allows
        self.spec = Tool(name, tool.description or tool.title or "", tool.input_schema)
        self.options = _read_hints(tool.annotations or wire.ToolAnnotations(), timeout_s)

    def check(self, arguments: str) -> None:
        """The server keeps to its schema itself."""
        read_object(arguments)

    async def run(self, arguments: str, run_context: RunContext) -> Given:
        try:
            result = await self.client.call_tool(self._name, read_object(arguments))
        except MCPError as error:
            if error.code == wire.CONNECTION_CLOSED and error.message.startswith(
                _CLOSED
            ):  # servers use the number as well
                raise ToolCrashed("the MCP server has gone") from None
            may_go_better = error.code in (wire.INTERNAL_ERROR, wire.CONNECTION_CLOSED)
            kind = ToolCrashed if may_go_better else ToolError
            raise kind(error.message) from None
        except ValueError:
            raise ToolError("the MCP server returned an invalid tool result") from None
        given = _read_value(result, shows_files=self._shows_files and not result.is_error)
        if result.is_error:
            raise ToolError(render_result(given.value))
        return given


class _Connection:
    """A client, entered and left by one task."""

    def __init__(self, connect: _Connect) -> None:
        self._connect = connect
        self._is_over = asyncio.Event()
        self.opened: asyncio.Future[tuple[Client, list[wire.Tool]]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(), name="mcp connection")

    async def close(self) -> None:
        if not self.opened.done():
            self._task.cancel()  # it may be waiting for a server that never answers
        self._is_over.set()
        _, late = await asyncio.wait({self._task}, timeout=_MAX_CLOSE_S)
        for task in late:
            task.cancel()

    async def _hold(self) -> None:
        try:
            async with self._connect() as client:
                tools = [tool async for tool in _list_tools(client)]
                if not self.opened.done():
                    self.opened.set_result((client, tools))
                await self._is_over.wait()
        except Exception as error:  # before the start it is why there is none; after the end nobody needs to know
            if not self.opened.done():
                self.opened.set_exception(error)


@asynccontextmanager
async def _stdio(parameters: StdioServerParameters) -> AsyncIterator[Client]:
    """What the server says on stderr is kept from the terminal; if it does not start, its last words say why."""
    with tempfile.TemporaryFile("w+", errors="replace") as words:
        started = False
        try:
            async with Client(stdio_client(parameters, errlog=words)) as client:
                started = True
                yield client
        except Exception as error:
            words.seek(0)
            lines = words.read().split("\n") if not started else []
            raise next((ConnectionError(line) for line in reversed(lines) if line.strip()), error) from None


@asynccontextmanager
async def _http(url: str, headers: dict[str, str]) -> AsyncIterator[Client]:
    hooks = {"response": [_bound_answer]}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=_HTTP_TIMEOUT, event_hooks=hooks) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def _bound_answer(response: httpx2.Response) -> None:
    """The library reads an answer that is no stream to its end, however far that is."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for piece in self._inner:
            num_bytes += len(piece)
            if num_bytes > _MAX_ANSWER_BYTES:
                raise httpx2.ReadError(f"an answer of more than {_MAX_ANSWER_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


def _read_hints(hints: wire.ToolAnnotations, timeout_s: float | None) -> ToolOptions:
    """With the defaults of the specification: what is not said to be harmless is not. Of a tool that is said to be both
    read-only and destructive the worse is believed."""
    return ToolOptions(
        read_only=bool(hints.read_only_hint) and not hints.destructive_hint,
        open_world=hints.open_world_hint is not False,
        idempotent=bool(hints.idempotent_hint),
        timeout_s=timeout_s,
    )


async def _list_tools(client: Client) -> AsyncIterator[wire.Tool]:
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            yield tool
        cursor = page.next_cursor
        if cursor is None:
            return


def _read_value(result: wire.CallToolResult, *, shows_files: bool) -> Given:
    """A text alone is as it is; pieces are better read as the one value they were made from, where that is there."""
    pieces = [_read_piece(piece) if shows_files else _render_piece(piece) for piece in result.content]
    attached = tuple(piece for piece in pieces if isinstance(piece, Attachment))
    is_text = len(result.content) == 1 and isinstance(result.content[0], wire.TextContent)
    if result.structured_content is not None and not is_text:
        return Given(result.structured_content, attached)
    texts = [str(piece) for piece in pieces]
    return Given(texts[0] if len(texts) == 1 else "\n".join(cut(text)[0] for text in texts), attached)


def _read_piece(piece: wire.ContentBlock) -> str | Attachment:
    """An image or a PDF as what it is; what no model could be given is named."""
    match piece:
        case wire.ImageContent(data=data, mime_type=kind):
            name = ""
        case wire.EmbeddedResource(resource=wire.BlobResourceContents(blob=data, mime_type=str(kind), uri=name)):
            pass
        case _:
            return _render_piece(piece)
    if kind not in _SHOWN:
        return _render_piece(piece)
    try:
        return Attachment.of(base64.b64decode(data, validate=True), kind, PurePosixPath(str(name)).name)
    except (ValueError, ConfigError):  # no base64, or too much of it
        return _render_piece(piece)


def _render_piece(piece: wire.ContentBlock) -> str:
    match piece:
        case wire.TextContent():
            return piece.text
        case wire.EmbeddedResource(resource=wire.TextResourceContents() as resource):
            return resource.text
        case wire.EmbeddedResource():
            return f"[{piece.resource.mime_type or 'bytes'} from {piece.resource.uri}, not shown]"
        case wire.ResourceLink():
            return f"[{piece.name}: {piece.uri}]"
    return f"[{piece.type}, {piece.mime_type}, not shown]"


def _reason(error: BaseException) -> str:
    """One line; of errors that happened together, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValueError):
        return "what it says is not MCP"
    return " ".join(str(error).split()) or type(error).__name__
