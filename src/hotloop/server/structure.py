"""What an answer must look like, in all the words clients have for it: the schema each API takes, vLLM's
`structured_outputs` and its older `guided_*` fields, and tools to call. All of it becomes one grammar.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from hotloop.chat.lark import literal
from hotloop.chat.stream import CallParser
from hotloop.chat.tool_format import ToolFormat
from hotloop.chat.tools import ToolChoice
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar, MalformedSchema, json_schema, loosen
from hotloop.core.message import Tool
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.calling import Calling
from hotloop.server.explain.inquiry import CacheExplanation
from hotloop.server.loose import ANSWER, CheckedParser, Loosened, tell, unconstrained
from hotloop.server.options import Options
from hotloop.server.service import Service
from hotloop.wire.request import ApiRequest

# Formats whose calls begin like any JSON: an answer in JSON could not be told from them.
_UNMARKED = frozenset({"llama3"})
_WITHOUT = "it is enforced as far as possible, and what comes is checked afterwards"
_MAX_BLAMED = 16  # tools looked at one by one when something is wrong with one of them


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar, and the field that asks for it."""

    param: str
    grammar: Grammar
    schema: Any = None
    """The schema it was made from, where less of it may be enforced than it says."""
    dropped: tuple[str, ...] = ()
    """What of it is not enforced."""
    remedy: str = ""
    """What the caller may do where it cannot be enforced."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What holds an answer: its grammar, what that does not enforce, and what is checked afterwards instead."""

    grammar: Grammar | None = None
    changes: tuple[str, ...] = ()
    checks: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """For a tool's name, or the answer itself: the field its schema came in, and the schema."""

    begun: str = ""
    """What the answer begins with, in the prompt."""
    tools: tuple[Tool, ...] = ()
    """Those that may be called, as far as the grammar keeps to their schemas."""

    def go_on_from(self, begun: str) -> "Bound":
        return replace(self, grammar=self.grammar and replace(self.grammar, begun=begun), begun=begun)

    def watch(self, parser: Callable[[], CallParser], inquiry: CacheExplanation) -> Callable[[], CallParser]:
        """The parser, with what it finds checked. What is not enforced is told at once, what is broken when it is."""
        inquiry.tell(*self.changes)
        return (lambda: CheckedParser(parser(), self.checks, inquiry.tell, self.begun)) if self.checks else parser


def parse_constraint(request: ApiRequest, options: Options) -> Constraint | None:
    """The one thing the answer must look like; None if it is free. Raises RequestError if there are two."""
    fields = list(_structure_fields(request, options))
    if not fields:
        return None
    if len(fields) > 1:
        raise RequestError(f"{fields[0][0]} and {fields[1][0]} cannot be given together", param=fields[1][0])
    [(param, kind, value)] = fields
    is_shape = request.shape is not None and kind == "json" and request.api != "messages"
    remedy = f"; with strict: false {_WITHOUT}" if is_shape else ""
    with _blaming(param, remedy):
        if is_shape and request.shape and request.shape.about.get("strict") is False:
            schema, dropped = loosen(value)
            return Constraint(param, json_schema(schema), value, dropped)
        return Constraint(param, _parse_grammar(kind, value), remedy=remedy)


def answer_grammar(wanted: Constraint | None, calling: Calling, service: Service) -> Bound:
    """What holds the answer; `wanted` is what the request wants of one that is not a call. Compiled on this thread, so
    that the engine finds it done. Raises RequestError that names the one tool at fault."""
    binding = _Binding(wanted, calling, service)
    failure: RequestError | None = None
    for _ in binding.loosen():
        try:
            return binding.make()
        except RequestError as error:
            failure = error
    assert failure, "it was made once at least"
    raise failure


