"""References: what they find, and what they cannot be made to find."""

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hotloop.agent.plan.reference import MAX_CHARS, BadReference, fill, find_references

FOUND = {
    "a": json.dumps({"city": "Rome", "items": [{"id": 7, "foo-bar": None}], "__class__": "mine", "n": 2.5}),
    "b": "plain words",
    "c": "42",
    "deep": "[" * 100_000,
    "big": "9" * 100_000,
}
TEXT, NUMBER, ANY = {"type": "string"}, {"type": "integer"}, {}


@pytest.mark.parametrize(
    ("value", "schema", "filled"),
    [
        ("${a.city}", ANY, "Rome"),
        ("${a.items[0].id}", NUMBER, 7),
        ("${a.items[0].id}", TEXT, "7"),
        ("${a.items}", ANY, [{"id": 7, "foo-bar": None}]),
        ("${a.items[0].foo-bar}", ANY, None),
        ("${a.__class__}", ANY, "mine"),
        ("from ${a.city} at ${a.n}, ${b}", TEXT, "from Rome at 2.5, plain words"),
        ("${b}", ANY, "plain words"),
        ("${c}", NUMBER, 42),
        ("${c}", TEXT, "42"),
        ("${c}", {"anyOf": [TEXT, {"type": "null"}]}, "42"),
        ("${c}", {"anyOf": [TEXT, NUMBER]}, 42),
        ("${a}", TEXT, FOUND["a"]),
        ({"x": ["${c}", {"y": "${b}"}], "${b}": 1}, ANY, {"x": [42, {"y": "plain words"}], "${b}": 1}),
        ({"x": ["${c}"]}, {"properties": {"x": {"items": TEXT}}}, {"x": ["42"]}),
        ("$5, $a, ${HOME}, ${}, ${a:-b}, $${1}, {a}", ANY, "$5, $a, ${HOME}, ${}, ${a:-b}, $${1}, {a}"),
        (3, NUMBER, 3),
        (None, ANY, None),
    ],
)
def test_what_references_stand_for(value: Any, schema: Any, filled: Any) -> None:
    assert fill(value, FOUND, schema) == filled


@pytest.mark.parametrize(
    "text",
    [
        "${a.__init__}",
        "${a.city.__class__}",
        "${a.items.__len__}",
        "${a.items.0}",
        "${a.items[1]}",
        "${a.items[999999999]}",
        "${a.city[0]}",
        "${a[0]}",
        "${b.city}",
        "${c.real}",
        "${deep[0]}",
        "${big.x}",
        "x ${a.nothing} y",
    ],
)
def test_what_leads_nowhere(text: str) -> None:
    with pytest.raises(BadReference, match="leads nowhere"):
        fill(text, FOUND, ANY)


@pytest.mark.parametrize(
    "path", [".", "..x", "[", "[]", "[-1]", "[*]", "[1", "[9999999999]", ".x[y]", '["x"]', "[0]x", ".x."]
)
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(BadReference, match="is no reference"):
        list(find_references([{"x": f"${{a{path}}}"}]))


def test_a_very_long_path() -> None:
    with pytest.raises(BadReference, match="leads nowhere"):
        fill("${a" + ".x" * 50_000 + "}", FOUND, ANY)


def test_results_are_not_multiplied_without_end() -> None:
    results = {"a": "x" * (MAX_CHARS // 10)}
    assert len(fill("${a}" * 10, results, TEXT)) == MAX_CHARS
    with pytest.raises(BadReference, match="characters"):
        fill(["${a}" * 10, "${a}"], results, ANY)


def test_what_a_result_says_is_never_a_reference() -> None:
    assert fill("${a} ${b}", {"a": "${b}", "b": "secret"}, TEXT) == "${b} secret"


@given(st.text(st.sampled_from("${}ab.[]0 "), max_size=12))
def test_any_text_is_filled_or_refused(text: str) -> None:
    try:
        ids = {reference.step_id for reference in find_references(text)}
        filled = fill(text, dict.fromkeys(ids, '{"a": [0]}'), TEXT)
    except BadReference:
        return
    assert isinstance(filled, str)
    assert ids or filled == text
