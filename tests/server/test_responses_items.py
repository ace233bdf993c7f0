"""Items, messages and back, without a server."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import RequestError
from hotloop.core.message import Message, ToolCall
from hotloop.server.responses.store import make_messages, parse_items, render_items
from hotloop.wire.arguments import unwrap_input, wrap_input
from hotloop.wire.field import Field, Json

NAMES = st.sampled_from(["f", "g"])


def given_input(value: Any) -> Field:
    return Field({"input": value}).need("input")


def said(role: str, text: str) -> Json:
    return {"role": role, "content": text}


def called(call_id: str, name: str, arguments: str, namespace: str | None = None) -> Json:
    call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
    return {**call, "namespace": namespace} if namespace else call


def custom(call_id: str, name: str, text: str) -> Json:
    return {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": text}


def returned(call_id: str, text: str, is_custom: bool = False) -> Json:
    kind = "custom_tool_call_output" if is_custom else "function_call_output"
    return {"type": kind, "call_id": call_id, "output": text}


ITEMS: st.SearchStrategy[Json] = st.one_of(
    st.builds(said, st.sampled_from(["user", "assistant", "system", "developer"]), st.text()),
    st.builds(called, st.text(), NAMES, st.text(), st.sampled_from([None, "n"])),
    st.builds(custom, st.text(), NAMES, st.text()),
    st.builds(returned, st.text(), st.text(), st.booleans()),
)


@given(st.lists(ITEMS))
def test_what_is_listed_can_be_sent_again(given_items: list[Json]) -> None:
    items = parse_items(given_input(given_items))
    rendered = render_items(items, "resp_ab")
    assert render_items(parse_items(given_input(rendered)), "resp_ab") == rendered
    assert make_messages(rendered) == make_messages(given_items)
    assert len({item["id"] for item in rendered}) == len(given_items)
    assert [item.get("role") for item in rendered] == [item.get("role") for item in given_items]


@given(st.lists(ITEMS))
def test_no_item_is_lost_on_the_way_to_messages(items: list[Json]) -> None:
    messages = make_messages(items)
    kinds = [item.get("type", "message") for item in items]
    assert sum(len(message.tool_calls) for message in messages) == sum(kind.endswith("_call") for kind in kinds)
    assert [message.content for message in messages if message.role != "assistant"] == [
        item.get("output", item.get("content"))
        for item, kind in zip(items, kinds, strict=True)
        if kind.endswith("_output") or (kind == "message" and item["role"] != "assistant")
    ]
    assert [message.content for message in messages if message.content and message.role == "assistant"] == [
        item["content"] for item in items if item.get("role") == "assistant" and item["content"]
    ]


@given(st.text())
def test_text_in_arguments(text: str) -> None:
    assert unwrap_input(wrap_input(text)) == text


@pytest.mark.parametrize("arguments", ["", "{", "[]", '"x"', "{}", '{"input": "ab', "[" * 100_000])
def test_arguments_without_a_text(arguments: str) -> None:
    assert unwrap_input(arguments) == ""


def test_text_and_the_calls_after_it_are_one_turn() -> None:
    f, g = ToolCall("1", "f", "{}"), ToolCall("2", "n__g", "{}")
    items = [
        said("user", "hello"),
        said("assistant", "I see."),
        called("1", "f", "{}"),
        called("2", "g", "{}", "n"),
        returned("1", "one"),
        returned("2", "two"),
        called("1", "f", "{}"),
        returned("1", "three"),
        said("assistant", "Done."),
        said("developer", "Go on."),
    ]
    assert make_messages(items) == (
        Message("user", "hello"),
        Message("assistant", "I see.", tool_calls=(f, g)),
        Message("tool", "one", tool_call_id="1"),
        Message("tool", "two", tool_call_id="2"),
        Message("assistant", "", tool_calls=(f,)),
        Message("tool", "three", tool_call_id="1"),
        Message("assistant", "Done."),
        Message("system", "Go on."),
    )


def test_an_answer_in_parts_was_one_text_and_other_parts_are_lines() -> None:
    parts = [{"type": "output_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    assert make_messages([{"role": "assistant", "content": parts}]) == (Message("assistant", "ab"),)
    assert make_messages([{"role": "user", "content": parts}]) == (Message("user", "a\nb"),)


def test_many_calls_in_one_turn_take_no_longer_than_they_must() -> None:
    [message] = make_messages([called(str(i), "f", "{}") for i in range(100_000)])
    assert len(message.tool_calls) == 100_000


def test_thoughts_of_others_are_dropped_and_notes_of_hosted_tools_become_words() -> None:
    notes: list[Any] = [{"type": "reasoning", "summary": []}, {"type": "tool_search_call", "arguments": {}}]
    items = [*notes, said("user", "hello")]
    assert parse_items(given_input(items)) == (notes[1], said("user", "hello"))
    assert parse_items(given_input("hello")) == (said("user", "hello"),)
    assert make_messages(items) == (Message("assistant", "[tool_search_call]\n"), Message("user", "hello"))


@pytest.mark.parametrize("kind", ["item_reference", "compaction"])
def test_what_would_be_lost_is_refused(kind: str) -> None:
    with pytest.raises(RequestError, match="not supported") as caught:
        parse_items(given_input([{"type": kind, "id": "x"}]))
    assert caught.value.param == "input[0]"


@pytest.mark.parametrize("kind", [7, ["x"]])
def test_a_type_that_is_none_is_refused(kind: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse_items(given_input([{"type": kind, "id": "x"}]))
    assert caught.value.param == "input[0].type"
