"""Families of models that write the name of a tool call among their own marks, and the arguments behind it as JSON."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from hotloop.chat import lark
from hotloop.chat.json_calls import JsonCallParser, JsonMarks
from hotloop.chat.stream import CallParser
from hotloop.chat.tool_format import ToolFormat, Tools, Turns
from hotloop.chat.tools import ToolChoice
from hotloop.core.config import ToolFormatName
from hotloop.core.message import Message, Tool
from hotloop.models.tokenizer import Tokenizer

_FENCE = "\n```json\n"
_NUMBERED = re.compile(r"_(\d+)_[0-9a-f]+")


class NamedFormat(ToolFormat):
    """`opening`, calls in marks of their own, `closing`."""

    closing: ClassVar[str]
    call: ClassVar[str]
    end_call: ClassVar[str]
    head: ClassVar[re.Pattern[str]]
    """All that a parser takes between an opening and the arguments."""
    openings: ClassVar[tuple[str, ...]] = ()
    """More words that some models open all calls by."""
    joiner: str = ""
    """What stands between two calls."""

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice) -> list[str]:
        again = f"( {lark.spell(self._tokenizer, self.joiner, self.call)} call )*" if choice.is_parallel else ""
        begin, end = lark.spell(self._tokenizer, self.call), lark.spell(self._tokenizer, self.closing)
        behind_call = f"call {again} {end}"
        others = {self.call: behind_call, **dict.fromkeys(self.openings, f"{begin} {behind_call}")}
        return [
            *lark.start(f"{begin} {behind_call}", self.opening, choice, self._tokenizer, others=others),
            f"call: {lark.functions(chosen)}",
            *(
                f"f{i}: {self.name_rule(tool.name)} {lark.arguments(tool)} {self.end_rule()}"
                for i, tool in enumerate(chosen)
            ),
        ]

    @abstractmethod
    def name_rule(self, name: str) -> str:
        """What stands between the mark of one call and its arguments."""

    def end_rule(self) -> str:
        """What stands behind its arguments."""
        return lark.spell(self._tokenizer, self.end_call)

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return JsonCallParser(JsonMarks(self.opening, head=self.head, openings=(self.call, *self.openings)))


class DeepSeekFormat(NamedFormat):
    """`name<｜tool▁sep｜>{...}` between marks: DeepSeek V3.1. Before it, `function<｜tool▁sep｜>name` and a fence."""

    name: ClassVar[ToolFormatName] = "deepseek"
    opening, closing = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call, end_call, separator = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
    head = re.compile(
        r"\s*(?:<｜tool▁call▁begin｜>)?\s*(?:function<｜tool▁sep｜>)?(?P<name>[\w.-]{1,64})"
        r"\s*(?:<｜tool▁sep｜>)?\s*(?:```(?:json)?)?\s*"
    )

    def __init__(self, tokenizer: Tokenizer, source: str = "") -> None:
        super().__init__(tokenizer, source)
        self._has_fences = "```json" in source
        self.joiner = "\n" if self._has_fences else ""

    def name_rule(self, name: str) -> str:
        if self._has_fences:
            return f"{lark.spell(self._tokenizer, 'function', self.separator)} {lark.literal(f'{name}{_FENCE}')}"
        return f"{lark.literal(name)} {lark.spell(self._tokenizer, self.separator)}"

    def end_rule(self) -> str:
        return lark.spell(self._tokenizer, "\n```" if self._has_fences else "", self.end_call)


class KimiFormat(NamedFormat):
    """`functions.name:0<|tool_call_argument_begin|>{...}` between marks: Kimi K2, which numbers all calls."""

    name: ClassVar[ToolFormatName] = "kimi"
    opening, closing = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    call, end_call, separator = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"
    openings = ("<|tool_call_section_begin|>",)
    head = re.compile(
        r"\s*(?:<\|tool_call_begin\|>)?\s*(?:functions\.)?(?P<name>[\w.-]{1,64})(?::(?P<number>\d{1,6}))?"
        r"\s*(?:<\|tool_call_argument_begin\|>)?\s*"
    )

    def prepare(self, messages: Turns, tools: Tools) -> tuple[Turns, Tools]:
        """The template shows the ids of calls, which are to be what the model wrote there."""
        ids: dict[str, str] = {}
        for message in messages:
            for call in message.tool_calls:
                number = _NUMBERED.search(call.id)
                ids[call.id] = f"functions.{call.name}:{number[1] if number else len(ids)}"
        return tuple(_rename(message, ids) for message in messages), tools

    def name_rule(self, name: str) -> str:
        return f"{lark.literal(f'functions.{name}:')} /[0-9]{{1,6}}/ {lark.spell(self._tokenizer, self.separator)}"


def _rename(message: Message, ids: dict[str, str]) -> Message:
    calls = tuple(replace(call, id=ids[call.id]) for call in message.tool_calls)
    return replace(message, tool_calls=calls, tool_call_id=ids.get(message.tool_call_id or "", message.tool_call_id))
