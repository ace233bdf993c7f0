"""Families of models that write a tool call as a JSON object with its name, and which family a model belongs to."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, ClassVar

from hotloop.chat import lark
from hotloop.chat.gemma_calls import GemmaFormat
from hotloop.chat.harmony import CHANNEL, CONSTRAIN, END, MARKS, MESSAGE, START, HarmonyParser
from hotloop.chat.json_calls import JsonCallParser, JsonMarks
from hotloop.chat.named_formats import DeepSeekFormat, KimiFormat
from hotloop.chat.stream import CallParser
from hotloop.chat.tool_format import ToolFormat, Tools, Turns
from hotloop.chat.tools import ToolChoice
from hotloop.chat.xml_calls import DsmlFormat, GlmFormat, MiniMaxFormat, QwenCoderFormat
from hotloop.core.config import ToolFormatName
from hotloop.core.errors import ConfigError
from hotloop.core.grammar import Grammar
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer

CALL, END_CALL = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_MISTRAL_HEAD = re.compile(r"\s*(?P<name>[\w.-]{1,64})(?:\[CALL_ID\]\w{0,64})?(?:\[ARGS\])?\s*")
_ADDRESSED = re.compile(
    rf"{re.escape(START)}assistant to=(functions\.[\w.-]+){re.escape(CHANNEL)}commentary json{re.escape(MESSAGE)}"
)
_PHI_CLOSING = "<|/tool_call|>"
_LEAD = r"[\s\x1c-\x1f]*\{\s*(?:\{\s*)?"  # with all that Python counts as a space; the brace may be doubled
_NAME_KEY = lark.literal('{"name": "')
# Templates that have all of these words are of the family.
_WORDS: dict[ToolFormatName, tuple[str, ...]] = {
    "harmony": (CHANNEL, MESSAGE),
    "deepseek_v32": ("｜DSML｜",),
    "deepseek": ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
    "kimi": ("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
    "granite": ("<|tool_call|>",),
    "minimax": ("<minimax:tool_call>", "<invoke name="),
    "glm": (CALL, "<arg_key>", "<arg_value>"),
    "qwen3_coder": ("<function=", "<parameter="),
}
_INSTRUCTIONS = """\
You can call these functions:
{tools}

To call one, answer with its name and arguments, one such block for each call:
<tool_call>
{{"name": "function name", "arguments": {{"key": "value"}}}}
</tool_call>"""


class HermesFormat(ToolFormat):
    """`<tool_call>`, a newline, a JSON object, a newline, `</tool_call>`: Hermes, Qwen 2.5, Qwen 3 and many others."""

    name: ClassVar[ToolFormatName] = "hermes"
    opening = CALL

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice) -> list[str]:
        opening, closing = lark.marker(CALL, self._tokenizer), lark.marker(END_CALL, self._tokenizer)
        more = f' ( "\\n" {opening} call )*' if choice.is_parallel else ""
        is_required = choice.mode == "required"
        return [
            *lark.start(f"call{more}", CALL, choice, self._tokenizer, has_named=True),
            f'call: "\\n" {_NAME_KEY} {lark.functions(chosen)} "}}\\n" {closing}',
            *lark.json_functions(chosen, "arguments"),
            *([] if is_required else [*lark.fenced_rules(chosen), *lark.alone_rules(chosen)]),
        ]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return JsonCallParser(JsonMarks(CALL, END_CALL, has_fences=True), tools)


class GenericFormat(HermesFormat):
    """For templates that know no tools, or none of these families: calls as Hermes writes them, worded by hotloop."""

    name = "generic"

    def __init__(self, tokenizer: Tokenizer, source: str = "") -> None:
        super().__init__(tokenizer, source)
        self._has_system = "System role not supported" not in source

    def prepare(self, messages: Turns, tools: Tools) -> tuple[Turns, Tools]:
        return word_messages(messages, tools, has_system=self._has_system), ()


class LlamaFormat(ToolFormat):
    """`{"name": ..., "parameters": {...}}` as the whole answer, or behind <|python_tag|>: Llama 3."""

    name = "llama3"
    opening = PYTHON_TAG

    def __init__(self, tokenizer: Tokenizer, source: str = "") -> None:
        super().__init__(tokenizer, source)
        self._is_single = "single tool-calls" in source  # it refuses a history with two calls in one turn

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice) -> list[str]:
        more = ' ( "; " call )*' if choice.is_parallel and not self._is_single else ""
        return [
            *([f"start: call{more}"] if choice.mode == "required" else self._prose(chosen, more)),
            f"call: {_NAME_KEY} function",
            f'function: {lark.functions(chosen)} "}}"',
            *lark.json_functions(chosen, "parameters"),
        ]

    def _prose(self, tools: Sequence[Tool], more: str) -> list[str]:
        """An answer that begins like a call must be one: nothing marks it but its first words."""
        alternatives, rules = lark.prose(f"call{more}", PYTHON_TAG, self._tokenizer)
        fenced = f"fenced* {lark.either(alternatives)}" if more else lark.either([*alternatives, "fenced"])
        begun = [f'named ": \\"" function{more}', f'typed ", \\"name\\": \\"" function{more}']
        rules += [rf'named[lazy]: /{_LEAD}"name"/', rf'typed[lazy]: /{_LEAD}"type"\s*:\s*"function"/']
        return [f"start: {lark.either([fenced, *begun])}", *rules, *lark.fenced_rules(tools)]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return JsonCallParser(JsonMarks(PYTHON_TAG, joiner=";", is_bare=True, has_fences=True), tools)


class MistralFormat(ToolFormat):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`; newer templates show `[TOOL_CALLS]name[ARGS]{...}`."""

    name = "mistral"
    opening = TOOL_CALLS

    def __init__(self, tokenizer: Tokenizer, source: str = "") -> None:
        super().__init__(tokenizer, source)
        if not self.keep_special:
            raise ConfigError(f"tool_format 'mistral' cannot work: the model has no token {TOOL_CALLS}")
        self._has_args = ARGS in source
        self._has_ids = self._has_args and CALL_ID in source
        self._bracket = " [" if f"{TOOL_CALLS} " in source else "["

    def prepare(self, messages: Turns, tools: Tools) -> tuple[Turns, Tools]:
        return tuple(map(_shorten_ids, messages)), tools

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice) -> list[str]:
        if self._has_args:
            return self._named(chosen, choice)
        more = ' ( ", " call )*' if choice.is_parallel else ""
        return [
            *lark.start(f'{lark.literal(self._bracket)} call{more} "]"', TOOL_CALLS, choice, self._tokenizer),
            f'call: {_NAME_KEY} {lark.functions(chosen)} "}}"',
            *lark.json_functions(chosen, "arguments"),
        ]

    def _named(self, chosen: Sequence[Tool], choice: ToolChoice) -> list[str]:
        more = f" ( {lark.marker(TOOL_CALLS, self._tokenizer)} call )*" if choice.is_parallel else ""
        call_id = f"{lark.marker(CALL_ID, self._tokenizer)} /{'[a-zA-Z0-9]' * 9}/ " if self._has_ids else ""
        between = call_id + lark.marker(ARGS, self._tokenizer)
        return [
            *lark.start(f"call{more}", TOOL_CALLS, choice, self._tokenizer),
            f"call: {lark.functions(chosen)}",
            *(f"f{i}: {lark.literal(tool.name)} {between} {lark.arguments(tool)}" for i, tool in enumerate(chosen)),
        ]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return JsonCallParser(JsonMarks(TOOL_CALLS, "]", joiner=",", head=_MISTRAL_HEAD))


