"""What is parsed from a rendered request is that request; and where it goes elsewhere, nothing is lost in silence."""

from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.properties import examples
from tests.wire.nouns import requests

from hotloop.wire.formats import FORMATS
from hotloop.wire.part import Api, Call, Text, ToolResult
from hotloop.wire.policy import Notes, RenderTarget
from hotloop.wire.request import ApiRequest

APIS: list[Api] = ["chat", "responses", "messages"]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_slow = settings(max_examples=examples(20))


def parse(api: Api, body: Any) -> ApiRequest:
    return FORMATS[api].parse(msgspec.json.decode(msgspec.json.encode(body)), Notes())


def num_marks(request: ApiRequest) -> int:
    return str(request).count("ephemeral")


@pytest.mark.parametrize("api", APIS)
@_slow
@given(data=st.data())
@pytest.mark.sampled(3)
def test_parse_is_the_inverse_of_render(api: Api, data: st.DataObject) -> None:
    request = data.draw(requests(api))
    assume(num_marks(request) <= 4)
    target = RenderTarget()
    assert parse(api, FORMATS[api].render(request, target)) == request
    assert target.notes.all == ()


@pytest.mark.parametrize(("near", "far"), [*permutations(APIS, 2)])
@_slow
@given(data=st.data())
@pytest.mark.sampled(3)
def test_words_calls_and_results_arrive_in_order(near: Api, far: Api, data: st.DataObject) -> None:
    request = data.draw(requests(near))
    arrived = parse(far, FORMATS[far].render(request, RenderTarget()))
    assert texts(arrived) == texts(request)
    assert calls(arrived) == calls(request)
    assert (arrived.model, arrived.max_tokens, arrived.is_stream) == (
        request.model,
        request.max_tokens,
        request.is_stream,
    )
    assert [tool.flat_name for tool in arrived.tools] == [tool.flat_name for tool in request.tools]  # type: ignore[union-attr]


@pytest.mark.parametrize(("near", "far"), [*permutations(APIS, 2)])
@given(value=values.filter(lambda value: value is not None))  # null is a field that is not given
def test_fields_nobody_knows_arrive_at_engines_and_are_noted_elsewhere(near: Api, far: Api, value: Any) -> None:
    turns = {"input": "hi"} if near == "responses" else {"messages": [{"role": "user", "content": "hi"}]}
    request = parse(near, {"model": "m", "max_tokens": 1, **turns, "x_new": value})
    lenient, strict = RenderTarget(), RenderTarget(is_strict=True)
    if far == "messages":  # nobody takes more than Anthropic does
        assert "x_new" not in FORMATS[far].render(request, lenient)
        assert "x_new" in str(lenient.notes.all)
    else:
        assert FORMATS[far].render(request, lenient)["x_new"] == value
    assert "x_new" not in FORMATS[far].render(request, strict)
    assert "x_new" in str(strict.notes.all)


def texts(request: ApiRequest) -> str:
    """All words of a conversation but those of results, in order."""
    return "".join(
        part.text for turn in request.turns for part in turn.parts if isinstance(part, Text) and part.text.strip()
    )


def calls(request: ApiRequest) -> list[tuple[str, ...]]:
    parts = [part for turn in request.turns for part in turn.parts]
    return [
        *((part.id, part.flat_name, part.arguments) for part in parts if isinstance(part, Call)),
        *((part.call_id, part.text) for part in parts if isinstance(part, ToolResult)),
    ]
