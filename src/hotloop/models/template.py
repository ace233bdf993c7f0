"""A model's own chat template: a conversation's messages and tools to the text of a prompt.

A template is code from a file somebody downloaded: it runs in a process of its own (see `renderer`), and whatever goes
wrong in it is the request's error. Knows nothing of tokens.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.core.errors import ModelError, RequestError
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.models.renderer import TemplateFailed, shared_renderer

# How a call looks, `{{"name": <function-name>, ...}}`, as if the braces were to be escaped: models imitate that. It is
# no expression, so it can only stand in a string.
_DOUBLED_BRACES = re.compile(r'\{(\{\\?"name\\?": <[\w-]+>, \\?"arguments\\?": <[\w-]+>\})\}')


class ChatTemplate:
    """Messages and tools to the text of a prompt."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        has_own = "reasoning_content" not in source and re.search(r"\.thinking\b|['\"]thinking['\"]", source)
        self._thought_key = "thinking" if has_own else "reasoning_content"  # as most call it
        self._text = _DOUBLED_BRACES.sub(r"\1", source)
        try:
            shared_renderer().compile(self._text)
        except TemplateFailed as error:
            raise ModelError(f"the chat template cannot be read: {error}") from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt; `extra` reaches the template as variables, such as `enable_thinking`."""
        variables = {
            **self._tokens,
            **(extra or {}),
            "messages": [_message(message, self._thought_key) for message in messages],
            "tools": [_tool(tool) for tool in tools] or None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return shared_renderer().render(self._text, variables)
        except TemplateFailed as error:
            raise RequestError(f"the chat template failed: {error}", param="messages") from None


def _message(message: Message, thought_key: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if thought := "".join(thought.shown for thought in message.thoughts):
        fields[thought_key] = thought
    if message.tool_calls:
        fields["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    return fields


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
