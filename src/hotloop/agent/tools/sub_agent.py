"""An agent as a tool of another: a call is a run of its own, told and charged to the run it is called from."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pydantic

from hotloop.agent.conversation import Conversation
from hotloop.agent.tools.tool import RunContext, ToolOptions, plain_schema, validate
from hotloop.core.message import Tool


class _Task(pydantic.BaseModel, extra="forbid"):
    prompt: str = pydantic.Field(description="what is to be done, with all there is to know for it")


class SubAgent:
    """A call is a run and a conversation of its own; what it uses up is charged to the run it is called from.

    All calls begin alike, so each conversation is a branch of one that has not begun.
    """

    def __init__(
        self,
        run: Callable[..., Awaitable[Any]],
        name: str,
        description: str,
        traits: ToolOptions,
        wants: Sequence[type] = (),
    ) -> None:
        """`run` is the agent's, and `wants` what its tools want."""
        self.spec = Tool(name, description, plain_schema(_Task))
        self.traits = replace(traits, resumable=True)
        self.wants = wants
        self._run = run
        self._root = Conversation()

    def check(self, arguments: str) -> None:
        validate(_Task.model_validate_json, "arguments are", arguments)

    async def run(self, arguments: str, run_context: RunContext) -> Any:
        task = validate(_Task.model_validate_json, "arguments are", arguments)
        # The caller's things are at hand for the tools of this run, too; its Run among them makes it the caller.
        result = await self._run(task.prompt, conversation=self._root.fork(), context=run_context.things)
        return result.output
