"""The store of responses: whose they are, which of them go, and that it never grows too large."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.serving import TOKENIZER

from hotloop.chat.stream import PlainText
from hotloop.core.errors import RequestError
from hotloop.core.request import FinishReason, Request, SamplingParams, TokenEvent, Usage
from hotloop.http.keys import Tenant
from hotloop.server.delivery import OutputCollector, parse_piece
from hotloop.server.errors import Cancelled, UnknownPrevious, UnknownResponse
from hotloop.server.responses.api import _finish
from hotloop.server.responses.log import EventLog
from hotloop.server.responses.render import Composer
from hotloop.server.responses.store import ResponseStore, RunningResponse, make_messages, parse_items
from hotloop.wire.field import Field, Json

USAGE = Usage(1, 0, 1)
ME, YOU = Tenant("me"), Tenant("you")


def make_run(response_id: str, text: str = "hello", *, items: tuple[Json, ...] = (), **fields: Any) -> RunningResponse:
    """One that has said everything and is not settled yet."""
    composer = Composer({"id": response_id, "model": "tiny"}, TOKENIZER)
    event = TokenEvent(response_id, (1,), text, USAGE, finish_reason=FinishReason.STOP)
    composer.add([(0, parse_piece(PlainText(), event))])
    composer.finish(USAGE)
    outputs = OutputCollector([Request("r", [1], SamplingParams())], lambda *ids: None)
    usual = {"owner": "me", "items": items, "outputs": outputs, "composer": composer, "is_stored": True}
    return RunningResponse(**usual | fields)


def settle(store: ResponseStore, *runs: RunningResponse) -> None:
    for run in runs:
        store.start(run)
        store.settle(run)
        assert store._ended.currsize <= store._ended.maxsize


def test_what_was_settled_is_found_by_its_owner_alone() -> None:
    store = ResponseStore()
    settle(store, make_run("a"), make_run("b", is_stored=False))
    assert msgspec.json.decode(store.find("a", ME).encode())["status"] == "completed"
    for response_id, owner in (("a", YOU), ("b", ME), ("c", ME)):
        with pytest.raises(UnknownResponse):
            store.find(response_id, owner)
        with pytest.raises(UnknownResponse):
            store.delete(response_id, owner)
        with pytest.raises(UnknownPrevious):
            store.find_previous(response_id, owner)


def test_a_chain_needs_nothing_but_its_last_response() -> None:
    store = ResponseStore()
    settle(store, make_run("a", "one", items=parse_items(Field("1"))))
    settle(store, make_run("b", "two", items=(*store.find_previous("a", ME), *parse_items(Field("2")))))
    store.delete("a", ME)
    assert store._ended.currsize <= store._ended.maxsize
    said = [message.content for message in make_messages(store.find_previous("b", ME))]
    assert said == ["1", "one", "2", "two"]


def test_a_running_one_can_be_cancelled_though_it_is_not_stored() -> None:
    store = ResponseStore()
    run = make_run("a", is_stored=False)
    store.start(run)
    assert store.find_running("a", ME) is run
    assert store.find_running("a", YOU) is None
    with pytest.raises(UnknownResponse):
        store.find("a", ME)
    store.forget(run)
    assert store.find_running("a", ME) is None


def test_only_what_has_ended_well_is_continued() -> None:
    store = ResponseStore()
    store.start(make_run("running"))
    cancelled = make_run("cancelled")
    cancelled.composer.stop(Cancelled())
    settle(store, cancelled)
    for response_id in ("running", "cancelled"):
        with pytest.raises(RequestError, match="cannot be continued"):
            store.find_previous(response_id, ME)


def test_the_one_not_asked_for_longest_goes_first() -> None:
    store = ResponseStore(max_responses=2)
    settle(store, make_run("a"), make_run("b"))
    store.find("a", ME)
    settle(store, make_run("c"))
    with pytest.raises(UnknownResponse):
        store.find("b", ME)
    assert {store.find(name, ME).owner for name in ("a", "c")} == {"me"}


def test_one_that_is_too_large_is_not_kept() -> None:
    store = ResponseStore(max_bytes=1000)
    settle(store, make_run("a", "x" * 1000))
    assert len(store) == 0


async def test_a_mistake_in_the_background_ends_the_response_in_words(caplog: pytest.LogCaptureFixture) -> None:
    class Mistaken(Composer):
        def add(self, pieces: Any) -> list[Json]:
            raise RuntimeError("a mistake")

    store, run = ResponseStore(), make_run("resp_1", is_background=True)
    run.composer = Mistaken({"id": "resp_1", "model": "tiny"}, TOKENIZER)
    run.log = EventLog()
    run.outputs.add(0, TokenEvent("r", (1,), "hello", USAGE, finish_reason=FinishReason.STOP))
    store.start(run)
    await _finish(run, store)
    assert store.find_ended("resp_1", ME).status == "failed"
    assert b"response.failed" in run.log.events[-1]
    assert "a mistake" in caplog.text


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 2000), st.booleans())))
def test_the_bounds_hold_whatever_happens(steps: list[tuple[str, int, bool]]) -> None:
    store = ResponseStore(max_responses=3, max_bytes=5000)
    for i, (name, size, is_deleted) in enumerate(steps):
        settle(store, make_run(f"{name}{i}", "x" * size))
        if is_deleted and len(store):
            store.delete(next(iter(store._ended)), ME)
        assert store._ended.currsize <= store._ended.maxsize
