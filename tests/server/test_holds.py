"""What the engine hears about when a prompt is wanted again, seen in its tree."""

import json
import math
from array import array
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.engine.tiny import TOKENIZER
from tests.server import claude
from tests.server.calls import TOOLS, write_call
from tests.server.serving import Serving, until

from hotloop.core.config import EngineConfig
from hotloop.core.retention import Hold, HoldKind
from hotloop.server.service import Service

CALLS = write_call("clock")
LONG = "It is kept for as long as it was asked for, and no longer than that. "
RULES = "These are the rules of the house, and they never change at all. "


@pytest.fixture
def agency() -> Iterator[Serving]:
    """A server whose model calls a tool, and is done with its next answer. Its cache is so large that it pays to wait
    for a tool; but sessions that called none were not seen again, so that the engine holds nothing by itself.
    """
    with Serving(script=[CALLS, "It is late in the evening."], num_blocks=4096) as serving:
        serving.engine._core.scheduler.admission._recent[False].extend([math.inf] * 32)
        yield serving


def find_holds(serving: Serving) -> dict[str, Hold]:
    """Every hold in the tree, by the text it holds."""
    found = {}
    for node in list(serving.engine._core.scheduler.tree.nodes()):
        hold, key, above = node.hold, node.key, node.parent
        while above:
            key, above = above.key + key, above.parent
        if hold:
            found[TOKENIZER.decode(array("i", key), keep_special=True)] = hold
    return found


def wait_for(serving: Serving, *kinds: HoldKind) -> dict[str, Hold]:
    until(lambda: sorted(hold.kind for hold in find_holds(serving).values()) == sorted(kinds))
    return find_holds(serving)


def wait_for_pins(serving: Serving, count: int) -> dict[str, Hold]:
    """The holds that were asked for, once there are so many."""

    def pins() -> dict[str, Hold]:
        return {text: hold for text, hold in find_holds(serving).items() if hold.kind is HoldKind.PINNED}

    until(lambda: len(pins()) == count)
    return pins()


def chat(serving: Serving, messages: list[Any], **fields: Any) -> dict[str, Any]:
    response = serving.chat(messages=messages, max_tokens=200, tools=TOOLS, **fields)
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


def user(*texts: str, marked: str = "") -> dict[str, Any]:
    control = {"cache_control": {"type": "ephemeral"}}
    blocks = [{"type": "text", "text": text, **(control if text == marked else {})} for text in texts]
    return {"role": "user", "content": blocks}


def test_an_answer_with_calls_is_expected_back_and_one_without_ends_the_run(agency: Serving) -> None:
    messages: list[Any] = [{"role": "user", "content": LONG}]
    called = chat(agency, messages)
    [(text, hold)] = wait_for(agency, HoldKind.TOOL_GAP).items()
    assert "clock" in text
    assert hold.until > 0
    result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "22:00"}
    messages += [called, result]
    chat(agency, messages)
    [(text, _)] = wait_for(agency, HoldKind.FINISHED).items()
    assert "22:00" in text


def test_the_time_a_tool_took_is_learnt(agency: Serving) -> None:
    messages: list[Any] = [{"role": "user", "content": LONG}]
    called = chat(agency, messages)
    service: Service = agency.server._service
    until(lambda: len(service.retention_hints.gaps._open) == 1)  # the other front's answer is told
    messages += [called, {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "22:00"}]
    chat(agency, messages)
    until(lambda: not service.retention_hints.gaps._open)
    assert [*service.retention_hints.gaps._recent] == ["clock"]


def test_by_every_api_and_in_streams_too(agency: Serving) -> None:
    chat(agency, [{"role": "user", "content": "Chat. " + LONG}], stream=False)
    agency.chat(messages=[{"role": "user", "content": "Stream. " + LONG}], max_tokens=200, tools=TOOLS, stream=True)
    claude.post(agency, messages=[user("Messages. " + LONG)], max_tokens=200, tools=claude.TOOLS)
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    agency.http.post("/v1/responses", json={"input": "Responses. " + LONG, "tools": tools})
    texts = wait_for(agency, *[HoldKind.TOOL_GAP] * 4)
    for word in ("Chat", "Stream", "Messages", "Responses"):
        assert any(word in text for text in texts)


