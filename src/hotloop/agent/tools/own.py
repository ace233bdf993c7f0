"""Tools the runtime makes itself: the final answer as a value of a type, and an agent as the tool of another."""

from collections.abc import Awaitable, Callable
from typing import Any

import pydantic

from hotloop.agent.conversation import Conversation
from hotloop.agent.tools.tool import Surroundings, ToolError, Traits, plain_schema, render_result, summarise
from hotloop.core.message import Tool

FINAL_ANSWER = "final_answer"


class FinalAnswer:
    """The model calls it when it is done: its arguments are the answer. This works wherever tools do."""

    traits = Traits()

    def __init__(self, output: Any) -> None:
        self._type: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(output)
        self._is_wrapped = plain_schema(self._type).get("type") != "object"
        if self._is_wrapped:  # a call's arguments are always an object
            config = pydantic.ConfigDict(extra="forbid")
            self._type = pydantic.TypeAdapter(pydantic.create_model("Answer", __config__=config, value=(output, ...)))
        self.spec = Tool(FINAL_ANSWER, "Call this when you are done, with the answer.", plain_schema(self._type))
        self.is_given = False
        self.value: Any = None

    async def run(self, arguments: str, surroundings: Surroundings) -> str:
        try:
            answer = self._type.validate_json(arguments or "{}")
        except pydantic.ValidationError as error:
            raise ToolError(f"the answer is wrong: {summarise(error)}") from None
        self.value, self.is_given = answer.value if self._is_wrapped else answer, True
        return "accepted"


class _Task(pydantic.BaseModel, extra="forbid"):
    prompt: str = pydantic.Field(description="what is to be done, with all there is to know for it")


class SubAgent:
    """A call is a run and a conversation of its own; what it uses up is charged to the run it is called from.

    All calls begin alike, so each conversation is a branch of one that has not begun.
    """

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
