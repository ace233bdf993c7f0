"""The families of models that write tool calls in their own ways, one class each.

Each grammar lets the model write prose until the family's opening, unless a call is required; from the opening on it
must write calls, and after them nothing. Only behind a call that a tool's name alone gives away may prose go on. Each
parser reads what its grammar lets pass, and much that it does not.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from hotloop.chat import lark
from hotloop.chat.generic import word_messages
from hotloop.chat.json_calls import JsonCallParser, JsonMarks
from hotloop.chat.openings import alone_rules, fenced_rules
from hotloop.chat.stream import CallParser
from hotloop.chat.tools import ToolChoice
from hotloop.chat.xml_calls import CALL, END_CALL, FUNCTION, XmlCallParser
from hotloop.chat.xml_grammar import RAW_RULES, function_rules
from hotloop.core.grammar import Grammar
from hotloop.core.message import Message, Tool
from hotloop.models.tokenizer import Tokenizer

Turns = tuple[Message, ...]
Tools = tuple[Tool, ...]

PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME_KEY = lark.literal('{"name": "')


class _Family(ABC):
    """What the families share: the template words messages and tools itself, and a grammar binds what must be bound."""

    def prepare(self, messages: Turns, tools: Tools) -> tuple[Turns, Tools]:
        return messages, tools

    def grammar(self, tools: Sequence[Tool], choice: ToolChoice, tokenizer: Tokenizer) -> Grammar | None:
        if not choice.is_binding(tools):
            return None
        return lark.grammar(self.rules(choice.select(tools), choice, tokenizer))

    @abstractmethod
    def rules(self, chosen: Sequence[Tool], choice: ToolChoice, tokenizer: Tokenizer) -> list[str]:
        """The first is where an answer begins."""


class HermesFormat(_Family):
    """`<tool_call>`, a newline, a JSON object, a newline, `</tool_call>`: Hermes, Qwen 2.5, Qwen 3 and many others."""

    name = "hermes"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.keep_special = lark.special_id(CALL, tokenizer) is not None

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice, tokenizer: Tokenizer) -> list[str]:
        opening, closing = lark.marker(CALL, tokenizer), lark.marker(END_CALL, tokenizer)
        more = f' ( "\\n" {opening} call )*' if choice.is_parallel else ""
        is_required = choice.mode == "required"
        return [
            *lark.start(f"call{more}", CALL, choice, tokenizer, has_named=True),
            f'call: "\\n" {_NAME_KEY} {lark.functions(chosen)} "}}\\n" {closing}',
            *lark.json_functions(chosen, "arguments"),
            *([] if is_required else [*fenced_rules(chosen), *alone_rules(chosen)]),
        ]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return JsonCallParser(JsonMarks(CALL, END_CALL, has_fences=True), tools)


class GenericFormat(HermesFormat):
    """For templates that know no tools, or none of these families: calls as Hermes writes them, worded by hotloop."""

    name = "generic"

    def __init__(self, tokenizer: Tokenizer, *, has_system: bool = True) -> None:
        super().__init__(tokenizer)
        self._has_system = has_system

    def prepare(self, messages: Turns, tools: Tools) -> tuple[Turns, Tools]:
        return word_messages(messages, tools, has_system=self._has_system), ()


class LlamaFormat(_Family):
    """`{"name": ..., "parameters": {...}}` as the whole answer, or behind <|python_tag|>: Llama 3."""

    name = "llama3"

    def __init__(self, tokenizer: Tokenizer, *, is_single: bool = False) -> None:
        """`is_single`: the template refuses a history with two calls in one turn."""
        self.keep_special = lark.special_id(PYTHON_TAG, tokenizer) is not None
        self._is_single = is_single

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice, tokenizer: Tokenizer) -> list[str]:
        more = ' ( "; " call )*' if choice.is_parallel and not self._is_single else ""
        return [
            *([f"start: call{more}"] if choice.mode == "required" else self._prose(chosen, more, tokenizer)),
            f"call: {_NAME_KEY} function",
            f'function: {lark.functions(chosen)} "}}"',
            *lark.json_functions(chosen, "parameters"),
        ]

    def _prose(self, tools: Sequence[Tool], more: str, tokenizer: Tokenizer) -> list[str]:
        """An answer that begins like a call must be one: nothing marks it but its first words."""
        ways, rules = lark.prose(f"call{more}", PYTHON_TAG, tokenizer)
        fenced = f"fenced* {lark.either(ways)}" if more else lark.either([*ways, "fenced"])
        begun = [f'named ": \\"" function{more}', f'typed ", \\"name\\": \\"" function{more}']
        rules += [r'named[lazy]: /\s*\{\s*"name"/', r'typed[lazy]: /\s*\{\s*"type"\s*:\s*"function"/']
        return [f"start: {lark.either([fenced, *begun])}", *rules, *fenced_rules(tools)]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return JsonCallParser(JsonMarks(PYTHON_TAG, joiner=";", is_bare=True, has_fences=True), tools)


class MistralFormat(_Family):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`; newer templates show `[TOOL_CALLS]name[ARGS]{...}`."""

    name = "mistral"
    keep_special = True

    def __init__(self, source: str = "") -> None:
        self._has_args = ARGS in source
        self._has_ids = self._has_args and CALL_ID in source
        self._bracket = " [" if f"{TOOL_CALLS} " in source else "["

    def prepare(self, messages: Turns, tools: Tools) -> tuple[Turns, Tools]:
        return tuple(map(_shorten_ids, messages)), tools

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice, tokenizer: Tokenizer) -> list[str]:
        if self._has_args:
            return self._named(chosen, choice, tokenizer)
        more = ' ( ", " call )*' if choice.is_parallel else ""
        return [
            *lark.start(f'{lark.literal(self._bracket)} call{more} "]"', TOOL_CALLS, choice, tokenizer),
            f'call: {_NAME_KEY} {lark.functions(chosen)} "}}"',
            *lark.json_functions(chosen, "arguments"),
        ]

    def _named(self, chosen: Sequence[Tool], choice: ToolChoice, tokenizer: Tokenizer) -> list[str]:
        more = f" ( {lark.marker(TOOL_CALLS, tokenizer)} call )*" if choice.is_parallel else ""
        call_id = f"{lark.marker(CALL_ID, tokenizer)} /{'[a-zA-Z0-9]' * 9}/ " if self._has_ids else ""
        between = call_id + lark.marker(ARGS, tokenizer)
        return [
            *lark.start(f"call{more}", TOOL_CALLS, choice, tokenizer),
            f"call: {lark.functions(chosen)}",
            *(f"f{i}: {lark.literal(tool.name)} {between} {lark.arguments(tool)}" for i, tool in enumerate(chosen)),
        ]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return JsonCallParser(JsonMarks(TOOL_CALLS, "]", joiner=",", has_names=True))


