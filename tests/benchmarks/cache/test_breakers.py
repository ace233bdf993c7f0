"""What each breaker does to a request, and that it leaves the request it was given alone."""

import copy
import json
from typing import Any

import pytest
from benchmarks.cache.breakers import BREAKERS, Breaker, rewrite_arguments, say_late, shuffle_keys, shuffle_tools

from hotloop.core.message import Message, Tool
from hotloop.stable.nonces import Nonces
from hotloop.stable.tools import canonical_tools

SCHEMA = {
    "type": "object",
    "description": "what to find",
    "properties": {"b": {"type": "string", "description": "b"}, "a": {"enum": ["y", "x"]}},
    "required": ["b", "a"],
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "t0", "arguments": '{"b": "1", "a": "x"}'}}
BODY: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "found"},
        {"role": "assistant", "content": "There."},
        {"role": "user", "content": "thanks"},
    ],
    "tools": [{"type": "function", "function": {"name": f"t{i}", "parameters": SCHEMA}} for i in range(6)],
}
TIMES = [breaker for breaker in BREAKERS if breaker.group == "timestamp"]


@pytest.mark.parametrize("breaker", BREAKERS, ids=lambda breaker: breaker.name)
def test_a_breaker_is_pure_and_depends_on_the_number_alone(breaker: Breaker):
    body = copy.deepcopy(BODY)
    assert json.dumps(breaker.apply(body, 3)) == json.dumps(breaker.apply(body, 3))
    assert json.dumps(body) == json.dumps(BODY)


@pytest.mark.parametrize("breaker", TIMES, ids=lambda breaker: breaker.name)
def test_a_time_on_top_changes_with_every_request_and_only_known_ones_can_be_moved(breaker: Breaker):
    systems = [breaker.apply(BODY, number)["messages"][0]["content"] for number in range(3)]
    assert len(set(systems)) == 3
    assert all(system.endswith("Be kind.") for system in systems)
    nonces = Nonces()
    settled = [nonces.settle([Message("system", system), Message("user", "hello")])[0][0] for system in systems]
    assert (settled[1] == settled[2]) == breaker.can_help


def test_a_time_becomes_a_system_message_where_there_is_none():
    broken = TIMES[0].apply({"messages": [{"role": "user", "content": "hello"}]}, 0)
    assert [message["role"] for message in broken["messages"]] == ["system", "user"]


def to_tools(body: dict[str, Any]) -> list[Tool]:
    functions = [tool["function"] for tool in body["tools"]]
    return [Tool(function["name"], "", function["parameters"]) for function in functions]


@pytest.mark.parametrize("shuffle", [shuffle_tools, shuffle_keys])
def test_shuffled_tools_mean_the_same(shuffle: Any):
    one, other = shuffle(BODY, 1), shuffle(BODY, 2)
    assert json.dumps(one) != json.dumps(other)
    assert repr(canonical_tools(to_tools(one))) == repr(canonical_tools(to_tools(other)))
    assert shuffle({"messages": []}, 1) == {"messages": []}


def test_a_late_system_message_stays_before_the_second_turn_of_the_user():
    roles = [message["role"] for message in say_late(BODY, 0)["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "system", "user"]
    early = {"messages": BODY["messages"][:4]}
    assert say_late(early, 0) == early


def test_rewritten_arguments_have_the_same_value():
    [call] = rewrite_arguments(BODY, 0)["messages"][2]["tool_calls"]
    assert call["function"]["arguments"] == '{"b":"1","a":"x"}'
    cut = {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"b": "'}}]}]}
    assert rewrite_arguments(cut, 0) == cut
