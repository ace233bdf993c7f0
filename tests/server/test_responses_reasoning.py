"""Responses of a model that thinks: how its thoughts are streamed, summarised, sealed, and how they come back."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.chat.reasoning_templates import thinking_template
from tests.server.asking import ask, check_events, function, kinds
from tests.server.calls import WEATHER, write_call
from tests.server.serving import MODEL, Serving, check_error

from hotloop.core.config import ServerConfig
from hotloop.wire.field import Json
from hotloop.wire.part import unseal_text
from hotloop.wire.responses.writer import NO_SUMMARY

THOUGHT = "; ".join(["I should ask somebody who knows"] * 8)
CALL = write_call("weather", city="Rome", days=3)
SCRIPT = [f"<think>\n{THOUGHT}\n</think>\n\n{CALL}", "<think>\nI know.\n</think>\n\nFine."]
TOOLS = [function("weather", WEATHER)]
HELLO: Json = {"role": "user", "content": "hello"}
ROOM: dict[str, Any] = {"tools": TOOLS, "max_output_tokens": 900}


@pytest.fixture
def thinker() -> Iterator[Serving]:
    with Serving(script=SCRIPT, template=thinking_template()) as serving:
        yield serving


def read_stream(serving: Serving, **fields: Any) -> list[Json]:
    return check_events(ask(serving, stream=True, **{**ROOM, **fields}).text)


def find(events: list[Json], kind: str) -> list[Json]:
    return [event for event in events if event["type"] == f"response.{kind}"]


def test_a_thought_is_streamed_as_a_part_of_its_item(thinker: Serving) -> None:
    events = read_stream(thinker)
    assert kinds(events)[:8] == [
        *("created", "in_progress", "output_item.added"),
        *("content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done"),
        "output_item.done",
    ]
    [added], [done] = find(events, "content_part.added"), find(events, "content_part.done")
    assert added["part"] == {"type": "reasoning_text", "text": ""}
    assert done["part"] == {"type": "reasoning_text", "text": THOUGHT}
    assert (added["item_id"], added["output_index"], added["content_index"]) == (done["item_id"], 0, 0)
    item = events[-1]["response"]["output"][0]
    assert (item["summary"], item["content"]) == ([], [done["part"]])
    assert not [event for event in events if "summary" in event["type"]]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "asked", [{"summary": "auto"}, {"summary": "detailed"}, {"generate_summary": "concise"}], ids=str
)
def test_a_summary_is_the_thought_where_it_is_asked_for(thinker: Serving, asked: Json) -> None:
    events = read_stream(thinker, reasoning=asked)
    assert kinds(events)[2:8] == [
        "output_item.added",
        *("reasoning_summary_part.added", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
    ]
    told = "".join(event["delta"] for event in find(events, "reasoning_summary_text.delta"))
    assert told == find(events, "reasoning_summary_text.done")[0]["text"] == THOUGHT
    response = events[-1]["response"]
    item = response["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": THOUGHT}]
    assert "content" not in item, "a client that shows both would show the same twice"
    assert unseal_text(item["encrypted_content"]) == THOUGHT
    assert response["reasoning"]["summary"] in asked.values()
    assert NO_SUMMARY in response["usage"]["hotloop"]["changes"]
    whole = ask(thinker, reasoning=asked, **ROOM).json()
    assert [{**each, "id": ""} for each in whole["output"][:1]] == [{**item, "id": ""}]


def test_a_summary_is_asked_for_in_words_that_there_are(thinker: Serving) -> None:
    assert check_error(ask(thinker, reasoning={"summary": "short"}), 400)["param"] == "reasoning.summary"
    made = ask(thinker, reasoning={"summary": "none"}, **ROOM).json()
    assert made["reasoning"]["summary"] is None
    assert made["output"][0]["content"]


def test_a_model_without_thoughts_has_none_to_sum_up() -> None:
    with Serving(script=["Hello."]) as serving:
        made = ask(serving, reasoning={"summary": "auto"}, max_output_tokens=50).json()
    assert [item["type"] for item in made["output"]] == ["message"]
    assert "changes" not in made["usage"]["hotloop"]


def test_a_thought_that_is_cut_is_closed() -> None:
    with Serving(script=SCRIPT, template=thinking_template()) as serving:
        for wanted, done in (({}, "content_part"), ({"summary": "auto"}, "reasoning_summary_part")):
            events = read_stream(serving, reasoning=wanted, tools=[], max_output_tokens=60)
            [closed] = find(events, f"{done}.done")
            assert THOUGHT.startswith(closed["part"]["text"])
            assert events[-1]["type"] == "response.incomplete"


STATELESS: dict[str, Json] = {
    "plain": {},
    "summary": {"reasoning": {"summary": "auto"}},
    "sealed": {"include": ["reasoning.encrypted_content"]},
    "both": {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("returned", [("content", "summary", "encrypted_content"), ("summary", "encrypted_content")])
@pytest.mark.parametrize("fields", STATELESS.values(), ids=STATELESS)
def test_a_loop_that_stores_nothing_is_exact(thinker: Serving, fields: Json, returned: tuple[str, ...]) -> None:
    """Whatever of a thought a client returns: all of it, or neither its id nor its text."""
    first = ask(thinker, store=False, **ROOM, **fields).json()
    reasoning, call = first["output"]
    thought = {"type": "reasoning", **{name: reasoning[name] for name in returned if name in reasoning}}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    second = ask(thinker, store=False, input=[HELLO, thought, call, result], **ROOM, **fields).json()
    check_exact(first, second)


def check_exact(first: Json, second: Json) -> None:
    assert second["output"][-1]["content"][0]["text"] == "Fine."
    num_first = first["usage"]["total_tokens"]
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= num_first - len("}\n</tool_call>") - 16


NAMED = {
    "reference": lambda item: {"type": "item_reference", "id": item["id"]},
    "bare": lambda item: {"id": item["id"]},
    "reasoning": lambda item: {"type": "reasoning", "id": item["id"], "summary": []} if "summary" in item else item,
    "empty": lambda item: {**item, "content": [], "summary": []} if "summary" in item else item,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wanted", [{}, {"reasoning": {"summary": "auto"}}], ids=str)
@pytest.mark.parametrize("name", NAMED.values(), ids=NAMED)
def test_items_that_are_only_named_are_those_that_were_put_out(thinker: Serving, name: Any, wanted: Json) -> None:
    first = read_stream(thinker, **wanted)[-1]["response"]
    reasoning, call = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    given = [HELLO, name(reasoning), name(call), result]
    second = ask(thinker, input=given, **ROOM, **wanted).json()
    check_exact(first, second)
    counted = thinker.http.post("/v1/responses/input_tokens", json={"input": given, **ROOM}).json()
    assert counted["input_tokens"] == second["usage"]["input_tokens"]
    listed = thinker.http.get(f"/v1/responses/{second['id']}/input_items?order=asc").json()["data"]
    assert [item["type"] for item in listed] == ["message", "reasoning", "function_call", "function_call_output"]


def refer_to(serving: Serving, item: Json, key: str = "") -> Any:
    given = [HELLO, {"type": "item_reference", "id": item["id"]}]
    headers = {"authorization": f"Bearer {key}"} if key else None
    return serving.http.post("/v1/responses", json={"input": given, "max_output_tokens": 4}, headers=headers)


def test_an_item_that_is_not_there_is_told_by_name(thinker: Serving) -> None:
    kept, stored = ask(thinker, store=False, **ROOM).json(), ask(thinker, **ROOM).json()
    deleted = ask(thinker, **ROOM).json()
    assert thinker.http.delete(f"/v1/responses/{deleted['id']}").json()["deleted"]
    for item in (kept["output"][1], deleted["output"][1], {"id": "msg_1"}):
        error = check_error(refer_to(thinker, item), 404, "item_not_found")
        assert error["param"] == "input[1]"
        assert error["message"].startswith(f"Item with id '{item['id']}' not found.")
    assert refer_to(thinker, stored["output"][1]).status_code == 200
    check_error(ask(thinker, input=[{"type": "item_reference"}]), 400, "invalid_value")
    check_error(ask(thinker, input=[{"type": "item_reference", "id": 7}]), 400, "invalid_value")


def test_a_thought_that_is_not_there_is_left_out(thinker: Serving) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert ask(thinker, input=[HELLO, thought]).status_code == 200


def test_items_are_of_those_who_were_given_them() -> None:
    config = ServerConfig(port=0, cache_isolation="key")
    with Serving(config, script=SCRIPT, template=thinking_template()) as serving:
        headers = {"authorization": "Bearer anna"}
        made = serving.http.post("/v1/responses", json={"input": "hello", **ROOM}, headers=headers).json()
        [thought, call] = made["output"]
        assert refer_to(serving, call, "anna").status_code == 200
        check_error(refer_to(serving, call, "bob"), 404, "item_not_found")
        named = {"type": "reasoning", "id": thought["id"], "summary": []}
        body = {"input": [HELLO, named, call], "tools": TOOLS}
        counts = [
            serving.http.post("/v1/responses/input_tokens", json=body, headers={"authorization": f"Bearer {key}"})
            for key in ("anna", "bob")
        ]
        num_anna, num_bob = (count.json()["input_tokens"] for count in counts)
        assert num_anna > num_bob + len(THOUGHT)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wanted", [{}, {"summary": "auto"}], ids=str)
def test_the_stream_helper_of_the_client(thinker: Serving, wanted: Any) -> None:
    with thinker.openai() as client:
        items: list[Any] = [HELLO]
        for _ in range(2):
            with client.responses.stream(model=MODEL, input=items, tools=TOOLS, reasoning=wanted) as stream:
                list(stream)
                final = stream.get_final_response()
            items += [item.model_dump(exclude_none=True) for item in final.output]
            calls = [item for item in final.output if item.type == "function_call"]
            items += [{"type": "function_call_output", "call_id": call.call_id, "output": "ok"} for call in calls]
        assert final.output_text == "Fine."
