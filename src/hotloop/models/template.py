"""A model's own chat template, run in jinja2's sandbox the way Hugging Face runs it.

A template is code from a file somebody downloaded: it runs on a budget (see `bounds`), and whatever goes wrong in it is
the request's error. Knows nothing of tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from hotloop.core.errors import ModelError, RequestError
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.models.bounds import BoundedEnvironment, join_bounded, printed_size, spend_chars, start_budget

_MAX_DEPTH = 1000  # of nested JSON, before Python gives up
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
        try:
            self._template = _environment().from_string(_DOUBLED_BRACES.sub(r"\1", source))
        except TemplateSyntaxError as error:
            raise ModelError(f"the chat template is wrong at line {error.lineno}: {error.message}") from None
        except (TemplateError, RecursionError) as error:
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
        start_budget()
        try:
            return join_bounded(self._template.generate(variables))
        except Exception as error:  # a template can raise anything that Python can
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RequestError(f"the chat template failed: {reason:.500}", param="messages") from None


class _RawArguments(dict[str, Any]):
    """The arguments of a tool call: a mapping for templates that look inside, the exact text for those that print it.

    What the model wrote comes back character for character, so the prompt's tokens stay the ones already computed.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str, parsed: Mapping[str, Any]) -> None:
        super().__init__(parsed)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, behind: str) -> str:
        return self._text + behind

    def __radd__(self, before: str) -> str:
        return before + self._text


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
    try:
        parsed = json.loads(call.arguments)
    except ValueError:
        parsed = None
    arguments = _RawArguments(call.arguments, parsed) if isinstance(parsed, dict) else call.arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is only passed through."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock])
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as Hugging Face has it: jinja2's own escapes what HTML would mind."""
    if isinstance(value, _RawArguments) and not (indent or separators or sort_keys):
        return value._text
    if indent is None and separators is None:
        spend_chars(printed_size(value))
        return json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
    width = indent if isinstance(indent, int) else len(indent or "")
    spend_chars(width * _MAX_DEPTH)
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return join_bounded(encoder.iterencode(value))


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    spend_chars(256 * len(pattern))  # Python gives a pattern no more room than that
    return datetime.now().strftime(pattern)
