"""What an answer must look like: a structure that a request asks for, tools to call, or both. All of it becomes one
grammar."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hotloop.chat.lark import literal
from hotloop.chat.schema_relaxer import ANSWER, Checks, Relaxed, SchemaRelaxer, tell, unconstrained
from hotloop.chat.tool_format import ToolFormat, Tools
from hotloop.chat.tools import Calling, ToolChoice
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar, MalformedSchema, json_schema, relax
from hotloop.core.message import Tool

# Formats whose calls begin like any JSON: an answer in JSON could not be told from them.
_UNMARKED = frozenset({"llama3"})
_WITHOUT = "it is enforced as far as possible, and what comes is checked afterwards"
_MAX_BLAMED = 16  # tools looked at one by one when something is wrong with one of them


class Structure(NamedTuple):
    """A field of a request that asks for a structure."""

    param: str
    kind: str
    """json_object, json, regex, choice or grammar."""
    value: Any = None
    is_strict: bool | None = None
    """Whether a schema must be enforced as a whole; None where the request has no word for that, and it must."""


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
class AnswerGrammar:
    """The grammar of an answer, what it does not enforce, and what is checked afterwards instead."""

    grammar: Grammar | None = None
    changes: tuple[str, ...] = ()
    checks: Checks = field(default_factory=dict)
    tools: Tools = ()
    """Those that may be called, as far as the grammar keeps to their schemas."""


def parse_constraint(structures: Sequence[Structure]) -> Constraint | None:
    """The one thing the answer must look like; None if it is free. Raises RequestError if there are two."""
    if not structures:
        return None
    if len(structures) > 1:
        (first, *_), (second, *_) = structures[:2]
        raise RequestError(f"{first} and {second} cannot be given together", param=second)
    [(param, kind, value, is_strict)] = structures
    remedy = "" if is_strict is None else f"; with strict: false {_WITHOUT}"
    with _blaming(param, remedy):
        if is_strict is False:
            schema, dropped = relax(value)
            return Constraint(param, json_schema(schema), value, dropped)
        return Constraint(param, _parse_grammar(kind, value), remedy=remedy)


class GrammarBuilder:
    """Makes the grammar of an answer from what is asked of it and the tools as far as they can be enforced. Compiles it
    on this thread, so that the engine finds it done."""

    def __init__(
        self,
        wanted: Constraint | None,
        calling: Calling,
        relaxer: SchemaRelaxer,
        order: Callable[[Sequence[Tool]], Tools],
    ) -> None:
        """`wanted` is what the request wants of an answer that is not a call, `order` how tools stand in the prompt."""
        self._wanted, self._calling, self._relaxer, self._order = wanted, calling, relaxer, order
        self._tools = {tool.name: self._look_at(tool) for tool in calling.allowed} if calling.is_possible else {}

    def build(self) -> AnswerGrammar:
        """Raises RequestError that names the one tool at fault."""
        failure: RequestError | None = None
        for _ in self._relax():
            try:
                return self._make()
            except RequestError as error:
                failure = error
        assert failure, "it was made once at least"
        raise failure

    def _make(self) -> AnswerGrammar:
        relaxer, tools = self._relaxer, tuple(relaxed.tool for relaxed in self._tools.values())
        ordered = replace(self._calling, allowed=self._order(tools)) if tools else self._calling
        constraint = constrain(self._wanted, ordered, relaxer.format)
        if constraint:
            with _blaming(constraint.param, constraint.remedy):
                relaxer.compiler.prepare(constraint.grammar)
        changes, checks = self._told()
        return AnswerGrammar(constraint.grammar if constraint else None, changes, checks, tools)

    def _relax(self) -> Iterator[None]:
        """Stops at ever looser ways to make it: as it was asked for, without what does not compile by itself, and with
        fewer and fewer tools enforced, the smaller ones. Raises RequestError if a tool is at fault that may not be."""
        yield
        self._relax_failing()
        yield
        self._blame()
        enforced = [found.tool for found in self._tools.values() if self._is_relaxable(found.tool)]
        enforced.sort(key=lambda tool: len(json.dumps(tool.parameters)))
        while enforced:
            half = len(enforced) // 2
            self._tools |= {tool.name: unconstrained(tool) for tool in enforced[half:]}
            enforced = enforced[:half]
            yield

    def _relax_failing(self) -> None:
        if self._wanted and self._wanted.schema is not None:
            try:
                self._relaxer.compiler.prepare(self._wanted.grammar)
            except RequestError:
                self._wanted = replace(self._wanted, grammar=json_schema({}), dropped=("the whole schema",))
        if self._calling.is_possible:
            relaxable = [tool for tool in self._calling.allowed if self._is_relaxable(tool)]
            self._tools |= self._relaxer.relax(relaxable)

    def _is_relaxable(self, tool: Tool) -> bool:
        return tool.is_strict and tool.name not in self._calling.strict_names

    def _look_at(self, tool: Tool) -> Relaxed:
        if not self._is_relaxable(tool):
            return Relaxed(tool)
        with _blaming(self._calling.places[tool.name]):
            return self._relaxer.look_at(tool)

    def _told(self) -> tuple[tuple[str, ...], dict[str, tuple[str, Any]]]:
        changes, checks = [], {}
        if self._wanted and self._wanted.dropped:
            changes.append(f"{self._wanted.param}: {tell(self._wanted.dropped)}")
            checks[ANSWER] = self._wanted.param, self._wanted.schema
        for tool in self._calling.allowed:
            relaxed = self._tools.get(tool.name)
            if not relaxed or (tool.is_strict and not relaxed.dropped):
                continue
            param = self._calling.places[tool.name]
            checks[tool.name] = param, tool.parameters
            if relaxed.dropped:
                changes.append(f"{param}: {tell(relaxed.dropped)}")
        return tuple(changes), checks

    def _blame(self) -> None:
        """Raise what is wrong with one tool alone, if that is what is wrong."""
        for name, relaxed in [*self._tools.items()][:_MAX_BLAMED]:
            remedy = f"; without strict: true {_WITHOUT}" if name in self._calling.strict_names else ""
            with _blaming(self._calling.places[name], remedy):
                self._relaxer.compiler.prepare(self._relaxer.format.grammar([relaxed.tool], ToolChoice("required")))


def constrain(wanted: Constraint | None, calling: Calling, tool_format: ToolFormat) -> Constraint | None:
    if not calling.is_possible:
        return wanted
    if wanted is None or calling.is_required:
        with _blaming("tools"):
            return Constraint("tools", tool_format.grammar(calling.allowed, calling.choice))
    if wanted.grammar.kind != "json_schema" or tool_format.name in _UNMARKED:
        reason = f"{wanted.param} cannot be given together with tools, unless tool_choice is 'none'"
        raise RequestError(reason, param=wanted.param)
    with _blaming("tools"):
        calls = tool_format.grammar(calling.allowed, replace(calling.choice, mode="required"))
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