class GraniteFormat(ToolFormat):
    """`<|tool_call|>[{"name": ..., "arguments": {...}}]`: Granite 3, and Phi 4 mini with a closing."""

    name = "granite"
    opening = "<|tool_call|>"

    def __init__(self, tokenizer: Tokenizer, source: str = "") -> None:
        super().__init__(tokenizer, source)
        self._closing = _PHI_CLOSING if _PHI_CLOSING in source else ""
        self._words_calls = "tool_calls" in source

    def prepare(self, messages: Turns, tools: Tools) -> tuple[Turns, Tools]:
        """Granite's templates leave calls out of what they are given back."""
        return messages if self._words_calls else tuple(map(self._word, messages)), tools

    def _word(self, message: Message) -> Message:
        if not message.tool_calls:
            return message
        calls = ", ".join(map(_object, message.tool_calls))
        return replace(message, content=f"{message.content}{self.opening}[{calls}]{self._closing}", tool_calls=())

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice) -> list[str]:
        more = ' ( ", " call )*' if choice.is_parallel else ""
        closing = lark.spell(self._tokenizer, self._closing)
        body = f'"[" call{more} "]" {closing}'
        return [
            *lark.start(body, self.opening, choice, self._tokenizer, others={CALL: body}),
            f'call: {_NAME_KEY} {lark.functions(chosen)} "}}"',
            *lark.json_functions(chosen, "arguments"),
        ]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return JsonCallParser(JsonMarks(self.opening, "]", joiner=",", openings=(CALL,)))


class HarmonyFormat(ToolFormat):
    """A message of its own, addressed to the function: gpt-oss. There is one at a time: its end ends the answer."""

    name = "harmony"
    opening = CHANNEL

    def as_written(self, text: str) -> str:
        """The published template addresses the function before the channel, the model behind it."""
        return _ADDRESSED.sub(rf"{START}assistant{CHANNEL}commentary to=\1 {CONSTRAIN}json{MESSAGE}", text)

    def wrap(self, grammar: Grammar) -> Grammar:
        kinds = {"json_schema": "%json {}", "regex": "/{}/", "lark": "%lark {{\n{}\n}}"}
        body = grammar.text.replace("/", "\\/") if grammar.kind == "regex" else grammar.text
        return Grammar("lark", f"start: {self._head('final')} answer\nanswer: {kinds[grammar.kind].format(body)}\n")

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice) -> list[str]:
        head, end = lark.marker(CHANNEL, self._tokenizer), lark.marker(MESSAGE, self._tokenizer)
        call = f'{head} "commentary to=functions." {lark.functions(chosen)}'
        constrain = f'" " {lark.marker(CONSTRAIN, self._tokenizer)} "json" {end}'
        start = "start: call"
        if choice.mode != "required":
            next_message = f'{lark.marker(END, self._tokenizer)} {lark.marker(START, self._tokenizer)} "assistant"'
            spoken = f'{head} "commentary" {end} TEXT {next_message}'
            start = f'start: ( {spoken} )* ( call | {head} "final" {end} TEXT )\nTEXT: {lark.without(MARKS)}'
        return [
            start,
            f"call: {call}",
            *(f"f{i}: {lark.literal(tool.name)} {constrain} {lark.arguments(tool)}" for i, tool in enumerate(chosen)),
        ]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return HarmonyParser()

    def _head(self, channel: str) -> str:
        return (
            f"{lark.marker(CHANNEL, self._tokenizer)} {lark.literal(channel)} {lark.marker(MESSAGE, self._tokenizer)}"
        )


