"""What is read off a request, whichever API it is for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.router.tiers.features import Features, look_at


def look(**body: Any) -> Features:
    return look_at(body, num_tokens=10)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_a_chat():
    features = look(
        messages=[
            {"role": "system", "content": "```"},
            user("one"),
            {"role": "assistant", "content": "x"},
            user([{"type": "text", "text": "see ```py```"}]),
        ],
        tools=[{}, {}],
        response_format={"type": "json_object"},
    )
    assert (features.text, features.num_turns, features.num_tools, features.num_tokens) == ("see ```py```", 2, 2, 10)
    assert (features.has_shape, features.has_code, features.has_tool_error) == (True, True, False)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [user("hi")]},
        {"messages": [user([{"type": "text", "text": "hi"}])]},
        {"input": "hi", "instructions": "be kind"},
        {"input": [user([{"type": "input_text", "text": "hi"}])]},
        {"prompt": "hi"},
    ],
)
def test_every_api_says_what_the_user_said(body: dict[str, Any]):
    assert (look(**body).text, look(**body).num_turns, look(**body).has_shape) == ("hi", 1, False)


def test_results_of_tools_are_no_turn_of_the_user():
    blocks = [{"type": "tool_result", "tool_use_id": "t", "content": "42"}]
    assert look(messages=[user("hi"), {"role": "assistant", "content": []}, user(blocks)]).num_turns == 1


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_schema"}},
        {"text": {"format": {"type": "json_schema"}}},
        {"choice": ["a"]},
        {"structured_outputs": {"regex": "a"}},
        {"guided_json": {}},
    ],
)
def test_shapes(more: dict[str, Any]):
    assert look(messages=[], **more).has_shape


CALLED = {"role": "assistant", "tool_calls": [{}]}


@pytest.mark.parametrize(
    ("items", "has_failed"),
    [
        ([CALLED, {"role": "tool", "content": "Error: no such file"}], True),
        ([CALLED, {"role": "tool", "content": '{"error": "late"}'}, {"role": "tool", "content": "fine"}], True),
        ([CALLED, {"role": "tool", "content": '{"error": null}'}], False),
        ([CALLED, {"role": "tool", "content": '{"error"'}], False),
        ([CALLED, {"role": "tool", "content": "the error is human"}], False),
        (
            [CALLED, {"role": "tool", "content": "Error"}, {"role": "assistant", "content": "I see"}, user("go on")],
            False,
        ),
        ([{"role": "assistant"}, user([{"type": "tool_result", "is_error": True, "content": "x"}])], True),
        ([{"role": "assistant"}, user([{"type": "tool_result", "is_error": False, "content": "x"}])], False),
    ],
)
def test_a_failed_call_is_one_since_the_last_answer(items: list[dict[str, Any]], has_failed: bool):
    assert look(messages=items).has_tool_error is has_failed


def test_failed_calls_of_responses():
    items = [{"type": "function_call", "name": "f"}, {"type": "function_call_output", "output": "Error: no"}]
    assert look(input=items).has_tool_error
    assert not look(input=[*items, {"role": "assistant", "content": "sorry"}]).has_tool_error


KEYS = [
    "messages",
    "input",
    "prompt",
    "role",
    "content",
    "type",
    "text",
    "tools",
    "metadata",
    "output",
    "format",
    "is_error",
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=6))
def test_whatever_is_sent_is_looked_at(body: dict[str, Any]):
    look_at(body, num_tokens=0)


@pytest.mark.parametrize(
    ("items", "is_loop"),
    [
        ([{"role": "user", "content": "hi"}], False),
        ([{"role": "user", "content": "hi"}, {"role": "assistant"}, {"role": "tool", "content": "42"}], True),
        ([{"role": "tool", "content": "42"}, {"role": "assistant", "content": "so"}, {"role": "user"}], False),
        (
            [{"role": "user", "content": [{"type": "tool_result", "content": "42"}, {"type": "text", "text": "x"}]}],
            True,
        ),
        ([{"role": "tool", "content": "42"}, {"role": "system", "content": "be brief"}], True),
    ],
)
def test_a_tool_loop_is_where_results_are_the_newest(items: list[dict[str, Any]], is_loop: bool):
    assert look_at({"messages": items}, num_tokens=1).is_tool_loop is is_loop


def test_a_tool_loop_of_responses():
    items = [
        {"type": "function_call", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "42"},
    ]
    assert look_at({"input": items}, num_tokens=1).is_tool_loop
    assert not look_at({"input": [*items, {"role": "user", "content": "go on"}]}, num_tokens=1).is_tool_loop
