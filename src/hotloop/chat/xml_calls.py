"""Calls written as tags: `<tool_call> <function=name> <parameter=key> value </parameter> </function> </tool_call>`, or
in other words of the same order; a table has those of each family.

What tags cannot say is refused by name. The arguments are made into JSON as they come. A value ends at its closing tag
and nowhere else, so code that speaks of these tags can be an argument; what stands between two parameters is ignored.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from hotloop.chat import lark
from hotloop.chat.stream import CallParser, MarkedParser
from hotloop.chat.tag_values import ValueKind, WrittenValue, choices, resolve, value_kind
from hotloop.chat.tool_format import ToolFormat
from hotloop.chat.tools import ToolChoice
from hotloop.core.config import ToolFormatName
from hotloop.core.errors import ConfigError, RequestError
from hotloop.core.message import Tool
from hotloop.models.tokenizer import Tokenizer


class TagMarks(NamedTuple):
    """How one family writes a call. All but the name, the keys and the values of

    opening⏎ function name>⏎ parameter key key_end⏎ value_opening pad VALUE pad end_parameter⏎ end_function⏎ closing
    """

    opening: str
    closing: str
    function: str
    """Stands before a name; nothing where the name stands right behind the opening."""
    end_function: str
    """Nothing where the closing ends the function as well."""
    parameter: str
    key_end: str
    end_parameter: str
    value_opening: str = ""
    pad: str = ""
    """What stands around a value and is not of it."""
    gap: str = "\n"
    """What stands behind tags, where there is a line break in the picture."""
    is_block: bool = False
    """Whether several functions stand between one opening and its closing, not each in its own."""
    has_types: bool = False
    """Whether a tag says of its value if that is a string, behind the key."""

    @property
    def name_end(self) -> str:
        return _end(self.function) if self.function else ""


def _end(tag: str) -> str:
    """What closes a tag behind its name, which has a quote if it was opened by one."""
    return '">' if tag.endswith('"') else ">"


QWEN_CODER = TagMarks(
    *("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", ">", "</parameter>"), pad="\n"
)
GLM = TagMarks(
    *("<tool_call>", "</tool_call>", "", "", "<arg_key>", "</arg_key>", "</arg_value>"), value_opening="<arg_value>"
)
MINIMAX = TagMarks(
    *("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', "</invoke>"),
    *('<parameter name="', '">', "</parameter>"),
    is_block=True,
)
DSML = TagMarks(
    *("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", '<｜DSML｜invoke name="', "</｜DSML｜invoke>"),
    *('<｜DSML｜parameter name="', '">', "</｜DSML｜parameter>"),
    is_block=True,
    has_types=True,
)

_MAX_NAME = 256
_BARE_NAME = re.compile(r"\s*[\w.:-]*[ \t]*")
_IS_STRING, _IS_OTHER = '" string="true', '" string="false'
_UNSAYABLE = {"allOf", "anyOf", "oneOf", "not", "if", "enum", "const", "$ref", "$dynamicRef", "propertyNames"} | {
    *("minProperties", "maxProperties", "patternProperties", "unevaluatedProperties"),
    *("dependencies", "dependentRequired", "dependentSchemas"),
}


class XmlCallParser(MarkedParser):
    """Prose, and calls that are tags. Some models forget the outer tag: a function opens a call by itself."""

    def __init__(self, marks: TagMarks, tools: Sequence[Tool] = ()) -> None:
        super().__init__(*(opening for opening in (marks.opening, marks.function) if opening))
        self._marks = marks
        self._schemas = {tool.name: tool.parameters for tool in tools}
        self._loose = {tool.name for tool in tools if not tool.is_strict}
        self._name = ""
        self._key = ""
        self._num_parameters = 0
        self._value = WrittenValue()
        self._tags: dict[str, Callable[[], None]] = {}
        self._tail = ""

    def opened(self, opening: str) -> None:
        if opening == self._marks.function or not self._marks.function:
            self._begin_name()
        else:
            self._expect({self._marks.function: self._begin_name})

    def cut(self) -> None:
        if self.answer.is_calling:
            self.answer.cut_call()
            self.raw = ""
        elif self.state == self._after:
            self.raw = ""

    def _expect(self, tags: dict[str, Callable[[], None]]) -> None:
        self._tags, self._tail, self.state = tags, "", self._tag

    def _expect_parameter(self) -> None:
        marks = self._marks
        self._expect({marks.parameter: self._begin_key, marks.end_function or marks.closing: self._end_function})

    def _tag(self, char: str) -> None:
        self.raw += char
        self._tail = (self._tail + char).lstrip()
        if self._tail in self._tags:
            self._tags[self._tail]()
        elif self._tail and not any(tag.startswith(self._tail) for tag in self._tags):
            if self.answer.is_calling:
                self._tail = self._tail[1:]
            else:
                self.give_back()

    def _begin_name(self) -> None:
        self._name, self.state = "", self._in_name if self._marks.function else self._in_bare_name

    def _in_name(self, char: str) -> None:
        self.raw += char
        name = (self._name + char).removesuffix(self._marks.name_end).strip()
        if char == ">" and name and not name.endswith(">"):
            self._end_name(name)
            return
        self._name += char
        if char in "<>\n" or len(self._name) > _MAX_NAME:
            self.give_back()

    def _in_bare_name(self, char: str) -> None:
        """Ends where its line does, or another tag begins."""
        if char in "<\n" and (name := self._name.strip()):
            self._end_name(name)
            self.again(char)
            return
        self.raw += char
        self._name += char
        if len(self._name) > _MAX_NAME or not _BARE_NAME.fullmatch(self._name):
            self.give_back()

    def _end_name(self, name: str) -> None:
        self._name, self._num_parameters = name, 0
        self._expect_parameter()

    def _begin_key(self) -> None:
        self._tail, self.state = "", self._in_key

    def _in_key(self, char: str) -> None:
        self.raw += char
        self._tail += char
        end = self._marks.key_end
        if self._tail.endswith(end):
            self._end_key(self._tail.removesuffix(end))
            return
        _, bracket, rest = self._tail.partition("<")
        if char == "\n" or (bracket and not end.startswith(bracket + rest)):
            if self.answer.is_calling:
                self._expect(self._tags)
            else:
                self.give_back()

    def _end_key(self, key: str) -> None:
        kind: ValueKind | None = None
        if self._marks.has_types and key.endswith((_IS_STRING, _IS_OTHER)):
            kind = "raw" if key.endswith(_IS_STRING) else "json"
            key = key.removesuffix(_IS_STRING).removesuffix(_IS_OTHER)
        self._key = key.strip()
        self._value = WrittenValue(self._schemas.get(self._name, {}), self._key, kind)
        if self._marks.value_opening:
            self._expect({self._marks.value_opening: self._begin_value})
        else:
            self._begin_value()

    def _begin_value(self) -> None:
        if not self.answer.is_calling:
            self.answer.open_call(self._name)
        self.raw = ""
        begin = "{" if self._num_parameters == 0 else ", "
        self.answer.arguments(begin + json.dumps(self._key, ensure_ascii=False) + ": ")
        self._num_parameters += 1
        self._tail, self.state = "", self._first_of_value

    def _first_of_value(self, char: str) -> None:
        self.state = self._in_value
        if char != self._marks.pad:
            self.again(char)

    def _in_value(self, char: str) -> None:
        end, padded = self._marks.end_parameter, self._marks.pad + self._marks.end_parameter
        self._tail += char
        while self._tail and not padded.startswith(self._tail) and not end.startswith(self._tail):
            self.answer.arguments(self._value.push(self._tail[0]))
            self._tail = self._tail[1:]
        if not self._tail.endswith(end):
            return
        # Where the schema is not enforced, neither is JSON within a value: the first closing tag ends it.
        if self._tail == end and self._value.is_quoting and self._name not in self._loose:
            self.answer.arguments("".join(map(self._value.push, self._tail)))
            self._tail = ""
            return
        self.answer.arguments(self._value.end())
        self._expect_parameter()

    def _end_function(self) -> None:
        if not self.answer.is_calling:
            self.answer.open_call(self._name)
        self.answer.arguments("}" if self._num_parameters else "{}")
        self.answer.close_call()
        self.raw, self.state = "", self._after if self._marks.end_function else self.prose

    def _after(self, char: str) -> None:
        """Behind a function: another one, the closing, or prose again."""
        self.raw = (self.raw + char).lstrip()
        if self.raw == self._marks.closing:
            self.to_prose()
        elif self.raw == self._marks.function:
            self._begin_name()
        elif not self._marks.closing.startswith(self.raw) and not self._marks.function.startswith(self.raw):
            raw = self.raw
            self.to_prose()
            self.again(raw)


def tag_rules(tools: Sequence[Tool], marks: TagMarks, tokenizer: Tokenizer) -> list[str]:
    """The rules `f0`, `f1`, ...: what follows the word before a name, to the end of the function."""
    rules = [rule for i, tool in enumerate(tools) for rule in _function_rules(f"f{i}", tool, marks, tokenizer)]
    typed = lark.either([lark.literal(_IS_STRING), lark.literal(_IS_OTHER)]) if marks.has_types else ""
    key = f'{lark.spell(tokenizer, marks.parameter)} /[^<>"\\n]+/ {typed}'
    return [
        *rules,
        *lark.until("raw", marks.end_parameter, tokenizer),
        f"anything: {key} {_key_end(marks, tokenizer)} raw {lark.spell(tokenizer, marks.gap)}",
    ]


def _function_rules(rule: str, tool: Tool, marks: TagMarks, tokenizer: Tokenizer) -> list[str]:
    begin = lark.literal(f"{tool.name}{marks.name_end}{marks.gap}")
    end = lark.spell(tokenizer, marks.end_function)
    if not tool.is_strict:
        return [f"{rule}: {begin} anything* {end}"]
    _check_sayable(tool)
    schema = lark.parameters(tool)
    required = schema.get("required", [])
    properties = dict(schema["properties"]) | {key: True for key in required if key not in schema["properties"]}
    rules = {key: f"{rule}p{i}" for i, key in enumerate(properties)}
    sequence = " ".join(name + ("" if key in required else "?") for key, name in rules.items())
    return [
        f"{rule}: {begin} {sequence} {end}",
        *(
            f"{rules[key]}: {lark.spell(tokenizer, marks.parameter)} {lark.literal(key)} "
            f"{_value(resolve(part, schema), marks, tokenizer)} {lark.spell(tokenizer, marks.gap)}"
            for key, part in properties.items()
        ),
    ]


def _value(schema: Any, marks: TagMarks, tokenizer: Tokenizer) -> str:
    """What follows a key: the value, to its closing tag."""
    kind = value_kind(schema)
    begin, end = _key_end(marks, tokenizer), lark.spell(tokenizer, marks.pad, marks.end_parameter)
    if marks.has_types:
        if kind == "nullable":
            null = f"{lark.literal(_IS_OTHER)} {begin} {lark.literal('null')} {end}"
            return lark.either([f"{lark.literal(_IS_STRING)} {begin} raw", null])
        begin = f"{lark.literal(_IS_OTHER if kind == 'json' else _IS_STRING)} {begin}"
    if kind == "choice":
        return f"{begin} {lark.either(map(lark.literal, choices(schema)))} {end}"
    return f"{begin} {lark.embed(schema)} {end}" if kind == "json" else f"{begin} raw"


def _key_end(marks: TagMarks, tokenizer: Tokenizer) -> str:
    gap = marks.gap if marks.value_opening else ""
    return lark.spell(tokenizer, marks.key_end, gap, marks.value_opening, marks.pad)


def _check_sayable(tool: Tool) -> None:
    unsayable = tool.parameters.keys() & _UNSAYABLE
    if unsayable:
        reason = f"{min(unsayable)!r} beside its properties, which this model's tool calls cannot say"
        raise RequestError(f"the tool {tool.name!r} has {reason}: use strict: false", param="tools")
    for key in (*tool.parameters.get("properties", {}), *tool.parameters.get("required", [])):
        if not key.strip() or set(key) & set('<>"\n') or key != key.strip():
            reason = f"a parameter {key!r:.100}, which this model's tool calls cannot name"
            raise RequestError(f"the tool {tool.name!r} has {reason}", param="tools")


class TagFormat(ToolFormat):
    marks: TagMarks
    joiner: str = "\n"
    """What stands between two calls that each have an opening."""

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice) -> list[str]:
        marks = self.marks
        head = lark.spell(self._tokenizer, marks.gap, marks.function) if marks.function else ""
        tail = lark.spell(self._tokenizer, marks.gap if marks.function else "", marks.closing)
        again = head if marks.is_block else f"{tail} {lark.spell(self._tokenizer, self.joiner, marks.opening)} {head}"
        more = f"( {again} call )* " if choice.is_parallel else ""
        behind_name = f"call {more}{tail}"
        others = {marks.function: behind_name} if marks.function else None
        return [
            *lark.start(f"{head} {behind_name}", marks.opening, choice, self._tokenizer, others=others),
            f"call: {lark.functions(chosen)}",
            *tag_rules(chosen, marks, self._tokenizer),
        ]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return XmlCallParser(self.marks, tools)


class QwenCoderFormat(TagFormat):
    """`<tool_call>` with a `<function=name>` and its `<parameter=key>`s inside: Qwen 3 Coder and its kin."""

    name: ClassVar[ToolFormatName] = "qwen3_coder"
    marks = QWEN_CODER
    opening = marks.opening


class GlmFormat(TagFormat):
    """`<tool_call>name`, then `<arg_key>`s and `<arg_value>`s: GLM 4.5 and later; from 4.7 on without line breaks."""

    name: ClassVar[ToolFormatName] = "glm"
    marks = GLM
    opening = marks.opening

    def __init__(self, tokenizer: Tokenizer, source: str = "") -> None:
        super().__init__(tokenizer, source)
        if "</arg_key><arg_value>" in source:
            self.marks = GLM._replace(gap="")
            self.joiner = ""


class MiniMaxFormat(TagFormat):
    """`<minimax:tool_call>` with `<invoke name="...">`s inside, and their `<parameter name="...">`s: MiniMax M2."""

    name: ClassVar[ToolFormatName] = "minimax"
    marks = MINIMAX
    opening = marks.opening


class DsmlFormat(TagFormat):
    """The same in DeepSeek's own tags, which say what is a string: DeepSeek V3.2, and V4 with another outer tag."""

    name: ClassVar[ToolFormatName] = "deepseek_v32"
    marks = DSML
    opening = marks.opening

    def __init__(self, tokenizer: Tokenizer, source: str = "") -> None:
        super().__init__(tokenizer, source)
        if tokenizer.has_special(tokenizer.encode(self.opening)):
            raise ConfigError("tool_format 'deepseek_v32' cannot work: a part of its tags is a special token")
        if "function_calls>" not in source and "tool_calls>" in source:
            self.marks = DSML._replace(opening="<｜DSML｜tool_calls>", closing="</｜DSML｜tool_calls>")
