"""An agent whose tools come from an MCP server (needs the extra: pip install 'hotloop[mcp]').

    hotloop run examples/notes_mcp.py "List the notes."

What the server says of its tools is honoured: those with `readOnlyHint` may run ahead of time and be tried again.
"""

import sys
from pathlib import Path

from hotloop import Agent, Limits
from hotloop.agent.mcp import McpServer

# Started when the first run begins, and kept for all of `async with agent:`; `hotloop run` does that.
notes = McpServer.stdio(sys.executable, str(Path(__file__).with_name("notes_server.py")))

agent = Agent(
    "http://localhost:8700/v1",
    tools=[notes],
    instructions="You keep the user's notes. Use the tools, then answer briefly.",
    limits=Limits(turns=8),
    max_tokens=1000,
    temperature=0.0,
)
