"""Handing the conversation over: a tool whose call makes another agent answer from the next turn on."""

from typing import Any

from hotloop.agent.tools.tool import RunContext, ToolOptions, read_object
from hotloop.core.message import Tool

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


class Handoff:
    """The other agent reads all that was said, with its own instructions in front of it, and has its own tools."""

    options = ToolOptions(idempotent=True)
    wants = ()

    def __init__(self, agent: Any, name: str, description: str) -> None:
        self.agent = agent
        self.spec = Tool(name, description, _NO_ARGUMENTS)

    def check(self, arguments: str) -> None:
        read_object(arguments)

    async def run(self, arguments: str, run_context: RunContext) -> str:
        return f"{self.spec.name} has the conversation now"
