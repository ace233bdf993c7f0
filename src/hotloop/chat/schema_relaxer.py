"""Schemas that no grammar can keep to as a whole: the answer is constrained as far as possible, and checked afterwards.

What is not enforced is told with the answer, and once in the log. A tool is never refused for its schema here: what the
compiler does not take of it is left out, down to any JSON object.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from hotloop.chat.stream import CallParser, WrappedParser
from hotloop.chat.tool_format import ToolFormat
from hotloop.chat.tools import ToolChoice
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar, MalformedSchema, relax
from hotloop.core.lru import LruCache
from hotloop.core.message import Tool
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, StreamEvent, TextDelta

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Checks = Mapping[str, tuple[str, Any]]
"""For a tool's name, or the answer itself: the field its schema came in, and the schema."""
FindViolation = Callable[[Any, Any], str]
"""Where a value does not follow a schema; empty if it does."""

ANSWER = ""
"""In place of a tool's name: the answer that is not a call."""

_MAX_TOLD = 8  # of what is not enforced in one schema
_MAX_KEPT = 1024
_MAX_KEPT_CHARS = 4 << 20  # of their schemas; as Python objects they take some ten times that
_WORDS = ("$schema", "$id", "title", "description", "examples", "default")
_PLAIN = ("type", "properties", "required", "additionalProperties", "$defs", "definitions")


class GrammarCompiler(Protocol):
    def prepare(self, grammar: Grammar) -> object:
        """Compile it, so that the engine finds it done. Raises RequestError if that cannot be done."""
        ...


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A tool as far as a grammar can keep to it, and what it cannot keep to."""

    tool: Tool
    dropped: tuple[str, ...] = ()


class SchemaRelaxer:
    """Finds how much of a tool's schema can be enforced, once for each. Used by all threads that make jobs."""

    def __init__(self, tool_format: ToolFormat, compiler: GrammarCompiler, *, max_trial_s: float = 6.0) -> None:
        self.format = tool_format
        self.compiler = compiler
        self._max_trial_s = max_trial_s
        self._lock = threading.Lock()
        self._kept: LruCache[str, Relaxed] = LruCache(_MAX_KEPT_CHARS, _MAX_KEPT)

    def look_at(self, tool: Tool) -> Relaxed:
        """Without what no grammar has words for, and what was found not to compile before."""
        key = _key(tool)
        with self._lock:
            known = self._kept.find(key)
        return known or self._keep(key, _look_at(tool))

    def relax(self, tools: Sequence[Tool]) -> dict[str, Relaxed]:
        """These do not compile together: the tools at fault by name, each as far as it compiles. When the time for that
        is up, what was not tried is not enforced; it is tried with the next request."""
        until = time.monotonic() + self._max_trial_s
        looked = {tool.name: self.look_at(tool).tool for tool in tools}
        failing = _find_failing([*looked.values()], lambda some: self._compile(some, until))
        at_fault = {tool.name for tool in failing}
        return {tool.name: self._relax(tool, until) for tool in tools if tool.name in at_fault}

    def _relax(self, tool: Tool, until: float) -> Relaxed:
        if time.monotonic() >= until:
            return unconstrained(tool)
        found = next((found for found in self._more_relaxed(tool, until) if self._compile([found.tool], until)), None)
        return self._keep(_key(tool), found or unconstrained(tool))

    def _keep(self, key: str, found: Relaxed) -> Relaxed:
        with self._lock:
            known = self._kept.find(key)
            self._kept.put(key, found, len(key))
        if found.dropped and (not known or found.dropped != known.dropped):
            log.warning("tool %s: %s", found.tool.name, tell(found.dropped))
        return found

    def _more_relaxed(self, tool: Tool, until: float) -> Iterator[Relaxed]:
        found = _look_at(tool)
        schema, dropped = found.tool.parameters, found.dropped
        dropped += tuple(repr(key) for key in schema if key not in _PLAIN and key not in _WORDS)
        plain = {key: value for key, value in schema.items() if key in _PLAIN}
        if plain.get("additionalProperties") is False:
            plain["required"] = [name for name in plain.get("required", ()) if name in plain.get("properties", {})]
            dropped += ("'required'",) if plain["required"] != schema.get("required", []) else ()
        yield Relaxed(replace(tool, parameters=plain), dropped)
        properties = dict(plain.get("properties", {}))

        def compile_alone(names: Sequence[str]) -> bool:
            alone = {**plain, "properties": {name: properties[name] for name in names}, "required": []}
            return self._compile([replace(tool, parameters=alone)], until)

        for name in _find_failing([*properties], compile_alone):
            properties[name] = _outline(properties[name])
            dropped += (f"properties.{name}",)
        yield Relaxed(replace(tool, parameters={**plain, "properties": properties}), dropped)

    def _compile(self, tools: Sequence[Tool], until: float) -> bool:
        """Whether they compile, and that can be found out in time."""
        if time.monotonic() >= until:
            return False
        try:
            self.compiler.prepare(self.format.grammar(tools, ToolChoice("required")))
        except RequestError:
            return False
        return True


