"""A mixed set of tasks: what is asked, and which answers are right."""

import json
from typing import Any

from benchmarks.tiers.questions import TierQuestion, mix

from hotloop.bench.questions import ToolQuestion

PARAMETERS = {
    "type": "object",
    "properties": {"flag": {"type": "boolean"}, "city": {"type": "string", "description": "Which city."}},
    "required": ["city"],
}
FORECAST = {"name": "forecast", "description": "The weather.", "parameters": PARAMETERS}
CLOCK = {"name": "clock", "description": "The time.", "parameters": PARAMETERS}
KEY = {"forecast": {"flag": [True, ""], "city": ["Rome", "Roma"]}}


def question(
    number: int, category: str, *functions: dict[str, Any], expected: tuple[Any, ...] = (KEY,)
) -> ToolQuestion:
    tools = tuple({"type": "function", "function": function} for function in functions)
    messages = ({"role": "user", "content": f"Rain in Rome {number}?"},)
    return ToolQuestion(f"{category}-{number}", category, messages, tools, expected, is_parallel=category == "parallel")


QUESTIONS = {
    "simple": [question(i, "simple", FORECAST) for i in range(6)],
    "multiple": [question(i, "multiple", FORECAST, CLOCK) for i in range(4)],
    "parallel": [question(i, "parallel", FORECAST, expected=(KEY, KEY)) for i in range(2)],
}


def mixed() -> dict[str, TierQuestion]:
    return {each.kind: each for each in mix(QUESTIONS, 1)}


def called(*names: str, city: str = "rome") -> dict[str, Any]:
    arguments = json.dumps({"city": city})
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}} for name in names]}


def test_kinds_come_in_turn_and_no_question_twice():
    kinds = ["call", "classification", "extraction", "tool choice", "qa", "several calls"]
    questions = mix(QUESTIONS, 2)
    assert [each.kind for each in questions] == kinds * 2
    assert len({each.id for each in questions}) == 12
    assert [each.task for each in questions[:6]] == [None, "classification", "extraction", None, "qa", "reasoning"]


def test_fewer_questions_than_asked_for_give_fewer_of_every_kind():
    assert len(mix({**QUESTIONS, "parallel": QUESTIONS["parallel"][:1]}, 2)) == 6


def test_calls():
    for kind in ("call", "tool choice"):
        asked = mixed()[kind]
        assert (asked.body["tool_choice"], asked.body["parallel_tool_calls"]) == ("required", False)
        assert asked.is_right(called("forecast"))
        assert not asked.is_right(called("clock"))
        assert not asked.is_right({"content": "forecast"})
    several = mixed()["several calls"]
    assert several.body["parallel_tool_calls"]
    assert several.is_right(called("forecast", "forecast"))
    assert not several.is_right(called("forecast"))


def test_classification():
    asked = mixed()["classification"]
    assert asked.body["choice"] == ["forecast", "clock"]
    assert (asked.is_right({"content": "forecast"}), asked.is_right({"content": "clock"})) == (True, False)


def test_extraction():
    asked = mixed()["extraction"]
    assert asked.body["response_format"]["json_schema"]["schema"] == PARAMETERS
    assert asked.is_right({"content": '{"city": "Roma"}'})
    assert not asked.is_right({"content": '{"city": "Paris"}'})
    assert not asked.is_right({"content": None})


def test_facts():
    asked = mixed()["qa"]
    assert "Which city." in asked.body["messages"][0]["content"]
    assert [asked.is_right({"content": text}) for text in ('"Rome".', "roma", "It is Rome", None)] == [
        True,
        True,
        False,
        False,
    ]
