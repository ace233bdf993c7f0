"""An MCP server to test against: `python mcp_server.py` speaks stdio, `served_mcp` streamable HTTP on loopback."""

import asyncio
import base64

from mcp.server.mcpserver import Image, MCPServer
from mcp.types import AudioContent, BlobResourceContents, EmbeddedResource, ImageContent, TextContent, ToolAnnotations

NUM_GUESTS = 8


def make_server() -> MCPServer:
    server = MCPServer("tests", log_level="ERROR")
    _add_answering(server)
    _add_troubled(server)
    return server


def _add_answering(server: MCPServer) -> None:
    door = asyncio.Barrier(NUM_GUESTS)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    def listed() -> list[dict[str, int]]:
        return [{"id": 1}, {"id": 2}]

    @server.tool(name="dotted.name")
    def dotted() -> str:
        return "one\ntwo"

    @server.tool()
    def picture() -> Image:
        return Image(data=b"not really", format="png")

    @server.tool(structured_output=False)
    def paper() -> list[TextContent | EmbeddedResource]:
        bill = _resource(b"%PDF-1.7", "application/pdf", "bill.pdf")
        return [TextContent(text="Here it is:"), bill, _resource(b"PK", "application/zip", "a.zip")]

    @server.tool(structured_output=False)
    def broken_picture() -> ImageContent:
        return ImageContent(data="no base64", mime_type="image/png")

    @server.tool(structured_output=False)
    def sound() -> AudioContent:
        return AudioContent(data="AAAA", mime_type="audio/wav")

    @server.tool()
    def long(num_chars: int) -> str:
        return "x" * num_chars

    @server.tool()
    async def meet() -> str:
        """Nobody leaves before all are there."""
        await door.wait()
        return "met"


def _resource(data: bytes, kind: str, name: str) -> EmbeddedResource:
    blob = base64.b64encode(data).decode()
    return EmbeddedResource(resource=BlobResourceContents(uri=f"file:///{name}", mime_type=kind, blob=blob))


def _add_troubled(server: MCPServer) -> None:
    @server.tool()
    def refuse(reason: str) -> str:
        raise ValueError(reason)

    @server.tool()
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"


if __name__ == "__main__":
    make_server().run()
