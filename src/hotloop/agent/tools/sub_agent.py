"""An agent as the tool of another: a call is a run of its own, in a conversation of its own.

Runs at once are calls at once. What a run uses up is charged to the run it is called from, whose limits hold for both.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import pydantic

from hotloop.agent.conversation import Conversation
from hotloop.agent.tools.context import Surroundings
from hotloop.agent.tools.result import render_result
from hotloop.agent.tools.tool import ToolError, Traits, summarise
from hotloop.core.message import Tool


class _Answer(Protocol):
    @property
    def output(self) -> Any: ...


class Runner(Protocol):
    """An agent, as far as a call needs one."""

    async def run(self, prompt: str, *, conversation: Conversation, context: Sequence[Any]) -> _Answer: ...


class _Task(pydantic.BaseModel, extra="forbid"):
    prompt: str


_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "what is to be done, with all there is to know for it"}},
    "required": ["prompt"],
    "additionalProperties": False,
}


class SubAgent:
    """All calls begin alike, so each conversation is a branch of one that has not begun."""

    def __init__(self, agent: Runner, name: str, description: str, traits: Traits) -> None:
        self.spec = Tool(name, description, _PARAMETERS)
        self.traits = traits
        self._agent = agent
        self._root = Conversation()

    async def run(self, arguments: str, surroundings: Surroundings) -> str:
        try:
            task = _Task.model_validate_json(arguments or "{}")
        except pydantic.ValidationError as error:
            raise ToolError(f"the arguments are wrong: {summarise(error)}") from None
        # The caller's things are at hand for the tools of this run, too; its Run among them makes it the caller.
        result = await self._agent.run(task.prompt, conversation=self._root.fork(), context=surroundings.things)
        return render_result(result.output)
