"""A model's own chat template, run in jinja2's sandbox the way Hugging Face runs it.

A template is code from a file somebody downloaded: its rounds, its products and its output are bounded, and whatever
goes wrong in it is the request's error. Knows nothing of tokens.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hotloop.core.errors import ModelError, RequestError
from hotloop.core.message import Message, Tool, ToolCall

MAX_CHARS = 64 << 20
MAX_ROUNDS = 1_000_000
MAX_EXPONENT = 1000

_rounds_left: ContextVar[int] = ContextVar("rounds_left")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class ChatTemplate:
    """Messages and tools to the text of a prompt."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().from_string(source)
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
        extra: Mapping[str, Any] = _NOTHING,
    ) -> str:
        """The prompt; `extra` reaches the template as variables, such as `enable_thinking`."""
        variables = {
            **self._tokens,
            **extra,
            "messages": [_message(message) for message in messages],
            "tools": [_tool(tool) for tool in tools] or None,
            "add_generation_prompt": add_generation_prompt,
        }
        _rounds_left.set(MAX_ROUNDS)
        try:
            return _join_bounded(self._template.generate(variables))
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


def _message(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
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


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose loops share one budget of rounds and whose products stay small."""

    intercepted_binops = frozenset({"*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None).set_lineno(loop.lineno)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        for factor, other in ((left, right), (right, left)):
            is_repeated = isinstance(factor, int) and isinstance(other, str | list | tuple)
            if is_repeated and factor * len(other) > MAX_CHARS:
                raise SecurityError(f"the template makes more than {MAX_CHARS} of something")
        if operator == "**" and not (isinstance(right, int | float) and abs(right) <= MAX_EXPONENT):
            raise SecurityError(f"the template raises to a power above {MAX_EXPONENT}")
        return super().call_binop(context, operator, left, right)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock])
    environment.filters |= {"tojson": _to_json, "_counted": _counted}
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


def _counted(items: Any) -> Iterator[Any]:
    for item in items:
        left = _rounds_left.get()
        if left <= 0:
            raise SecurityError(f"the template loops more than {MAX_ROUNDS} times")
        _rounds_left.set(left - 1)
        yield item


def _join_bounded(parts: Iterable[str]) -> str:
    kept, num_chars = [], 0
    for part in parts:
        num_chars += len(part)
        if num_chars > MAX_CHARS:
            raise SecurityError(f"the template writes more than {MAX_CHARS} characters")
        kept.append(part)
    return "".join(kept)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as Hugging Face has it: jinja2's own escapes what HTML would mind."""
    if isinstance(value, _RawArguments) and not (indent or separators or sort_keys):
        return value._text
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
