"""Elements of a list, found while the list is still being written."""

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hotloop.agent.plan.schema import ElementReader

TEXT = st.text(st.sampled_from('a"\\[]{},: é\n'), max_size=5)
KEY = st.sampled_from(["steps", "other", 'st"eps', ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=8,
)


def read(pieces: list[str]) -> tuple[list[str], ElementReader]:
    reader = ElementReader("steps")
    return [element for piece in pieces for element in reader.feed(piece)], reader


@given(
    st.dictionaries(KEY.filter(lambda key: key != "steps"), VALUES, max_size=2),
    st.lists(VALUES, max_size=4),
    st.dictionaries(KEY.filter(lambda key: key != "steps"), VALUES, max_size=2),
    st.sampled_from([None, 1]),
    st.data(),
)
def test_wherever_it_is_cut(before: Any, steps: list[Any], after: Any, indent: int | None, data: st.DataObject) -> None:
    text = json.dumps(before | {"steps": steps} | after, indent=indent)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    elements, reader = read(pieces)
    assert [json.loads(element) for element in elements] == steps
    assert reader.has_list
    assert reader.is_closed
    assert (elements, reader.is_closed) == (read(list(text))[0], True)


def test_an_element_is_there_with_its_last_character() -> None:
    text = '{"steps": [{"a": "}"}, [1], {"b": 2}]}'
    reader = ElementReader("steps")
    found = {i: list(reader.feed(char)) for i, char in enumerate(text)}
    assert {i: elements for i, elements in found.items() if elements} == {
        text.index("}, ["): ['{"a": "}"}'],
        text.index("], {"): ["[1]"],
        text.index("}]}"): ['{"b": 2}'],
    }


@pytest.mark.parametrize("text", ["", "I would rather not.", "[1]", "{}", '{"other": [{"steps": [1]}]}', '"steps"'])
def test_no_list(text: str) -> None:
    elements, reader = read([text])
    assert elements == []
    assert not reader.has_list


def test_words_around_it_are_skipped() -> None:
    elements, reader = read(['Here: ```json\n{"steps": [1, ', '{}]}\n``` and {"steps": [2]}'])
    assert elements == ["1", "{}"]
    assert reader.is_closed


def test_what_was_cut_off_is_not_an_element() -> None:
    elements, reader = read(['{"steps": [{"a": 1}, {"a": '])
    assert elements == ['{"a": 1}']
    assert not reader.is_closed


def test_brackets_that_do_not_match_do_no_harm() -> None:
    for text in ('{"steps": }}}]]]', '{"steps": ]', '{"steps": [}]}', '{"steps": [{]]]]]}'):
        read([text, text])
