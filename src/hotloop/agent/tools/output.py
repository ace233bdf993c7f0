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
        schema = plain_schema(self._type)
        self._is_wrapped = schema.get("type") != "object"
        if self._is_wrapped:
            definitions = schema.pop("$defs", {})
            schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
            schema |= {"additionalProperties": False} | ({"$defs": definitions} if definitions else {})
        self.spec = Tool(NAME, "Call this when you are done, with the answer.", schema)
        self.is_given = False
        self.value: Any = None

    async def run(self, arguments: str, surroundings: Surroundings) -> str:
        try:
            if self._is_wrapped:
                self.value = self._type.validate_python(_unwrap(arguments))
            else:
                self.value = self._type.validate_json(arguments or "{}")
        except pydantic.ValidationError as error:
            raise ToolError(f"the answer is wrong: {summarise(error)}") from None
        self.is_given = True
        return "accepted"


class _Wrapped(pydantic.BaseModel):
    value: Any


def _unwrap(arguments: str) -> Any:
    return _Wrapped.model_validate_json(arguments or "{}").value
