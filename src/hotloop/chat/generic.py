"""Tools for models whose template knows none: hotloop words them into the messages itself, as Hermes models read them.

The same tools always give the same text, and a later turn only adds to it, so what was read before stays read.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from hotloop.core.message import Message, Tool, ToolCall

_INSTRUCTIONS = """\
You can call these functions:
{tools}

To call one, answer with its name and arguments, one such block for each call:
<tool_call>
{{"name": "function name", "arguments": {{"key": "value"}}}}
</tool_call>"""


def word_messages(
    messages: Sequence[Message], tools: Sequence[Tool], *, has_system: bool = True
) -> tuple[Message, ...]:
    """The conversation in roles any template knows: system (if it knows that one), user and assistant."""
    turns: list[Message] = []
    for is_result, group in groupby(messages, key=lambda message: message.role == "tool"):
        turns += _word_results(group) if is_result else [_word_calls(message) for message in group]  # noqa: B031
    if not tools:
        return tuple(turns)
    return _add_instructions(turns, word_tools(tools), "system" if has_system else "user")


def word_tools(tools: Sequence[Tool]) -> str:
    return _INSTRUCTIONS.format(tools="\n".join(map(_word_tool, tools)))


def _add_instructions(turns: list[Message], instructions: str, role: Any) -> tuple[Message, ...]:
    if turns and turns[0].role == role:
        content = (
            f"{turns[0].content}\n\n{instructions}" if role == "system" else f"{instructions}\n\n{turns[0].content}"
        )
        return (replace(turns[0], content=content.strip()), *turns[1:])
    return (Message(role, instructions), *turns)


def _word_tool(tool: Tool) -> str:
    words: dict[str, Any] = {"name": tool.name}
    if tool.description:
        words["description"] = tool.description
    words["parameters"] = dict(tool.parameters)
    return json.dumps(words, ensure_ascii=False)


def _word_calls(message: Message) -> Message:
    if not message.tool_calls:
        return message
    parts = [message.content] if message.content else []
    return replace(message, content="\n".join([*parts, *map(_word_call, message.tool_calls)]), tool_calls=())


def _word_call(call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments or "{}"}}}\n</tool_call>'


def _word_results(results: Iterable[Message]) -> list[Message]:
    """The results of one turn's calls, as one message."""
    words = (f"<tool_response>\n{result.content}\n</tool_response>" for result in results)
    return [Message("user", "\n".join(words))]
