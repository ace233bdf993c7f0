"""Events of the engine, merged and routed."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.chat.stream import PlainText
from hotloop.core.errors import BackendError, EngineClosed, HotloopError
from hotloop.core.request import FinishReason, Request, SamplingParams, TokenEvent, TokenLogprob, Usage
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, StreamEvent, TextDelta
from hotloop.engine.core import OnEvents
from hotloop.server.delivery import MAX_PENDING, EventBridge, OutputCollector, Piece, merge, parse_piece
from hotloop.server.engine_client import EngineClient
from hotloop.server.errors import Disconnected
from hotloop.server.metrics import Metrics


def event(num_output: int, finish: FinishReason | None = None, index: int = 0) -> TokenEvent:
    token_id = num_output
    logprob = TokenLogprob(token_id, -0.5)
    return TokenEvent(f"r{index}", (token_id,), chr(65 + token_id % 26), Usage(3, 1, num_output), (logprob,), finish)


def make_call(num_requests: int = 1) -> tuple[OutputCollector, list[str]]:
    aborted: list[str] = []
    requests = [Request(f"r{i}", [1, 2, 3], SamplingParams()) for i in range(num_requests)]
    return OutputCollector(requests, lambda *ids: aborted.extend(ids)), aborted


@given(num_events=st.integers(1, 300), cuts=st.sets(st.integers(1, 299)))
def test_merging_in_any_pieces_gives_the_same(num_events: int, cuts: set[int]) -> None:
    parser = PlainText()
    pieces = [parse_piece(parser, event(i)) for i in range(num_events)]
    bounds = sorted({0, num_events, *(cut for cut in cuts if cut < num_events)})
    assert merge([merge(pieces[a:b]) for a, b in pairwise(bounds)]) == merge(pieces)


async def test_what_is_not_taken_stays_small_and_whole() -> None:
    call, aborted = make_call()
    for i in range(1, 1000):
        call.add(0, event(i))
        assert len(call._pending[0]) < MAX_PENDING
    call.add(0, event(1000, FinishReason.STOP))
    [(index, merged)] = await call.take_all()
    assert (index, len(merged.parts), len(merged.text), len(merged.logprobs)) == (0, 1, 1000, 1000)
    assert merged.finish_reason is FinishReason.STOP
    assert merged.usage == call.usages[0] == Usage(3, 1, 1000)
    assert not aborted


async def test_a_call_is_over_when_its_last_request_is() -> None:
    call, aborted = make_call(2)
    call.add(1, event(1, FinishReason.STOP, index=1))
    assert not call.is_over
    call.add(0, event(1, FinishReason.LENGTH))
    assert call.is_over
    assert {index for index, _ in await call.take()} == {0, 1}
    call.fail(Disconnected())
    assert not aborted


async def test_one_failure_ends_the_call_and_aborts_the_rest() -> None:
    call, aborted = make_call(2)
    call.add(0, event(1))
    failed = TokenEvent("r1", (), "", Usage(3, 0, 0), finish_reason=FinishReason.ERROR, error=BackendError("boom"))
    call.add(1, failed)
    with pytest.raises(BackendError, match="boom"):
        await call.take()
    assert aborted == ["r0", "r1"]
    call.add(0, event(2))
    assert call.usages[0].num_output == 1


async def test_an_abort_nobody_here_asked_for_means_the_engine_is_closing() -> None:
    call, _ = make_call()
    call.add(0, TokenEvent("r0", (), "", Usage(3, 0, 0), finish_reason=FinishReason.ABORT))
    with pytest.raises(EngineClosed):
        await call.take_all()


class Watched(PlainText):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def push(self, text: str) -> list[StreamEvent]:
        self.heard.append(text)
        return super().push(text)

    def finish(self, *, is_cut: bool = False) -> list[StreamEvent]:
        self.heard.append("end")
        return []


async def test_an_answer_is_parsed_when_it_arrives_and_not_when_it_is_taken() -> None:
    """What hangs on its calls, such as what is kept of its prefix, waits for no client."""
    parser = Watched()
    call = OutputCollector([Request("r0", [1, 2, 3], SamplingParams())], lambda *ids: None, lambda: parser)
    call.add(0, event(1))
    call.add(0, event(2, FinishReason.STOP))
    assert parser.heard == ["B", "C", "end"]
    [(_, piece)] = await call.take()
    assert piece.parts == (TextDelta("BC"),)
    assert parser.heard == ["B", "C", "end"]


class Mistaken(PlainText):
    def push(self, text: str) -> list[StreamEvent]:
        raise RuntimeError("a mistake")


class Engines:
    """An `EngineClient` that is told what to say."""

    def __init__(self, *, admits: bool = True) -> None:
        self.released: list[str] = []
        self.aborted: list[str] = []
        self._admits = admits

    async def submit(self, requests: Sequence[Request], on_events: OnEvents) -> None:
        self.tell = on_events
        if not self._admits:
            on_events([event(1)])
            raise asyncio.CancelledError

    def abort(self, *request_ids: str) -> None:
        self.aborted += request_ids

    def release(self, request: Request) -> None:
        self.released.append(request.id)


def request_named(name: str) -> Request:
    return Request(name, [1, 2, 3], SamplingParams())


async def test_a_mistake_in_one_answer_ends_it_and_nobody_waits_for_it() -> None:
    engine = Engines()
    bridge = EventBridge(cast(EngineClient, engine), Metrics(lambda: ()))

    def fail(request: Request, calls: object) -> None:
        raise RuntimeError("a mistake")

    unread = await bridge.submit([request_named("r0")], lambda request, calls: None, Mistaken)
    unnoted = await bridge.submit([request_named("r1")], fail, PlainText)
    whole = await bridge.submit([request_named("r2")], lambda request, calls: None, PlainText)
    engine.tell([event(1, FinishReason.STOP, index=i) for i in range(3)])
    with pytest.raises(HotloopError, match="internal server error"):
        await asyncio.wait_for(unread.take_all(), 60)
    for answered in (unnoted, whole):  # nothing of the first is missing, but what was to be noted of it
        assert await asyncio.wait_for(answered.take_all(), 60)
    assert not bridge.num_running
    assert engine.released == ["r0", "r1", "r2"]


async def test_what_was_given_up_before_it_was_admitted_holds_up_nobody() -> None:
    given_up, engine = Engines(admits=False), Engines()
    bridge = EventBridge(cast(EngineClient, given_up), Metrics(lambda: ()))
    with pytest.raises(asyncio.CancelledError):
        await bridge.submit([request_named("r0")], lambda request, calls: None, PlainText)
    bridge._engine = cast(EngineClient, engine)
    outputs = await bridge.submit([request_named("r1")], lambda request, calls: None, PlainText)
    engine.tell([event(1, FinishReason.STOP, index=1)])
    assert await asyncio.wait_for(outputs.take_all(), 60)


def test_what_follows_each_other_is_merged_call_by_call() -> None:
    parts = [CallOpened(0, "a", "f"), CallDelta(0, "{"), CallDelta(0, "}"), CallClosed(0), TextDelta("x")]
    usage = Usage(3, 1, 1)
    merged = merge([Piece("", (part,), 1, usage) for part in (*parts, TextDelta("y"))])
    assert merged.parts == (CallOpened(0, "a", "f"), CallDelta(0, "{}"), CallClosed(0), TextDelta("xy"))