class QwenCoderFormat(_Family):
    """`<tool_call>` with a `<function=name>` and its `<parameter=key>`s inside: Qwen 3 Coder and its kin."""

    name = "qwen3_coder"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.keep_special = lark.special_id(CALL, tokenizer) is not None

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice, tokenizer: Tokenizer) -> list[str]:
        opening, closing = lark.marker(CALL, tokenizer), lark.marker(END_CALL, tokenizer)
        function = lark.literal(f"\n{FUNCTION}")
        more = f' ( "\\n" {opening} {function} call )*' if choice.is_parallel else ""
        return [
            *lark.start(f"{function} call{more}", CALL, choice, tokenizer, bare=(FUNCTION, f"call{more}")),
            f'call: {lark.functions(chosen)} "\\n" {closing}',
            *(rule for i, tool in enumerate(chosen) for rule in function_rules(f"f{i}", tool)),
            *RAW_RULES,
        ]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return XmlCallParser(tools)


def _shorten_ids(message: Message) -> Message:
    """Mistral's templates refuse ids that are not nine letters and digits."""
    calls = tuple(replace(call, id=_short_id(call.id)) for call in message.tool_calls)
    return replace(message, tool_calls=calls, tool_call_id=message.tool_call_id and _short_id(message.tool_call_id))


def _short_id(call_id: str) -> str:
    is_short = len(call_id) == 9 and call_id.isalnum()
    return call_id if is_short else hashlib.sha256(call_id.encode()).hexdigest()[:9]
