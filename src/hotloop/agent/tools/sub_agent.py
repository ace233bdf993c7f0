"""An agent as the tool of another: a call is a run of its own, in a conversation of its own.

Runs at once are calls at once. What a run uses up is charged to the run it is called from, whose limits hold for both.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pydantic

from hotloop.agent.conversation import Conversation
from hotloop.agent.tools.context import Surroundings
from hotloop.agent.tools.tool import ToolError, Traits, plain_schema, render_result, summarise
from hotloop.core.message import Tool


class _Task(pydantic.BaseModel, extra="forbid"):
    prompt: str = pydantic.Field(description="what is to be done, with all there is to know for it")


class SubAgent:
    """All calls begin alike, so each conversation is a branch of one that has not begun."""

    def __init__(self, run: Callable[..., Awaitable[Any]], name: str, description: str, traits: Traits) -> None:
        """`run` is the agent's."""
        self.spec = Tool(name, description, plain_schema(_Task))
        self.traits = traits
        self._run = run
        self._root = Conversation()

    async def run(self, arguments: str, surroundings: Surroundings) -> str:
        try:
            task = _Task.model_validate_json(arguments or "{}")
        except pydantic.ValidationError as error:
            raise ToolError(f"the arguments are wrong: {summarise(error)}") from None
        # The caller's things are at hand for the tools of this run, too; its Run among them makes it the caller.
        result = await self._run(task.prompt, conversation=self._root.fork(), context=surroundings.things)
        return render_result(result.output)