class _Binding:
    """Makes the grammar of an answer from what is asked of it and the tools as far as they can be enforced."""

    def __init__(self, wanted: Constraint | None, calling: Calling, service: Service) -> None:
        self._wanted, self._calling, self._service = wanted, calling, service
        self._tools = {tool.name: self._look_at(tool) for tool in calling.allowed} if calling.is_possible else {}

    def make(self) -> Bound:
        service, calling = self._service, self._calling
        tools = [loosened.tool for loosened in self._tools.values()]
        ordered = replace(calling, allowed=service.prompts.order(tools)) if tools else calling
        constraint = constrain(self._wanted, ordered, service.tool_format, service.engine.tokenizer)
        if constraint:
            with _blaming(constraint.param, constraint.remedy):
                service.engine.grammars.prepare(constraint.grammar)
        changes, checks = self._told()
        return Bound(constraint.grammar if constraint else None, changes, checks, tools=tuple(tools))

    def loosen(self) -> Iterator[None]:
        """Stops at ever looser ways to make it: as it was asked for, without what does not compile by itself, and with
        fewer and fewer tools enforced, the smaller ones. Raises RequestError if a tool is at fault that may not be."""
        yield
        self._loosen_failing()
        yield
        self._blame()
        enforced = [found.tool for found in self._tools.values() if self._is_loosable(found.tool)]
        enforced.sort(key=lambda tool: len(json.dumps(tool.parameters)))
        while enforced:
            half = len(enforced) // 2
            self._tools |= {tool.name: unconstrained(tool) for tool in enforced[half:]}
            enforced = enforced[:half]
            yield

    def _loosen_failing(self) -> None:
        if self._wanted and self._wanted.schema is not None:
            try:
                self._service.engine.grammars.prepare(self._wanted.grammar)
            except RequestError:
                self._wanted = replace(self._wanted, grammar=json_schema({}), dropped=("the whole schema",))
        if self._calling.is_possible:
            loosable = [tool for tool in self._calling.allowed if self._is_loosable(tool)]
            self._tools |= self._service.relaxer.loosen(loosable)

    def _is_loosable(self, tool: Tool) -> bool:
        return tool.is_strict and tool.name not in self._calling.strict_names

    def _look_at(self, tool: Tool) -> Loosened:
        if not self._is_loosable(tool):
            return Loosened(tool)
        with _blaming(self._calling.places[tool.name]):
            return self._service.relaxer.look_at(tool)

    def _told(self) -> tuple[tuple[str, ...], dict[str, tuple[str, Any]]]:
        changes, checks = [], {}
        if self._wanted and self._wanted.dropped:
            changes.append(f"{self._wanted.param}: {tell(self._wanted.dropped)}")
            checks[ANSWER] = self._wanted.param, self._wanted.schema
        for tool in self._calling.allowed:
            loosened = self._tools.get(tool.name)
            if not loosened or (tool.is_strict and not loosened.dropped):
                continue
            param = self._calling.places[tool.name]
            checks[tool.name] = param, tool.parameters
            if loosened.dropped:
                changes.append(f"{param}: {tell(loosened.dropped)}")
        return tuple(changes), checks

    def _blame(self) -> None:
        """Raise what is wrong with one tool alone, if that is what is wrong."""
        for name, loosened in [*self._tools.items()][:_MAX_BLAMED]:
            with _blaming(
                self._calling.places[name],
                f"; without strict: true {_WITHOUT}" if name in self._calling.strict_names else "",
            ):
                grammar = self._service.tool_format.grammar(
                    [loosened.tool], ToolChoice("required", name), self._service.engine.tokenizer
                )
                assert grammar, "calls that must come have a grammar"
                self._service.engine.grammars.prepare(grammar)


def constrain(
    wanted: Constraint | None, calling: Calling, tool_format: ToolFormat, tokenizer: Tokenizer
) -> Constraint | None:
    if not calling.is_possible:
        return wanted
    if wanted is None or calling.is_required:
        with _blaming("tools"):
            grammar = tool_format.grammar(calling.allowed, calling.choice, tokenizer)
        return Constraint("tools", grammar) if grammar else None
    if wanted.grammar.kind != "json_schema" or tool_format.name in _UNMARKED:
        reason = f"{wanted.param} cannot be given together with tools, unless tool_choice is 'none'"
        raise RequestError(reason, param=wanted.param)
    with _blaming("tools"):
        calls = tool_format.grammar(calling.allowed, replace(calling.choice, mode="required"), tokenizer)
    assert calls, "calls that must come have a grammar"
    return Constraint(wanted.param, either(calls, tool_format.wrap(wanted.grammar)))


def either(calls: Grammar, answer: Grammar) -> Grammar:
    body = f"%json {answer.text}" if answer.kind == "json_schema" else f"%lark {{\n{answer.text}\n}}"
    return Grammar("lark", f"start: calls | answer\ncalls: %lark {{\n{calls.text}\n}}\nanswer: {body}\n")


@contextmanager
def _blaming(param: str, remedy: str = "") -> Iterator[None]:
    """What is wrong with a grammar is wrong with the field it came in."""
    try:
        yield
    except MalformedSchema as error:
        raise MalformedSchema(f"{param}: {error}", param=param) from None
    except RequestError as error:
        raise RequestError(f"{param}: {error}{remedy}", param=param) from None


def _structure_fields(request: ApiRequest, options: Options) -> Iterator[tuple[str, str, Any]]:
    """Every field that asks for a structure: its name, the kind of structure, its value."""
    if request.shape:
        assert request.shape.at, "it stands somewhere in the body"
        param, schema = request.shape.at.place, request.shape.schema
        is_named = request.api == "chat" and "name" in request.shape.about  # else it stands beside the type
        field_name = "json_schema.schema" if is_named else "schema"
        yield (param, "json_object", None) if schema is None else (f"{param}.{field_name}", "json", schema)
    if options.structured_outputs:
        for kind in ("json", "json_object", "regex", "choice", "grammar"):
            if value := getattr(options.structured_outputs, kind):
                yield f"structured_outputs.{kind}", kind, value
    for kind in ("json", "regex", "choice", "grammar"):
        for param in (f"guided_{kind}", kind):
            if (value := getattr(options, param, None)) is not None:
                yield param, kind, value


def _parse_grammar(kind: str, value: Any) -> Grammar:
    match kind:
        case "json_object":
            return json_schema({"type": "object"})
        case "json":
            return json_schema(value if isinstance(value, dict) else _decode_schema(value))
        case "regex":
            return Grammar("regex", value)
        case "choice":
            return Grammar("lark", "start: " + " | ".join(map(_quote, dict.fromkeys(value))))
        case _:
            return Grammar("lark", value)


def _decode_schema(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise RequestError("the text is not a JSON schema")
    return schema


def _quote(text: str) -> str:
    """Lark takes a string as JSON writes it, but for the one control character that JSON leaves as it is."""
    return literal(text).replace("\x7f", "\\u007f")
