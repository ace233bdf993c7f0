"""Calls as Gemma writes them: `call:name{key:<|"|>text<|"|>,list:[1,true],object:{key:null}}` between two marks.

It is JSON but for its strings, which stand between marks as they are, and its keys, which stand there without any. So
a string cannot hold the mark, and a key none of the characters that follow one. Keys come in the order in which the
template sorts them. What a grammar cannot say of a schema in this form is refused by name.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from hotloop.chat import lark
from hotloop.chat.stream import CallParser, MarkedParser
from hotloop.chat.tag_values import resolve, to_json
from hotloop.chat.tool_format import ToolFormat
from hotloop.chat.tools import ToolChoice
from hotloop.core.config import ToolFormatName
from hotloop.core.errors import RequestError
from hotloop.core.message import Tool
from hotloop.models.tokenizer import Tokenizer

_MAX_DEPTH = 16  # of objects and lists that a grammar tells apart
_HEAD = re.compile(r"\s*call:\s*([\w.-]{1,64})\s*")
_HEAD_CHARS = re.compile(r"[\w.:\-\s]{1,100}")
_KEY = re.compile(r'[^<>{}\[\]:,"\s\x00-\x1f]+')
_ANYTHING = {"type", "title", "description", "default", "examples", "format", "$defs", "definitions", "$schema", "$id"}
_NUMERIC = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_KEYWORDS: dict[str, set[str]] = {
    "string": set(),
    "integer": _NUMERIC,
    "number": _NUMERIC,
    "boolean": set(),
    "null": set(),
    "array": {"items"},
    "object": {"properties", "required", "additionalProperties"},
}


class GemmaMarks(NamedTuple):
    opening: str
    closing: str
    quote: str
    """Stands before a string and behind it."""


GEMMA_4 = GemmaMarks("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = GemmaMarks("<start_function_call>", "<end_function_call>", "<escape>")


class GemmaFormat(ToolFormat):
    """Gemma 4, and FunctionGemma with other marks."""

    name: ClassVar[ToolFormatName] = "gemma"
    opening = GEMMA_4.opening

    def __init__(self, tokenizer: Tokenizer, source: str = "") -> None:
        super().__init__(tokenizer, source)
        self._marks = FUNCTION_GEMMA if FUNCTION_GEMMA.opening in source else GEMMA_4
        self.keep_special = lark.special_id(self._marks.opening, tokenizer) is not None

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice) -> list[str]:
        opening, closing = (lark.spell(self._tokenizer, mark) for mark in self._marks[:2])
        more = f" ( {opening} call )*" if choice.is_parallel else ""
        return [
            *lark.start(f"call{more}", self._marks.opening, choice, self._tokenizer),
            f'call: "call:" {lark.functions(chosen)} {closing}',
            *(
                rule
                for i, tool in enumerate(chosen)
                for rule in _function_rules(f"f{i}", tool, self._marks, self._tokenizer)
            ),
            'object: "{" ( member ( "," member )* )? "}"',
            'list: "[" ( value ( "," value )* )? "]"',
            f'member: /{_KEY.pattern}/ ":" value',
            f"value: text | object | list | {lark.embed({'type': ['number', 'boolean', 'null']})}",
            f"text: {lark.spell(self._tokenizer, self._marks.quote)} rest",
            *lark.until("rest", self._marks.quote, self._tokenizer),
        ]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return GemmaCallParser(self._marks)


class GemmaCallParser(MarkedParser):
    """The arguments become JSON as they come. Lenient: keys may have quotes, and words need none."""

    def __init__(self, marks: GemmaMarks) -> None:
        super().__init__(marks.opening)
        self._marks = marks
        self._open: list[str] = []  # the brackets that are
        self._is_first = True  # of the bracket that was opened last
        self._tail = ""

    def opened(self, opening: str) -> None:
        self.state = self._head

    def cut(self) -> None:
        if self.answer.is_calling:
            self.answer.cut_call()

    def _head(self, char: str) -> None:
        body = self.raw[len(self._marks.opening) :]
        self.raw += char
        if char == "{" and (match := _HEAD.fullmatch(body)):
            self.raw = ""
            self.answer.open_call(match[1])
            self._push(char)
        elif not _HEAD_CHARS.fullmatch(body + char):
            self.give_back()

    def _push(self, bracket: str) -> None:
        self.answer.arguments(bracket)
        self._open.append(bracket)
        self._is_first = True
        self._next()

    def _pop(self) -> None:
        self.answer.arguments("}" if self._open.pop() == "{" else "]")
        self._is_first = False
        self.state = self._after
        if not self._open:
            self.answer.close_call()
            self.to_prose()

    def _next(self) -> None:
        self._tail, self.state = "", self._key if self._open[-1] == "{" else self._value

    def _begin(self) -> None:
        if not self._is_first:
            self.answer.arguments(", ")
        self._is_first = False

    def _key(self, char: str) -> None:
        self._tail = (self._tail + char).lstrip()
        if self._tail == "}":
            self._pop()
            return
        key, quote = self._tail[:-1].rstrip(), self._marks.quote
        if char != ":" or not key or (key.startswith(quote) and (key == quote or not key.endswith(quote))):
            return
        self._begin()
        self.answer.arguments(json.dumps(key.removeprefix(quote).removesuffix(quote), ensure_ascii=False) + ": ")
        self._tail, self.state = "", self._value

    def _value(self, char: str) -> None:
        self._tail = (self._tail + char).lstrip()
        is_item = self._open[-1] == "["
        if self._tail == "]" and is_item:
            self._pop()
        elif self._tail in ("{", "[", self._marks.quote):
            if is_item:
                self._begin()
            if self._tail == self._marks.quote:
                self.answer.arguments('"')
                self._tail, self.state = "", self._string
            else:
                self._push(char)
        elif self._tail and not self._marks.quote.startswith(self._tail):
            if is_item:
                self._begin()
            word, self._tail, self.state = self._tail, "", self._word
            self.again(word)

    def _string(self, char: str) -> None:
        self._tail += char
        while self._tail and not self._marks.quote.startswith(self._tail):
            self.answer.arguments(json.dumps(self._tail[0], ensure_ascii=False)[1:-1])
            self._tail = self._tail[1:]
        if self._tail == self._marks.quote:
            self.answer.arguments('"')
            self.state = self._after

    def _word(self, char: str) -> None:
        """A number, `true`, `null` or the like, to where it ends."""
        if char in ",}]":
            self.answer.arguments(to_json(self._tail.strip() or "null", {"boolean", "null"}))
            self.state = self._after
            self.again(char)
        else:
            self._tail += char

    def _after(self, char: str) -> None:
        if char == ",":
            self._next()
        elif char in "}]":
            self._pop()


def _function_rules(rule: str, tool: Tool, marks: GemmaMarks, tokenizer: Tokenizer) -> list[str]:
    if not tool.is_strict:
        return [f"{rule}: {lark.literal(tool.name)} object"]
    schema = lark.parameters(tool)
    made = _Rules(rule, tool, schema, marks, tokenizer)
    body = made.value(schema, 0)
    return [f"{rule}: {lark.literal(tool.name)} {body}", *made.rules]


class _Rules:
    """The rules of one tool's schema, as far as there is no more to it than can be said here."""

    def __init__(self, name: str, tool: Tool, root: Mapping[str, Any], marks: GemmaMarks, tokenizer: Tokenizer) -> None:
        self.rules: list[str] = []
        self._name, self._tool, self._root = name, tool, root
        self._marks, self._tokenizer = marks, tokenizer

    def value(self, schema: Any, depth: int) -> str:
        schema = resolve(schema, self._root)
        if depth > _MAX_DEPTH:
            raise self._unsayable("what is nested so deep")
        if not isinstance(schema, Mapping):
            return "value"
        keywords = schema.keys() - _ANYTHING
        for listing in keywords & {"enum", "const"}:
            listed = schema["enum"] if listing == "enum" else [schema["const"]]
            return lark.either(map(self._constant, listed))
        if keywords in ({"anyOf"}, {"oneOf"}):
            return lark.either(self.value(branch, depth + 1) for branch in schema[min(keywords)])
        named = schema.get("type")
        if named is None:
            if keywords:
                raise self._unsayable(repr(min(keywords)))
            return "value"
        kinds = named if isinstance(named, list) else [named]
        known: set[str] = set().union(*(_KEYWORDS.get(kind, set()) for kind in kinds))
        if unsayable := keywords - known:
            raise self._unsayable(repr(min(unsayable)))
        return lark.either(self._kind(kind, schema, depth) for kind in kinds)

    def _kind(self, kind: str, schema: Mapping[str, Any], depth: int) -> str:
        if kind == "string":
            return "text"
        if kind == "array":
            item = self._add(self.value(schema.get("items", True), depth + 1))
            return f'"[" ( {item} ( "," {item} )* )? "]"'
        if kind != "object":
            return lark.embed({key: schema[key] for key in schema.keys() & _NUMERIC} | {"type": kind})
        if not schema.get("properties") and schema.get("additionalProperties", True) is not False:
            return self._any_member(schema, depth)
        if schema.get("additionalProperties") not in (None, False):
            raise self._unsayable("'additionalProperties' beside its properties")
        return self._object(schema, depth)

    def _any_member(self, schema: Mapping[str, Any], depth: int) -> str:
        if schema.get("required"):
            raise self._unsayable("'required' of what is no property")
        value = self._add(self.value(schema.get("additionalProperties", True), depth + 1))
        member = self._add(f'/{_KEY.pattern}/ ":" {value}')
        return f'"{{" ( {member} ( "," {member} )* )? "}}"'

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        """Its members in order, those that are not required perhaps left out:

        first: m0 more1 | m1 more2      if m1 is the first that is required; else also nothing
        more1: ( "," m1 )? more2
        """
        required = set(schema.get("required", ()))
        properties = dict(schema.get("properties", {})) | dict.fromkeys(required - schema["properties"].keys(), True)
        keys = sorted(properties, key=str.lower)
        members = [self._add(self._member(key, properties[key], depth)) for key in keys]
        firsts: list[str] = []
        more = ""
        for key, member in reversed([*zip(keys, members, strict=True)]):
            is_required = key in required
            firsts = [f"{member} {more}"] + ([] if is_required else firsts)
            more = self._add(f'"," {member} {more}' if is_required else f'( "," {member} )? {more}')
        is_needed = "" if required else "?"
        return f'"{{" {lark.either(firsts)}{is_needed} "}}"' if firsts else '"{" "}"'

    def _member(self, key: str, schema: Any, depth: int) -> str:
        if not _KEY.fullmatch(key):
            raise self._unsayable(f"a parameter {key!r:.100}")
        return f"{lark.literal(key + ':')} {self.value(schema, depth + 1)}"

    def _constant(self, value: Any) -> str:
        """A value that is said word for word."""
        if isinstance(value, list | dict):
            raise self._unsayable("a list or an object to choose from")
        if not isinstance(value, str):
            return lark.literal(json.dumps(value))
        if self._marks.quote in value:
            raise self._unsayable(f"{value!r:.100}")
        quote = lark.spell(self._tokenizer, self._marks.quote)
        return f"{quote} {lark.literal(value)} {quote}" if value else f"{quote} {quote}"

    def _add(self, body: str) -> str:
        name = f"{self._name}v{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def _unsayable(self, what: str) -> RequestError:
        reason = f"{what}, which this model's tool calls cannot say"
        return RequestError(f"the tool {self._tool.name!r} has {reason}: use strict: false", param="tools")
