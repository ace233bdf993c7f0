"""What crosses a link is the same on the other side."""

from dataclasses import fields

import msgspec
import pytest

from hotloop.core.errors import (
    BackendError,
    ConfigError,
    DeviceLost,
    EngineClosed,
    HotloopError,
    Overloaded,
    PromptTooLong,
    RequestError,
    Unavailable,
)
from hotloop.core.grammar import Grammar
from hotloop.core.reasoning import Reasoning
from hotloop.core.request import KvSource, Priority, Request, SamplingParams
from hotloop.server.errors import render_error
from hotloop.server.fronts.messages import Abort, Ask, ErrorData, FrontMessage, NewRequest, Submit


@pytest.mark.parametrize(
    "error",
    [
        RequestError("no such field", param="tools"),
        PromptTooLong(5000, 4096, 10),
        Overloaded("full", 7.5),
        Unavailable("later"),
        EngineClosed("closing"),
        BackendError("boom"),
        DeviceLost("gone"),
        HotloopError("odd"),
    ],
)
def test_an_error_answers_a_client_alike_on_both_sides(error: HotloopError) -> None:
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(ErrorData.of(error)), type=ErrorData).to_error()
    assert type(told) is type(error)
    assert render_error(told, "id") == render_error(error, "id")
    assert vars(told) == vars(error)


def test_an_error_that_does_not_cross_is_its_nearest_ancestor() -> None:
    told = ErrorData.of(ConfigError("wrong")).to_error()
    assert (type(told), str(told)) == (HotloopError, "wrong")
    assert type(ErrorData("NoSuchError", "odd", {}).to_error()) is HotloopError


def test_a_request_crosses_with_all_that_is_asked_of_it() -> None:
    sampling = SamplingParams(
        temperature=0.5,
        logit_bias={7: -100.0, 9: 3.5},
        seed=(1 << 62) + 5,
        stop=("a", "b\n"),
        stop_token_ids=frozenset({3, 4}),
        logprobs=3,
    )
    new = NewRequest(
        *(3, "id-0", b"\1\0\0\0", sampling, Priority.WORKFLOW, "session", Grammar("regex", "a+"), "salt"),
        *(Reasoning((1,), (2,), (2, 3), max_tokens=5), [1, 2], "parent", [7], KvSource("http://a:1", "k"), 12.5),
    )
    message = Submit(9, [new])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FrontMessage) == message


def test_all_that_a_caller_says_of_a_request_crosses() -> None:
    given = [each.name for each in fields(Request) if each.init]
    by_caller = given[: given.index("kv_source") + 1]
    assert by_caller[:2] == ["id", "prompt_ids"]
    assert list(NewRequest.__struct_fields__) == ["number", "id", "prompt", *by_caller[2:], "arrived_at"]


def test_messages_are_told_apart() -> None:
    for message in (Abort(["a"]), Ask(1, "drain", 2.5)):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FrontMessage) == message
