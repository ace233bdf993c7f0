"""A question that tools can answer, and whether an answer's calls are valid (the schema says) and right (the key says).

Right is judged as the Berkeley Function-Calling Leaderboard does: each argument must be one of those thought possible,
where spaces, case and light punctuation do not count. Knows neither where questions come from nor how they are asked.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from cyclopts.types import NonNegativeFloat, PositiveInt

from hotloop.core.message import ToolCall
from hotloop.http.json_schema import first_violation
from hotloop.wire.field import Json

Expected = Mapping[str, Mapping[str, Sequence[Any]]]
"""One call of the key: a function's name to its arguments, each a list of possible values; "" for "may be left out"."""


class ToolQuestion(NamedTuple):
    """Messages and tools as they go over the wire, and the calls that would be right, in any order."""

    id: str
    category: str
    messages: tuple[Json, ...]
    tools: tuple[Json, ...]
    expected: tuple[Expected, ...] = ()
    is_parallel: bool = False
    """Whether several calls are wanted at once."""

    @property
    def functions(self) -> dict[str, Json]:
        return {tool["function"]["name"]: tool["function"] for tool in self.tools}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """How all questions are asked."""

    agents: PositiveInt = 1
    """Number of concurrent questions."""
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature; 0 is greedy."""
    seed: int = 0
    """Random seed of sampling and of generated workflows."""
    delivery: Literal["streamed", "whole", "both"] = "streamed"
    """How answers are requested; `both` streams, and then checks whole answers without timing them."""
    tool_choice: Literal["required", "auto"] = "required"
    """Whether a tool must be called."""
    strict: bool | None = None
    """Whether calls must follow their schema; the server's default if not given."""
    max_tokens: PositiveInt = 512
    """Maximum tokens per answer."""

    def body(self, question: ToolQuestion) -> Json:
        tools: Sequence[Json] = question.tools
        if self.strict is not None:
            tools = [{**tool, "function": {**tool["function"], "strict": self.strict}} for tool in tools]
        same = {name: getattr(self, name) for name in ("tool_choice", "temperature", "seed", "max_tokens")}
        return {"tools": tools, "parallel_tool_calls": question.is_parallel, **same}


def is_well_formed(question: ToolQuestion, call: ToolCall) -> bool:
    """Whether the call names a tool of the question and its arguments are a JSON object."""
    return call.name in question.functions and parse_arguments(call) is not None


def follows_schema(question: ToolQuestion, call: ToolCall) -> bool:
    """Whether a call is well-formed and its arguments are as the tool's schema wants them."""
    schema = question.functions.get(call.name, {}).get("parameters", {})
    return is_well_formed(question, call) and not first_violation(parse_arguments(call), schema)


def parse_arguments(call: ToolCall) -> Json | None:
    """The arguments, if they are a JSON object and every key of it stands there once."""
    try:
        arguments = json.loads(call.arguments, parse_constant=_refuse, object_pairs_hook=_no_twins)
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _no_twins(pairs: list[tuple[str, Any]]) -> Json:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key stands there twice")
    return values


def is_right(question: ToolQuestion, calls: Sequence[ToolCall]) -> bool:
    """Whether the calls are those of the key, each once, in whatever order."""
    missing = list(question.expected)
    if len(calls) != len(missing):
        return False
    for call in calls:
        found = next((expected for expected in missing if _is_call(call, expected)), None)
        if found is None:
            return False
        missing.remove(found)
    return True


def _is_call(call: ToolCall, expected: Expected) -> bool:
    arguments = parse_arguments(call)
    return any(call.name == name and _has_values(arguments, possible) for name, possible in expected.items())


def _has_values(values: Any, possible: Mapping[str, Sequence[Any]]) -> bool:
    """Whether an object has nothing unheard of, leaves out nothing needed, and each value is a possible one."""
    if not isinstance(values, dict) or not values.keys() <= possible.keys():
        return False
    return all(
        any(_is_same(values[name], option) for option in options) if name in values else "" in options
        for name, options in possible.items()
    )


def _is_same(value: Any, option: Any) -> bool:
    if isinstance(option, dict):
        return _has_values(value, option)
    if isinstance(option, list):
        if not isinstance(value, list) or len(value) != len(option):
            return False
        return all(_is_same(item, wanted) for item, wanted in zip(value, option, strict=True))
    if isinstance(option, str) or isinstance(value, str):
        return isinstance(option, str) and isinstance(value, str) and _plain(value) == _plain(option)
    return bool(value == option) and isinstance(value, bool) == isinstance(option, bool)


def _plain(text: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')
