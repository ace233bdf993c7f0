"""Streams of both APIs, cut anywhere, become the same events; and what is wrong with one is said."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from tests.agent.wire import streams as wires
from tests.agent.wire.streams import (
    added,
    begun,
    call_block,
    chunk,
    data,
    ended,
    events,
    grown,
    opened,
    started,
    stopped,
)

from hotloop.agent.wire.openai import OpenAIModel
from hotloop.core.errors import RemoteError
from hotloop.core.message import Thought
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta, ThoughtClosed, ThoughtDelta
from hotloop.wire.chat.reader import ChatReader
from hotloop.wire.event import Begun, Ended, Event
from hotloop.wire.messages.reader import MessagesReader
from hotloop.wire.reader import Reader
from hotloop.wire.responses.reader import ResponsesReader
from hotloop.wire.sse import EventReader, ServerEvent
from hotloop.wire.usage import ApiUsage


class Listener:
    """A model, and the reader of one of its answers."""

    def __init__(self, reader: Reader) -> None:
        self.model = OpenAIModel("http://localhost")
        self._reader = reader

    def push(self, event: ServerEvent) -> Iterator[Event]:
        return self.model.hear(self._reader.push(event))

    def finish(self) -> Iterator[Event]:
        return self.model.hear(self._reader.finish())


def chat_listener(*offered: str) -> Listener:
    return Listener(ChatReader(offered=offered, name_call=lambda _, number: f"call_{number}"))


def hear(answer: Listener, pieces: Iterable[bytes]) -> list[Event]:
    """But for the beginning, and thoughts that are not whole."""
    reader = EventReader()
    heard: list[Event] = []
    for piece in pieces:
        for event in reader.push(piece):
            heard += answer.push(event)
    for event in reader.finish():
        heard += answer.push(event)
    return [event for event in [*heard, *answer.finish()] if not isinstance(event, Begun | ThoughtDelta)]


def openai(*pieces: bytes) -> list[Event]:
    return hear(chat_listener("weather", "clock"), pieces)


def anthropic(*pieces: bytes) -> list[Event]:
    return hear(Listener(MessagesReader()), pieces)


def responses(*pieces: bytes) -> list[Event]:
    return hear(Listener(ResponsesReader()), pieces)


def calls_of(heard: Iterable[Event]) -> list[tuple[str, str, str, bool]]:
    """Id, name and arguments of each call, and whether it was closed; held to the order of events."""
    calls: dict[int, list[Any]] = {}
    for event in heard:
        match event:
            case CallOpened():
                assert event.index == len(calls)
                calls[event.index] = [event.id, event.name, "", False]
            case CallDelta():
                assert not calls[event.index][3], "arguments behind the end"
                calls[event.index][2] += event.arguments
            case CallClosed():
                assert not calls[event.index][3], "closed twice"
                calls[event.index][3] = True
    return [(call_id, name, arguments, is_closed) for call_id, name, arguments, is_closed in calls.values()]


def text_of(heard: Iterable[Event]) -> str:
    return "".join(event.text for event in heard if isinstance(event, TextDelta))


USAGE = ApiUsage(num_prompt=1200, num_cached=1024, num_output=40)
PARIS = '{"city":"Pa\\"}ris"}'


def test_the_streams_are_what_the_vendors_own_types_have() -> None:
    for each in [*wires.OPENAI_CHUNKS, *(chunk(finish=reason) for reason in ("stop", "length"))]:
        ChatCompletionChunk.model_validate(each, strict=True)
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for each in [*wires.ANTHROPIC_EVENTS, *stopped("max_tokens")]:
        if each["type"] != "ping":
            adapter.validate_python(each, strict=True)
    response_events: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for each in wires.RESPONSES_EVENTS:
        response_events.validate_python(each)


def test_an_answer_of_openai() -> None:
    heard = openai(wires.OPENAI_CALLS)
    assert text_of(heard) == "Ich schaue nach: ☂ "
    assert calls_of(heard) == [("call_a", "weather", PARIS, True), ("call_b", "clock", "{}", True)]
    assert heard[-1] == Ended("calls", usage=USAGE)
    assert openai(wires.OPENAI_TEXT)[-1] == Ended("stop", usage=USAGE)


def test_an_answer_of_anthropic() -> None:
    heard = anthropic(wires.ANTHROPIC_CALLS)
    assert text_of(heard) == "Ich schaue nach: ☂ "
    assert calls_of(heard) == [("toolu_a", "weather", PARIS, True), ("toolu_b", "clock", "", True)]
    assert heard[-1] == Ended("calls", usage=ApiUsage(num_prompt=1120, num_cached=1000, num_output=40, num_written=100))
    assert anthropic(wires.ANTHROPIC_TEXT)[-1].reason == "stop"  # type: ignore[union-attr]


def test_an_answer_of_openais_responses() -> None:
    heard = responses(wires.RESPONSES_CALLS)
    assert heard[0] == ThoughtClosed(Thought("", "c2VhbA==", maker="responses"))
    assert text_of(heard) == "Ich schaue nach: ☂ "
    assert calls_of(heard) == [("call_a", "weather", PARIS, True), ("call_b", "clock", "{}", True)]
    assert heard[-1] == Ended("calls", usage=USAGE)
    cut = wires.RESPONSES_CALLS.replace(
        b'"status": "completed", "output": [], "par', b'"status": "incomplete", "output": [], "par'
    )
    heard = responses(cut.replace(b'{"type": "response.completed"', b'{"type": "response.incomplete"'))
    assert heard[-1].reason == "length"  # type: ignore[union-attr]
    assert [is_closed for *_, is_closed in calls_of(heard)] == [True, False]


def test_calls_whose_pieces_are_mixed() -> None:
    pieces = (opened(0, "a", "weather"), opened(1, "b", "weather"), grown(1, '{"city":'), grown(0, '{"city": '))
    heard = openai(data(*pieces, grown(0, '"Rome"}'), grown(1, ' "Oslo"}'), chunk(finish="tool_calls")))
    assert calls_of(heard) == [("a", "weather", WHOLE, True), ("b", "weather", '{"city": "Oslo"}', True)]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_a_model_of_an_engine_thinks_is_heard(name: str) -> None:
    heard = openai(data(chunk({name: "H"}), chunk({name: "m"}), chunk({"content": "Hi."}), chunk(finish="stop")))
    assert heard[:2] == [ThoughtClosed(Thought("Hm")), TextDelta("Hi.")]


@pytest.mark.parametrize(
    ("hear_all", "wire"),
    [(openai, wires.OPENAI_CALLS), (anthropic, wires.ANTHROPIC_CALLS), (responses, wires.RESPONSES_CALLS)],
)
@pytest.mark.sampled(3)
def test_streams_may_be_cut_anywhere(hear_all: Any, wire: bytes) -> None:
    whole = hear_all(wire)
    for i in range(len(wire)):
        assert hear_all(wire[:i], wire[i:]) == whole
    wire = b"\xef\xbb\xbf: hello\n" + wire
    for end in (b"\n", b"\r\n", b"\r"):
        data = wire.replace(b"\n", end)
        assert hear_all(*(data[i : i + 1] for i in range(len(data)))) == whole


def test_a_call_closes_when_the_answer_goes_on_behind_its_brackets() -> None:
    answer = chat_listener("weather", "clock")
    heard = [event for each in wires.OPENAI_CHUNKS[:6] for event in answer.push(_event(each))]
    assert not any(isinstance(event, CallClosed) for event in heard)
    [closed, opening] = answer.push(_event(opened(1, "b", "clock")))
    assert (closed, isinstance(opening, CallOpened)) == (CallClosed(0), True)


def test_brackets_that_close_where_the_room_ends_close_nothing() -> None:
    """Whoever ran out of room may have closed them around half a value."""
    answer = chat_listener("weather")
    chunks = (opened(0, "a", "weather"), grown(0, '{"city": "Pa"}'), chunk({}, finish="length"))
    heard = [event for each in chunks for event in answer.push(_event(each))]
    assert calls_of([*heard, *answer.finish()]) == [("a", "weather", '{"city": "Pa"}', False)]
    cut = anthropic(wires.ANTHROPIC_CALLS.replace(b'"stop_reason": "tool_use"', b'"stop_reason": "max_tokens"'))
    assert [is_closed for *_, is_closed in calls_of(cut)] == [True, False]


def _event(item: dict[str, Any]) -> ServerEvent:
    [event] = EventReader().push(data(item, done=False))
    return event


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    ),
    st.data(),
)
def test_calls_close_exactly_at_their_end(value: Any, draw: st.DataObject) -> None:
    arguments = json.dumps({"value": value}, ensure_ascii=draw.draw(st.booleans()))
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(arguments)), max_size=5)))
    pieces = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    answer = chat_listener("weather", "clock")
    heard = [
        event
        for each in (opened(0, "a", "weather"), *(grown(0, piece) for piece in pieces))
        for event in answer.push(_event(each))
    ]
    heard += answer.push(_event(opened(1, "b", "clock")))
    assert calls_of(heard)[0] == ("a", "weather", arguments, True)
    assert [isinstance(event, CallClosed) for event in heard[-2:]] == [True, False]


WHOLE = '{"city": "Rome"}'
FUNCTION = {"name": "weather", "arguments": WHOLE}


def piece(**fields: Any) -> dict[str, Any]:
    return chunk({"tool_calls": [fields]})


@pytest.mark.parametrize(
    ("chunks", "calls"),
    [
        ([opened(0, "a", "weather", WHOLE)], [("a", "weather", WHOLE)]),
        (
            [piece(function=FUNCTION), piece(function=FUNCTION)],
            [("call_0", "weather", WHOLE), ("call_1", "weather", WHOLE)],
        ),
        (
            [opened(0, "a", "weather", WHOLE), opened(0, "b", "clock", "{}")],
            [("a", "weather", WHOLE), ("b", "clock", "{}")],
        ),
        ([opened(0, "a", "clock"), opened(1, "b", "clock", "")], [("a", "clock", ""), ("b", "clock", "")]),
        (
            [opened(0, "a", "wea"), piece(index=0, function={"name": "ther"}), grown(0, WHOLE)],
            [("a", "weather", WHOLE)],
        ),
        ([opened(0, "a", "weather"), opened(0, "a", "weather", WHOLE)], [("a", "weather", WHOLE)]),
        ([opened(0, "a", "weather"), piece(index=0, id="x", function={"arguments": WHOLE})], [("a", "weather", WHOLE)]),
        (
            [piece(index=0, id="a", function={"name": "weather", "arguments": {"city": "Rome"}})],
            [("a", "weather", WHOLE)],
        ),
        ([opened(0, "a", "weather", WHOLE + "}"), grown(0, "\n")], [("a", "weather", WHOLE)]),
        ([opened(0, "a", "weather", "{}"), grown(0, WHOLE)], [("a", "weather", WHOLE)]),
        ([opened(0, "a", "clock", "{}"), grown(0, "\n"), grown(0, "}")], [("a", "clock", "{}")]),
        ([opened(3, "a", "weather", WHOLE)], [("a", "weather", WHOLE)]),
        ([opened(0, "a", "unheard_of"), grown(0, WHOLE)], [("a", "unheard_of", WHOLE)]),
        (
            [chunk({"content": "x", "tool_calls": [{"index": 0, "id": "a", "function": FUNCTION}]})],
            [("a", "weather", WHOLE)],
        ),
        (
            [
                chunk(choices=[{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]),
                opened(0, "a", "clock", "{}"),
            ],
            [("a", "clock", "{}")],
        ),
    ],
)
@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
def test_servers_take_liberties(chunks: list[Any], calls: list[Any], finish: str) -> None:
    heard = openai(data(*chunks, chunk(finish=finish)))
    assert calls_of(heard) == [(*call, True) for call in calls]
    assert heard[-1] == Ended("calls")
    assert "other" not in text_of(heard)


def test_a_whole_message_in_one_chunk_is_an_answer() -> None:
    message = {"role": "assistant", "content": "Hi.", "tool_calls": None}
    heard = openai(data({"choices": [{"message": message, "finish_reason": "stop"}], "usage": None}, done=False))
    assert heard == [TextDelta("Hi."), Ended("stop")]


def test_a_name_that_may_go_on_waits_for_the_arguments() -> None:
    answer = chat_listener("get", "get_all")
    [begun] = answer.push(_event(opened(0, "a", "get")))
    assert isinstance(begun, Begun)
    assert [*answer.push(_event(piece(index=0, function={"name": "_all"})))] == [CallOpened(0, "a", "get_all")]


def test_a_call_that_was_cut_off_is_never_closed() -> None:
    cut = openai(data(opened(0, "a", "clock", "{}"), opened(1, "b", "weather", '{"city": "Ro'), chunk(finish="length")))
    assert [call[3] for call in calls_of(cut)] == [True, False]
    assert cut[-1] == Ended("length")
    for partial in ('{"city": "Ro', ""):
        wire = events(started(), *call_block(0, "a", "weather", partial), *stopped("max_tokens"))
        heard = anthropic(wire)
        assert [call[3] for call in calls_of(heard)] == [False]
        assert heard[-1].reason == "length"  # type: ignore[union-attr]


def test_input_that_comes_with_the_beginning_of_a_block() -> None:
    whole = begun(0, type="tool_use", id="a", name="weather", input={"city": "Rome"})
    assert calls_of(anthropic(events(started(), whole, ended(0), *stopped("tool_use")))) == [
        ("a", "weather", WHOLE, True)
    ]


def test_unknown_events_and_blocks_are_ignored() -> None:
    unknown = [
        {"type": "novelty", "index": 3},
        begun(0, type="server_tool_use", id="s", name="web", input={}),
        ended(0),
    ]
    late = added(7, type="compaction_delta", content="x")
    assert anthropic(events(started(), *unknown, late, *stopped("end_turn")))[0].reason == "stop"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("hear_all", "wire", "words"),
    [
        (openai, data(chunk({"content": "It"}), done=False), "before it was whole"),
        (openai, b"", "before it was whole"),
        (openai, data(), "before it was whole"),
        (openai, b"data: {nonsense\n\n", "invalid response"),
        (openai, b'data: {"choices": 7}\n\n', "invalid response"),
        (openai, b"data: \xff\n\n", "not UTF-8"),
        (openai, data({"error": {"message": "the GPU\nis on fire", "code": 500}}), "the GPU is on fire"),
        (openai, b'event: error\ndata: {"message": "gone"}\n\n', "gone"),
        (openai, data(chunk(finish="content_filter")), "content filter"),
        (anthropic, events(started(), *wires.text_block(0, "It")), "before it was whole"),
        (
            anthropic,
            events(started(), {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}),
            "Busy",
        ),
        (anthropic, events(started(), *stopped("refusal")), "refused"),
        (anthropic, b"event: x\ndata: []\n\n", "invalid response"),
    ],
)
def test_what_is_wrong_with_a_stream_is_said(hear_all: Any, wire: bytes, words: str) -> None:
    with pytest.raises(RemoteError, match=words) as caught:
        hear_all(wire)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200), st.booleans())
def test_whatever_comes_there_is_an_answer_or_an_error(noise: bytes, is_openai: bool) -> None:
    with pytest.raises(RemoteError):
        (openai if is_openai else anthropic)(b"data: " + noise + b"\n\n")


def test_an_event_without_end_is_not_waited_for() -> None:
    reader = EventReader()
    with pytest.raises(RemoteError, match="too large"):
        [*(event for _ in range(1000) for event in reader.push(b"x" * 2**20))]


def test_hotloop_shows_itself_in_the_usage() -> None:
    answer = chat_listener()
    hear(answer, [data(chunk(finish="stop"), chunk(choices=[], usage={**wires.OPENAI_USAGE, "hotloop": {"steps": 1}}))])
    assert answer.model.can_prefill_ahead
