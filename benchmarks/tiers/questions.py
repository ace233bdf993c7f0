"""A mixed set of tasks with checkable answers, made out of questions that tools answer: classification, extraction,
short questions of fact, one call, a choice among tools, and several calls at once.

What the key of a question knows is asked for in other ways; nothing is judged by a model.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hotloop.bench.questions import Expected, ToolQuestion, is_right
from hotloop.core.message import ToolCall
from hotloop.router.tiers.config import Task
from hotloop.wire.field import Json

TaskKind = Literal["classification", "extraction", "qa", "call", "tool choice", "several calls"]

_MAX_WORDS = 4  # of an answer that a short question is asked for


@dataclass(frozen=True, slots=True)
class TierQuestion:
    """A chat request but for its model, what an agent runtime would say it is, and whether an answer is right."""

    id: str
    kind: TaskKind
    body: Json
    task: Task | None
    """None: the runtime has no word for it, and the rules go by what they see."""
    is_right: Callable[[Mapping[str, Any]], bool]
    """Of the message that came back."""


def mix(questions: Mapping[str, Sequence[ToolQuestion]], num_each: int) -> list[TierQuestion]:
    """So many of each kind, one kind after the other in turn. No question is used for two kinds."""
    simple, multiple, parallel = (list(questions[name]) for name in ("simple", "multiple", "parallel"))
    kinds: list[list[TierQuestion]] = [
        _take(simple[0::3], _one_call, num_each),
        _take(multiple[0::2], _classification, num_each),
        _take(simple[1::3], _extraction, num_each),
        _take(multiple[1::2], _tool_choice, num_each),
        _take(simple[2::3], _fact, num_each),
        _take(parallel, _several_calls, num_each),
    ]
    return [question for turn in zip(*kinds, strict=False) for question in turn]


def _take(
    questions: Iterable[ToolQuestion], make: Callable[[ToolQuestion], TierQuestion | None], num_each: int
) -> list[TierQuestion]:
    made = (each for each in map(make, questions) if each is not None)
    return [question for question, _ in zip(made, range(num_each), strict=False)]


def _one_call(question: ToolQuestion) -> TierQuestion:
    return TierQuestion(question.id, "call", _tool_body(question), None, lambda m: _has_calls(question, m))


def _tool_choice(question: ToolQuestion) -> TierQuestion:
    return TierQuestion(question.id, "tool choice", _tool_body(question), None, lambda m: _has_calls(question, m))


def _several_calls(question: ToolQuestion) -> TierQuestion:
    body = _tool_body(question)
    return TierQuestion(question.id, "several calls", body, "reasoning", lambda m: _has_calls(question, m))


def _classification(question: ToolQuestion) -> TierQuestion | None:
    """Which of the functions is the one for it?"""
    if len(question.tools) < 2 or len(question.expected) != 1:
        return None
    (wanted,) = question.expected[0]
    listed = "\n".join(f"{name}: {function['description']}" for name, function in question.functions.items())
    asked = (
        f"Which of these functions serves the request? Answer with its name.\n{listed}\n\nRequest: {_said(question)}"
    )
    body = {**_body(asked, 48), "choice": list(question.functions)}
    return TierQuestion(question.id, "classification", body, "classification", lambda m: m.get("content") == wanted)


def _extraction(question: ToolQuestion) -> TierQuestion | None:
    """The arguments of the call, as JSON of their schema."""
    if len(question.expected) != 1:
        return None
    (name,) = question.expected[0]
    function = question.functions[name]
    asked = f"Extract the fields from the text as JSON. They describe: {function['description']}\n\n{_said(question)}"
    shape = {"type": "json_schema", "json_schema": {"name": "fields", "schema": function["parameters"]}}
    fields = json.dumps(function["parameters"].get("properties", {}))
    body = {**_body(f"{asked}\n\nFields: {fields}", 128), "response_format": shape}

    def has_values(message: Mapping[str, Any]) -> bool:
        return is_right(question, [ToolCall("", name, message.get("content") or "")])

    return TierQuestion(question.id, "extraction", body, "extraction", has_values)


def _fact(question: ToolQuestion) -> TierQuestion | None:
    """One value of the call, asked for by its description."""
    if len(question.expected) != 1:
        return None
    found = _find_fact(question.expected[0])
    if found is None:
        return None
    name, field, values = found
    described = question.functions[name]["parameters"]["properties"].get(field, {}).get("description", field)
    asked = f"{_said(question)}\n\nAccording to this request, what is the following? {described}"
    body = _body(f"{asked} Answer with the value alone, in at most {_MAX_WORDS} words.", 16)
    wanted = {_plain(str(value)) for value in values}
    return TierQuestion(question.id, "qa", body, "qa", lambda m: _plain(m.get("content") or "") in wanted)


def _find_fact(expected: Expected) -> tuple[str, str, Sequence[Any]] | None:
    """The first argument that must be there and is a short text or a number."""
    for name, arguments in expected.items():
        for field, options in arguments.items():
            is_plain = all(isinstance(option, str | int | float) for option in options)
            if is_plain and "" not in options and not any(isinstance(option, bool) for option in options):
                return name, field, options
    return None


def _has_calls(question: ToolQuestion, message: Mapping[str, Any]) -> bool:
    calls = message.get("tool_calls") or []
    parsed = [ToolCall("", call["function"]["name"], call["function"]["arguments"]) for call in calls]
    return is_right(question, parsed)


def _tool_body(question: ToolQuestion) -> Json:
    return {
        "messages": list(question.messages),
        "tools": list(question.tools),
        "tool_choice": "required",
        "parallel_tool_calls": question.is_parallel,
        "temperature": 0,
        "max_tokens": 256,
    }


def _body(asked: str, max_tokens: int) -> Json:
    return {"messages": [{"role": "user", "content": asked}], "temperature": 0, "max_tokens": max_tokens}


def _said(question: ToolQuestion) -> str:
    return "\n".join(str(message["content"]) for message in question.messages if message["role"] == "user")


def _plain(text: str) -> str:
    """Case, spaces, quotation marks and the stop at the end do not count."""
    return "".join(text.lower().replace('"', "").replace("'", "").split()).rstrip(".")
