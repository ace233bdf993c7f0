"""Values as a predictor sees them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.agent.predict.history import (
    MAX_LEAVES,
    call_key,
    canonical,
    leaves_of,
    shape_of,
    tokens_of,
)
from hotloop.wire.arguments import read_arguments

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("token", "shape"),
    [
        ("mia_li_3668", "a_a_9"),
        ("Z7GOZK", "X6"),
        ("JFK", "X3"),
        ("2024-05-20", "9999-99-99"),
        ("a.b@example.com", "a.a@a.a"),
        ("42", "99"),
        ("report.pdf", "a.a"),
        ("flight", None),
        ("Please", None),
        ("", None),
        ("x" * 1000 + "1", None),
    ],
)
def test_shapes(token: str, shape: str | None):
    assert shape_of(token) == shape


def test_tokens_lose_the_punctuation_around_them():
    text = "My id is (mia_li_3668), on 2024-05-20: see 'final report'."
    assert list(tokens_of(text)) == [("quoted", "final report"), ("a_a_9", "mia_li_3668"), ("9999-99-99", "2024-05-20")]


def test_leaves_by_path():
    text = json.dumps({"user": {"id": 7}, "orders": [{"id": "a"}, {"id": "b"}, {"id": "a"}], "ok": True, "no": None})
    assert leaves_of(text) == {"user.id": [7], "orders[*].id": ["a", "b"]}


def test_keys_that_are_data_are_not_part_of_a_path():
    cards = {"card_17": {"kind": "x"}, "card_18": {"kind": "y"}}
    people = {"ann": {"age": 1}, "bob": {"age": 2}}
    assert leaves_of(json.dumps({"cards": cards})) == {"cards{*}": ["card_17", "card_18"], "cards.*.kind": ["x", "y"]}
    assert set(leaves_of(json.dumps(people))) == {"{*}", ".*.age"}


def test_a_plain_text_has_its_tokens():
    assert leaves_of("Order W001A2 was sent.") == {"~X6": ["W001A2"]}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 50_000,
        "9" * 10_000,
        "x" * 5_000_000,
        json.dumps(list(range(50_000))),
        "\ud800",
        "NaN",
        "",
    ],
    ids=["deep", "deep objects", "a long number", "megabytes", "many", "half a character", "no number", "nothing"],
)
def test_hostile_results_are_bounded(text: str):
    assert sum(map(len, leaves_of(text).values())) <= MAX_LEAVES


@given(JSON)
def test_any_result_can_be_read(value: object):
    leaves_of(json.dumps(value))


@given(JSON)
def test_the_canonical_text_is_one(value: object):
    text = canonical(value)
    if text is not None:
        assert canonical(json.loads(text)) == text


def test_calls_are_the_same_by_value_and_only_then():
    def key(arguments: str) -> str | None:
        return call_key("f", read_arguments(arguments))

    assert key('{"a": 1, "b": [2]}') == key('{"b":[2],"a":1}')
    assert key("") == key("{}")
    assert len({key('{"a": 1}'), key('{"a": 1.0}'), key('{"a": true}'), key('{"a": "1"}')}) == 4
    assert key("[1]") is None
    assert key("{") is None
    assert key('{"a": NaN}') is None