@pytest.mark.parametrize("fields", [{"n": 2}, {"max_tokens": 8}])
def test_nothing_is_expected_of_several_choices_or_of_an_answer_that_was_cut(
    agency: Serving, fields: dict[str, Any]
) -> None:
    chat(agency, [{"role": "user", "content": LONG}])
    agency.chat(messages=[{"role": "user", "content": f"Again. {LONG}"}], tools=TOOLS, **{"max_tokens": 200} | fields)
    agency.chat()  # by now the engine has heard of a hold, if there is one
    held = find_holds(agency)
    assert held
    assert not any("Again" in text for text in held)


def test_a_breakpoint_pins_what_lies_before_it(agency: Serving) -> None:
    system = [{"type": "text", "text": RULES, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    messages = [user(LONG, "And this is not kept, though it is as long as the rest of it.", marked=LONG)]
    usage = claude.post(agency, system=system, messages=messages).json()["usage"]
    holds = wait_for_pins(agency, 2)
    (first, hour), (second, minutes) = sorted(holds.items(), key=lambda pair: len(pair[0]))
    assert (hour.ttl_s, minutes.ttl_s) == (3600, 300)
    assert_is_cut(first, RULES)
    assert_is_cut(second, LONG)
    assert usage["input_tokens"] > len("And this is not kept, though it is as long as the rest of it.")
    assert usage["cache_creation_input_tokens"] >= len(RULES) + len(LONG)
    assert usage["cache_read_input_tokens"] == 0


def test_a_breakpoint_behind_the_tools_pins_all_of_them(serving: Serving) -> None:
    """They may stand in another order in the prompt."""
    tools = json.loads(json.dumps(claude.TOOLS))
    tools[1]["cache_control"] = {"type": "ephemeral"}
    usage = claude.post(serving, system="Only here. " + RULES, tools=tools).json()["usage"]
    assert usage["cache_creation_input_tokens"] > len(RULES)
    assert usage["input_tokens"] < usage["cache_creation_input_tokens"]


@pytest.mark.parametrize(
    ("fields", "ttl_s"),
    [
        ({"prompt_cache_retention": "24h"}, 3600),
        ({"prompt_cache_retention": "in_memory"}, 300),
        ({"prompt_cache_options": {"ttl": "30m"}}, 1800),
        ({"prompt_cache_options": {"ttl": "30m", "mode": "implicit"}, "prompt_cache_retention": "24h"}, 1800),
        ({"prompt_cache_options": {"ttl": "30m", "mode": "explicit"}}, None),
        ({"prompt_cache_options": {}}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_openais_words_pin_the_whole_prompt(path: str, fields: dict[str, Any], ttl_s: int | None) -> None:
    body = {"messages": [{"role": "user", "content": LONG}], "input": LONG, "max_tokens": 4, "max_output_tokens": 4}
    with Serving() as serving:
        response: httpx.Response = serving.http.post(path, json=body | fields)
        assert response.status_code == 200
        serving.chat()  # by now the engine has heard of a hold, if there is one
        holds = wait_for_pins(serving, int(ttl_s is not None))
    assert [hold.ttl_s for hold in holds.values()] == [ttl_s] * (ttl_s is not None)


def test_holds_can_be_switched_off() -> None:
    with Serving(engine_config=EngineConfig(retention=False), script=[CALLS]) as serving:
        chat(serving, [{"role": "user", "content": LONG}], prompt_cache_retention="24h")
        serving.chat()  # by now the engine has heard of a hold, if there is one
        assert not find_holds(serving)


def test_salted_prompts_are_held_under_their_salt(agency: Serving) -> None:
    chat(agency, [{"role": "user", "content": LONG}], cache_salt="s")
    wait_for(agency, HoldKind.TOOL_GAP)
    assert [*agency.engine._core.scheduler.tree._roots] != [""]


def assert_is_cut(text: str, end: str) -> None:
    """The text stops where that one does, or within the block before."""
    assert any(text.endswith(end[:i]) for i in range(len(end) - 15, len(end) + 1)), text
