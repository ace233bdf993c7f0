"""The schema of a plan, held against the real compiler of grammars."""

import enum
import json
from typing import Any, Literal

import jsonschema
import pydantic
import pytest
from tests.engine.tiny import TOKENIZER, VOCAB_SIZE

from hotloop.agent.plan.schema import MAX_STEPS, plan_schema
from hotloop.agent.tools.tool import tool
from hotloop.core.grammar import json_schema
from hotloop.core.message import Tool
from hotloop.engine.grammar.matcher import Grammars

GRAMMARS = Grammars(TOKENIZER, VOCAB_SIZE)


class Cabin(enum.Enum):
    economy = "economy"
    business = "business"


class Passenger(pydantic.BaseModel):
    name: str
    age: int
    friends: "list[Passenger]" = []


@tool
def search(query: str, limit: int = 10, kind: Literal["page", "image"] = "page") -> str:
    """Look for something."""
    return query


@tool
def book(passengers: list[Passenger], cabin: Cabin, bags: dict[str, int] | None = None) -> str:
    """Book a flight."""
    return "booked"


@tool
def now() -> str:
    """The time."""
    return "12:00"


SCHEMA = plan_schema([search.spec, book.spec, now.spec])

GOOD: list[dict[str, Any]] = [
    {"id": "a", "tool": "search", "arguments": {"query": "x"}},
    {"id": "a", "tool": "search", "arguments": {"query": "all of ${b.c[0]}", "limit": "${b}", "kind": "${b.kind}"}},
    {"id": "step_2", "tool": "search", "arguments": {"query": "x", "limit": 3, "kind": "image"}},
    {"id": "a", "tool": "now", "arguments": {}},
    {"id": "a", "tool": "book", "arguments": {"passengers": "${b.people}", "cabin": "business"}},
    {
        "id": "a",
        "tool": "book",
        "arguments": {
            "passengers": [
                {"name": "Ann", "age": "${b.age}", "friends": [{"name": "Bob", "age": 3}, "${c}"]},
                "${d[0]}",
            ],
            "cabin": "${b.cabin}",
            "bags": {"Ann": "${b.bags}", "Bob": 2},
        },
    },
]
BAD: list[dict[str, Any]] = [
    {"id": "A!", "tool": "now", "arguments": {}},
    {"id": "a", "tool": "nothing", "arguments": {}},
    {"id": "a", "tool": "search", "arguments": {}},
    {"id": "a", "tool": "search", "arguments": {"query": 3}},
    {"id": "a", "tool": "search", "arguments": {"query": "x", "limit": "many"}},
    {"id": "a", "tool": "search", "arguments": {"query": "x", "kind": "sound"}},
    {"id": "a", "tool": "search", "arguments": {"query": "x", "other": 1}},
    {"id": "a", "tool": "book", "arguments": {"passengers": [{"name": "Ann"}], "cabin": "economy"}},
    {"tool": "now", "arguments": {}},
]


def is_written(text: str, schema: dict[str, Any]) -> bool:
    """Whether a model bound to a schema could write this, as the engine has it."""
    matcher = GRAMMARS.matcher(json_schema(schema))
    return all(matcher.advance(token_id) for token_id in TOKENIZER.encode(text)) and matcher.is_complete


def is_valid(plan: Any, schema: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(plan)


@pytest.mark.parametrize("step", GOOD, ids=json.dumps)
def test_a_good_step_can_be_written(step: dict[str, Any]):
    plan = {"steps": [{"id": "b", "tool": "now", "arguments": {}}, step]}
    assert is_valid(plan, SCHEMA)
    assert is_written(json.dumps(plan), SCHEMA)


@pytest.mark.parametrize("step", BAD, ids=json.dumps)
def test_a_bad_step_cannot(step: dict[str, Any]):
    assert not is_valid({"steps": [step]}, SCHEMA)
    assert not is_written(json.dumps({"steps": [step]}), SCHEMA)


def test_a_plan_may_be_empty_and_not_endless():
    step = {"id": "a", "tool": "now", "arguments": {}}
    assert is_written('{"steps": []}', SCHEMA)
    assert is_written(json.dumps({"steps": [step] * MAX_STEPS}), SCHEMA)
    assert not is_written(json.dumps({"steps": [step] * (MAX_STEPS + 1)}), SCHEMA)


def test_tools_of_strangers():
    """References within a schema still lead where they did, in the old spelling too, and what is not strict is free."""
    tree = {
        "type": "object",
        "properties": {"root": {"$ref": "#/definitions/node"}, "self": {"$ref": "#"}, "any": {}},
        "definitions": {"node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}}}},
    }
    free = Tool("free", parameters={"type": "object", "required": ["x"]}, is_strict=False)
    schema = plan_schema([Tool("bare"), free, Tool("tree", parameters=tree)])
    plan = {
        "steps": [
            {"id": "a", "tool": "bare", "arguments": {"x": [1, "${a}"]}},
            {"id": "b", "tool": "free", "arguments": {}},
            {"id": "c", "tool": "tree", "arguments": {"root": {"next": {"next": "${a.b}"}}, "self": {"any": 1}}},
        ]
    }
    assert is_valid(plan, schema)
    assert is_written(json.dumps(plan), schema)
    plan["steps"][2]["arguments"] = {"root": {"next": 3}}
    assert not is_valid(plan, schema)
    assert not is_written(json.dumps(plan), schema)


def test_many_tools_make_a_schema_that_compiles():
    tools = [Tool(f"tool_{i}", "words " * 100, book.spec.parameters) for i in range(60)]
    schema = plan_schema(tools)
    assert is_written(
        '{"steps": [{"id": "a", "tool": "tool_59", "arguments": {"passengers": [], "cabin": "${b}"}}]}', schema
    )
    assert "words" not in json.dumps(schema)
