"""An MCP server that keeps notes, in memory: what examples/notes_mcp.py talks to over stdio."""

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("notes", log_level="WARNING")
notes = {"groceries": "bread, olives, coffee", "ideas": "a cache that explains itself"}


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def list_notes() -> list[str]:
    """The titles of all notes."""
    return sorted(notes)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read_note(title: str) -> str:
    """The text of a note."""
    return notes.get(title, f"there is no note {title!r}; there are {', '.join(sorted(notes))}")


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def write_note(title: str, text: str) -> str:
    """Write a note, in place of the one with the same title if there is one."""
    notes[title] = text
    return "written"


if __name__ == "__main__":
    server.run()
