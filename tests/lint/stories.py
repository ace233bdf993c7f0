"""Conversations to lint: a chat of several turns with long instructions, and one by Anthropic's messages."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.engine import LintReport, lint
from hotloop.lint.finding import Finding
from hotloop.lint.meter import Meter
from hotloop.lint.parts import parse_answer
from hotloop.lint.requests import LintedRequest, find_api

Json = dict[str, Any]

RULES = "\n".join(f"Rule {i}: a customer who asks for {i} parcels is told to wait for {i} days." for i in range(60))
SYSTEM = f"You are the agent of a shop.\n{RULES}"


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} something, whatever it may be, and say what came of it",
            "parameters": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": f"which one to {name}"},
                    "why": {"type": "string"},
                },
                "required": ["id", "why"],
            },
        },
    }
    for name in ("cancel", "find", "get_order", "refund", "track")
]


def call(name: str, arguments: str, id_: str = "call_1") -> Json:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str = "", *calls: Json, **more: Any) -> Json:
    return {"role": "assistant", "content": text or None, **({"tool_calls": [*calls]} if calls else {}), **more}


def result(text: str, id_: str = "call_1") -> Json:
    return {"role": "tool", "tool_call_id": id_, "content": text}


TALK = [
    user("Hello, where is my parcel? The number is 4711-0815."),
    assistant("Let me look that up for you.", call("find", '{"id": "4711-0815", "why": "where"}')),
    result('{"state": "in the van", "van": "B-42", "notes": "the driver was here twice and nobody was at home"}'),
    assistant("It is in the van, and the driver was at your door twice."),
    user("Then I want my money back, please."),
    assistant("", call("refund", '{"id": "4711-0815", "why": "not delivered"}')),
    result('{"done": true}'),
    assistant("Done: you have your money back."),
]


def bodies(
    talk: Sequence[Json] = TALK, *, system: str = SYSTEM, tools: Sequence[Json] = TOOLS, model: str = "tiny"
) -> list[tuple[Json, Json]]:
    """The requests of a talk, each with its answer."""
    first = [{"role": "system", "content": system}] if system else []
    offered = {"tools": [*tools]} if tools else {}
    return [
        ({"model": model, "messages": [*first, *talk[:i]], **offered}, message)
        for i, message in enumerate(talk)
        if message["role"] == "assistant"
    ]


def exchanges(
    pairs: Iterable[tuple[Json, Json]], change: Callable[[Json, int], Json] = lambda body, number: body, **more: Any
) -> list[LintedRequest]:
    """As they would come from a file; `change` is what the client does to each body."""
    found = []
    for number, (body, answer) in enumerate(pairs):
        changed = change(body, number)
        api = find_api(changed)
        assert api
        found.append(LintedRequest(body=changed, api=api, answer=parse_answer(answer, api), **more))
    return found


def lint_chat(
    change: Callable[[Json, int], Json] = lambda body, number: body, talk: Sequence[Json] = TALK, **more: Any
) -> LintReport:
    return lint(sort_into_runs(exchanges(bodies(talk, **more), change), Meter()))


def found(report: LintReport, rule: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.rule == rule]


def rules_of(report: LintReport) -> set[str]:
    return {finding.rule for finding in report.findings}


def messages_bodies(
    *, system: Any = SYSTEM, num_turns: int = 3, mark: Callable[[Json, int], Json] = lambda body, number: body
) -> list[tuple[Json, Json]]:
    """A conversation by Anthropic's API in which a tool is called every turn; `mark` sets breakpoints."""
    pairs, messages = [], [{"role": "user", "content": [{"type": "text", "text": "Look at all of them."}]}]
    for i in range(num_turns):
        use = {"type": "tool_use", "id": f"toolu_{i}", "name": "look", "input": {"number": i}}
        answer = {"role": "assistant", "content": [{"type": "text", "text": f"Number {i}."}, use]}
        body = {"model": "claude-sonnet-4", "max_tokens": 100, "system": system, "messages": [*messages]}
        pairs.append((mark(body, i), answer))
        text = f"Number {i} is " + "long, " * 800
        messages += [
            answer,
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": text}]},
        ]
    return pairs
