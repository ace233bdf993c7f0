"""The final answer as a value of a type: a tool the model calls when it is done, whose arguments are the answer.

This works wherever tools do, beside other tools, and is strict where calls are.
"""

from typing import Any

import pydantic

from hotloop.agent.tools.context import Surroundings
from hotloop.agent.tools.tool import ToolError, Traits, plain_schema, summarise
from hotloop.core.message import Tool

NAME = "final_answer"


class FinalAnswer:
    """The end of one run."""

    traits = Traits()

    def __init__(self, output: Any) -> None:
        self._type: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(output)
        self._is_wrapped = plain_schema(self._type).get("type") != "object"
        if self._is_wrapped:  # a call's arguments are always an object
            config = pydantic.ConfigDict(extra="forbid")
            self._type = pydantic.TypeAdapter(pydantic.create_model("Answer", __config__=config, value=(output, ...)))
        self.spec = Tool(NAME, "Call this when you are done, with the answer.", plain_schema(self._type))
        self.is_given = False
        self.value: Any = None

    async def run(self, arguments: str, surroundings: Surroundings) -> str:
        try:
            answer = self._type.validate_json(arguments or "{}")
        except pydantic.ValidationError as error:
            raise ToolError(f"the answer is wrong: {summarise(error)}") from None
        self.value, self.is_given = answer.value if self._is_wrapped else answer, True
        return "accepted"
