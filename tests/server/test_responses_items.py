"""Items, turns and back, without a server."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import RequestError
from hotloop.core.message import Message, ToolCall
from hotloop.server.responses.items import (
    Called,
    Item,
    Returned,
    Said,
    make_turns,
    parse_items,
    render_items,
)
from hotloop.wire.arguments import unwrap_input, wrap_input

NAMES = st.sampled_from(["f", "g"])
SPACES = st.sampled_from([None, "n"])
ITEMS: st.SearchStrategy[Item] = st.one_of(
    st.builds(Said, st.sampled_from(["user", "assistant", "system", "developer"]), st.text()),
    st.builds(Called, st.text(), NAMES, st.text(), SPACES),
    st.builds(Called, st.text(), NAMES, st.text().map(wrap_input), SPACES, st.just(True)),
    st.builds(Returned, st.text(), st.text(), st.booleans()),
)


@given(st.lists(ITEMS).map(tuple))
def test_what_is_listed_can_be_sent_again(items: tuple[Item, ...]) -> None:
    rendered = render_items(items, "resp_ab")
    assert parse_items(rendered) == items
    assert len({item["id"] for item in rendered}) == len(items)


@given(st.lists(ITEMS))
def test_no_item_is_lost_on_the_way_to_turns(items: list[Item]) -> None:
    turns = make_turns(items)
    assert sum(len(turn.tool_calls) for turn in turns) == sum(isinstance(item, Called) for item in items)
    assert [turn.content for turn in turns if turn.role != "assistant"] == [
        item.text
        for item in items
        if isinstance(item, Returned) or (isinstance(item, Said) and item.role != "assistant")
    ]
    assert [turn.content for turn in turns if turn.content and turn.role == "assistant"] == [
        item.text for item in items if isinstance(item, Said) and item.text and item.role == "assistant"
    ]


@given(st.text())
def test_text_in_arguments(text: str) -> None:
    assert unwrap_input(wrap_input(text)) == text


@pytest.mark.parametrize("arguments", ["", "{", "[]", '"x"', "{}", '{"input": "ab', "[" * 100_000])
def test_arguments_without_a_text(arguments: str) -> None:
    assert unwrap_input(arguments) == ""


def test_text_and_the_calls_after_it_are_one_turn() -> None:
    f, g = ToolCall("1", "f", "{}"), ToolCall("2", "n__g", "{}")
    items = (
        Said("user", "hello"),
        Said("assistant", "I see."),
        Called("1", "f", "{}"),
        Called("2", "g", "{}", "n"),
        Returned("1", "one"),
        Returned("2", "two"),
        Called("1", "f", "{}"),
        Returned("1", "three"),
        Said("assistant", "Done."),
        Said("developer", "Go on."),
    )
    assert make_turns(items) == (
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
    assert parse_items([{"role": "assistant", "content": parts}]) == (Said("assistant", "ab"),)
    assert parse_items([{"role": "user", "content": parts}]) == (Said("user", "a\nb"),)


def test_many_calls_in_one_turn_take_no_longer_than_they_must() -> None:
    [turn] = make_turns(Called(str(i), "f", "{}") for i in range(100_000))
    assert len(turn.tool_calls) == 100_000


def test_notes_are_dropped() -> None:
    notes: list[Any] = [{"type": "reasoning", "summary": []}, {"type": "tool_search_call", "arguments": {}}]
    assert parse_items([*notes, {"role": "user", "content": "hello"}]) == (Said("user", "hello"),)


@pytest.mark.parametrize("kind", ["item_reference", "compaction", 7, ["x"]])
def test_what_would_be_lost_is_refused(kind: Any) -> None:
    with pytest.raises(RequestError, match="not supported") as caught:
        parse_items([{"type": kind, "id": "x"}])
    assert caught.value.param == "input[0]"