def _find_failing(items: Sequence[Item], compiles: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Those that do not compile, by halves: of many mostly few do not."""
    if not items or compiles(items):
        return []
    if len(items) == 1:
        return [*items]
    half = len(items) // 2
    return [*_find_failing(items[:half], compiles), *_find_failing(items[half:], compiles)]


def _key(tool: Tool) -> str:
    return json.dumps([tool.name, tool.parameters])


def unconstrained(tool: Tool) -> Relaxed:
    return Relaxed(replace(tool, is_strict=False), ("the whole schema",))


def _look_at(tool: Tool) -> Relaxed:
    try:
        schema, dropped = relax(tool.parameters)
    except MalformedSchema:
        raise
    except RequestError:  # it is too large to be looked at
        return unconstrained(tool)
    return Relaxed(replace(tool, parameters=schema) if dropped else tool, dropped)


def _outline(schema: Any) -> Any:
    """No more than the type."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return {"type": kind} if kind in ("string", "integer", "number", "boolean", "array", "object") else True


def tell(dropped: tuple[str, ...]) -> str:
    more = f" and {len(dropped) - _MAX_TOLD} more" if len(dropped) > _MAX_TOLD else ""
    told = ", ".join(f"{each:.100}" for each in dropped[:_MAX_TOLD])
    return f"not enforced, but checked afterwards: {told}{more}"


class CheckedParser(WrappedParser):
    """A parser that looks at what it has parsed: calls and answers that break what was not enforced are told."""

    def __init__(
        self,
        parser: CallParser,
        checks: Checks,
        find_violation: FindViolation,
        on_change: Callable[[str], None],
        begun: str = "",
    ) -> None:
        super().__init__(parser)
        self._checks = checks
        self._find_violation = find_violation
        self._on_change = on_change
        self._names: dict[int, str] = {}
        self._texts: dict[int, list[str]] = {}
        self._answer = [begun] if begun else []

    def finish(self, *, is_cut: bool = False) -> list[StreamEvent]:
        events = super().finish(is_cut=is_cut)
        if ANSWER in self._checks and self._answer and not self.num_calls and not is_cut:
            self._check(ANSWER, "the answer does", "".join(self._answer))
        return events

    def _pass(self, events: list[StreamEvent]) -> list[StreamEvent]:
        for event in events:
            match event:
                case TextDelta(text) if ANSWER in self._checks:
                    self._answer.append(text)
                case CallOpened(index, _, name) if name in self._checks:
                    self._names[index], self._texts[index] = name, []
                case CallDelta(index, arguments) if index in self._names:
                    self._texts[index].append(arguments)
                case CallClosed(index) if index in self._names:
                    name = self._names.pop(index)
                    self._check(name, f"the arguments of {name} do", "".join(self._texts.pop(index)))
        return events

    def _check(self, name: str, subject: str, text: str) -> None:
        param, schema = self._checks[name]
        try:
            violation = self._find_violation(json.loads(text), schema)
        except (ValueError, RecursionError):
            violation = "not JSON"
        if violation:
            self._on_change(f"{param}: {subject} not follow the schema: {violation}")