_FORMATS: dict[str, type[ToolFormat]] = {
    each.name: each
    for each in (
        *(HermesFormat, GenericFormat, LlamaFormat, MistralFormat),
        *(QwenCoderFormat, GlmFormat, MiniMaxFormat, DsmlFormat),
        *(DeepSeekFormat, KimiFormat, GraniteFormat, GemmaFormat, HarmonyFormat),
    )
}


def choose_format(template: ChatTemplate | None, tokenizer: Tokenizer, name: ToolFormatName = "auto") -> ToolFormat:
    """The format of this name, or the one the template speaks. Raises ConfigError for one that cannot work here."""
    source = template.source if template else ""
    takes_tools = re.search(r"\btools\b", source) is not None
    if name == "auto":
        name = _detect(source, tokenizer) if takes_tools else "generic"
    elif name != "generic" and not takes_tools:
        raise ConfigError(f"tool_format {name!r} cannot work: the model's chat template takes no tools; use 'generic'")
    return _FORMATS[name](tokenizer, source)


def _detect(source: str, tokenizer: Tokenizer) -> ToolFormatName:
    """By the words of the template, the rarest first."""
    for name, words in _WORDS.items():
        if all(word in source for word in words):
            return "generic" if any(_is_torn(word, tokenizer) for word in words) else name
    if CALL in source and re.search(r'"arguments\\?"', source):
        return "hermes"
    if "<|tool_call>" in source or "<start_function_call>" in source:
        return "gemma"
    if TOOL_CALLS in source and lark.special_id(TOOL_CALLS, tokenizer) is not None:
        return "mistral"
    if PYTHON_TAG in source or ('"parameters": ' in source and "ipython" in source):
        return "llama3"
    return "generic"


def _is_torn(word: str, tokenizer: Tokenizer) -> bool:
    """Whether it is a special token and no tag: no grammar could say tags of which a part is one."""
    return not word.startswith("<") and lark.special_id(word, tokenizer) is not None


def word_messages(messages: Sequence[Message], tools: Sequence[Tool], *, has_system: bool = True) -> Turns:
    """The conversation in roles any template knows: system (if it knows that one), user and assistant.

    The same tools always give the same text, and a later turn only adds to it, so what was cached stays cached.
    """
    turns: list[Message] = []
    for is_result, group in groupby(messages, key=lambda message: message.role == "tool"):
        if is_result:
            results = (f"<tool_response>\n{result.content}\n</tool_response>" for result in group)
            turns.append(Message("user", "\n".join(results)))
        else:
            turns += map(_word_calls, group)
    if not tools:
        return tuple(turns)
    instructions = word_tools(tools)
    role: Any = "system" if has_system else "user"
    if not turns or turns[0].role != role:
        return (Message(role, instructions), *turns)
    parts = (turns[0].content, instructions) if has_system else (instructions, turns[0].content)
    return (replace(turns[0], content="\n\n".join(parts).strip()), *turns[1:])


def word_tools(tools: Sequence[Tool]) -> str:
    worded = []
    for tool in tools:
        described = {"description": tool.description} if tool.description else {}
        worded.append({"name": tool.name, **described, "parameters": dict(tool.parameters)})
    return _INSTRUCTIONS.format(tools="\n".join(json.dumps(each, ensure_ascii=False) for each in worded))


def _word_calls(message: Message) -> Message:
    if not message.tool_calls:
        return message
    parts = [message.content] if message.content else []
    parts += [f"{CALL}\n{_object(call)}\n{END_CALL}" for call in message.tool_calls]
    return replace(message, content="\n".join(parts), tool_calls=())


def _object(call: ToolCall) -> str:
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments or "{}"}}}'


def _shorten_ids(message: Message) -> Message:
    """Mistral's templates refuse ids that are not nine letters and digits."""
    calls = tuple(replace(call, id=_short_id(call.id)) for call in message.tool_calls)
    return replace(message, tool_calls=calls, tool_call_id=message.tool_call_id and _short_id(message.tool_call_id))


def _short_id(call_id: str) -> str:
    is_short = len(call_id) == 9 and call_id.isalnum()
    return call_id if is_short else hashlib.sha256(call_id.encode()).hexdigest()[:9]
