"""An answer written in a format and read from it is the same answer, however its bytes are cut and its calls mixed."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples
from tests.wire.nouns import ids, names, said

from hotloop.core.errors import RemoteError
from hotloop.core.message import Thought
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta, ThoughtClosed, ThoughtDelta
from hotloop.wire.event import Answer, Begun, CallOrder, Ended, Event, gather
from hotloop.wire.formats import FORMATS, Writer
from hotloop.wire.part import Api, Call, Text
from hotloop.wire.policy import Notes
from hotloop.wire.reader import name_call
from hotloop.wire.sse import EventReader, write_data
from hotloop.wire.usage import ApiUsage

APIS: list[Api] = ["chat", "responses", "messages"]
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 3,
    "messages": [{"role": "user", "content": "hi"}],
    "input": "hi",
    "stream_options": {"include_usage": True},
}
ARGUMENTS = st.sampled_from(["{}", '{"a": 1}', '{"ü": "}"}'])
USAGE = ApiUsage(100, 64, 7, 16, 2)

unsigned = said.map(Thought)
signed = st.one_of(
    st.builds(lambda text, mark: Thought(text, mark, maker="messages"), said, ids),
    ids.map(lambda data: Thought(data, is_sealed=True, maker="messages")),
)
thoughts = unsigned | signed
parts = st.tuples(st.lists(thoughts, max_size=1), st.lists(said.map(Text), max_size=1)).map(
    lambda pair: [*pair[0], *pair[1]]
)
calls = st.lists(st.builds(Call, ids, names, ARGUMENTS), max_size=3, unique_by=lambda call: call.id)
answers = st.builds(lambda parts, calls: (*parts, *calls), parts, calls)


def _mixed(thoughts: st.SearchStrategy[Thought]) -> st.SearchStrategy[Any]:
    part = st.one_of(thoughts, said.map(Text), st.builds(Call, ids, names, ARGUMENTS))
    return st.lists(part, max_size=5, unique_by=lambda each: each.id if isinstance(each, Call) else id(each))


in_any_order = _mixed(unsigned) | _mixed(signed)  # one model signs all of its thoughts or none


def events_of(whole: Iterable[Any], reason: str | None = None) -> Iterator[Event]:
    """An answer as events, two a call's arguments."""
    yield Begun("chatcmpl-7", "llama")
    num_calls = 0
    for part in whole:
        match part:
            case Text():
                yield TextDelta(part.text)
            case Thought():
                if part.shown:
                    yield ThoughtDelta(part.shown)
                yield ThoughtClosed(part)
            case Call():
                yield CallOpened(num_calls, part.id, part.name)
                yield CallDelta(num_calls, part.arguments[:2])
                yield CallDelta(num_calls, part.arguments[2:])
                yield CallClosed(num_calls)
                num_calls += 1
    end: Any = reason or ("calls" if num_calls else "stop")
    yield Ended(end, None, USAGE)


def writer(api: Api) -> Writer:
    made = FORMATS[api]
    return made.writer(made.parse(BODY, Notes()), BODY)


def read_stream(api: Api, data: bytes, cuts: Iterable[int] = ()) -> Answer:
    reader, events = FORMATS[api].reader(name_call), EventReader()
    ends = sorted({*(cut for cut in cuts if cut < len(data)), len(data)})
    heard: list[Event] = []
    for begin, end in zip([0, *ends], ends, strict=False):
        for event in events.push(data[begin:end]):
            heard += reader.push(event)
    return gather([*heard, *reader.finish()])


def simplified(answer: Answer) -> Any:
    """Without its id; thoughts without a place in a format keep their text."""
    return answer.model, answer.parts, answer.ended.reason, answer.ended.usage


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(15))
@given(whole=answers, cuts=st.lists(st.integers(0, 3000), max_size=4))
def test_a_stream_cut_anywhere_is_the_answer_that_was_written(api: Api, whole: Any, cuts: list[int]) -> None:
    written = writer(api)
    data = b"".join(piece for event in events_of(whole) for piece in written.write(event))
    expected = simplified(gather(events_of(whole)))
    assert simplified(read_stream(api, data, cuts)) == expected
    at_once = msgspec.json.encode(writer(api).whole(events_of(whole)))
    assert simplified(gather(FORMATS[api].reader(name_call).whole(at_once))) == expected


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(10))
@given(whole=answers)
def test_a_stream_that_comes_byte_by_byte(api: Api, whole: Any) -> None:
    written = writer(api)
    data = b"".join(piece for event in events_of(whole) for piece in written.write(event))
    assert read_stream(api, data, range(len(data))) == read_stream(api, data)
    assert simplified(read_stream(api, data)) == simplified(gather(events_of(whole)))


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(30))
@given(whole=in_any_order)
def test_parts_in_any_order_are_the_same_streamed_and_whole(api: Api, whole: Any) -> None:
    """Thoughts between texts, text behind calls: a chat has one text and brings thoughts, text and calls in its own
    order, the other formats keep it."""
    written = writer(api)
    streamed = read_stream(api, b"".join(piece for event in events_of(whole) for piece in written.write(event)))
    at_once = gather(FORMATS[api].reader(name_call).whole(msgspec.json.encode(writer(api).whole(events_of(whole)))))
    wanted = gather(events_of(whole))
    assert (streamed.text, at_once.text) == (wanted.text, wanted.text)
    assert streamed.calls == at_once.calls == wanted.calls
    assert shown(streamed) == shown(at_once) == shown(wanted)
    assert streamed.ended == at_once.ended == wanted.ended
    if api != "chat":
        assert streamed.parts == at_once.parts == wanted.parts


def shown(answer: Answer) -> str:
    return "".join(thought.shown for thought in answer.thoughts)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("far", "near"), [*product(APIS, APIS)])
@settings(max_examples=examples(15))
@given(whole=answers)
def test_an_answer_goes_through_two_formats(far: Api, near: Api, whole: Any) -> None:
    """What a signature is worth elsewhere is for its maker: it comes back as it was."""
    written, again = writer(far), writer(near)
    data = b"".join(piece for event in events_of(whole) for piece in written.write(event))
    heard = read_events(far, data)
    assert simplified(
        read_stream(near, b"".join(piece for event in heard for piece in again.write(event)))
    ) == simplified(gather(events_of(whole)))


def read_events(api: Api, data: bytes) -> list[Event]:
    reader = FORMATS[api].reader(name_call)
    return [event for each in EventReader().push(data) for event in reader.push(each)]


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(15))
@given(whole=calls, data=st.data())
def test_calls_that_are_mixed_come_one_after_the_other(api: Api, whole: list[Call], data: st.DataObject) -> None:
    """Replicas may open all calls before they write the arguments of any."""
    queues = [[_renumbered(event, i) for event in [*events_of([call])][1:-1]] for i, call in enumerate(whole)]
    mixed: list[Event] = [Begun("x", "llama"), *(queue.pop(0) for queue in queues)]
    while any(queues):
        index = data.draw(st.sampled_from([index for index, queue in enumerate(queues) if queue]))
        mixed.append(queues[index].pop(0))
    events: list[Event] = [*mixed, Ended("calls" if whole else "stop", None, USAGE)]
    chat = writer("chat")
    chunks = b"".join(piece for event in events for piece in chat.write(event))
    again = writer(api)
    told = b"".join(piece for event in read_events("chat", chunks) for piece in again.write(event))
    assert [(call.id, call.arguments) for call in read_stream(api, told).calls] == [
        (call.id, call.arguments) for call in whole
    ]


def _renumbered(event: Any, index: int) -> Event:
    match event:
        case CallOpened():
            return CallOpened(index, event.id, event.name)
        case CallDelta():
            return CallDelta(index, event.arguments)
    return CallClosed(index)


def test_order_holds_back_only_what_must_wait() -> None:
    order = CallOrder()
    first, second = CallOpened(0, "a", "f"), CallOpened(1, "b", "g")
    assert [*order.push(first), *order.push(second)] == [first]
    assert [*order.push(CallDelta(1, "{}"))] == []
    assert [*order.push(CallDelta(0, "{}"))] == [CallDelta(0, "{}")]
    assert [*order.push(CallClosed(0))] == [CallClosed(0), second, CallDelta(1, "{}")]


@pytest.mark.parametrize(("api", "sealed"), [("chat", False), ("messages", True), ("messages", False)])
def test_what_openai_sealed_finds_its_way_back(api: Api, sealed: bool) -> None:
    """Through an API that has another shape for it, in an answer and in the next request."""
    thought = Thought("", "c2VhbA==", maker="responses", summary="I looked." if sealed else "")
    written = writer(api)
    message = written.whole(events_of([thought, Text("hi")]))
    turn = message["choices"][0]["message"] if api == "chat" else {"role": "assistant", "content": message["content"]}
    asked = FORMATS[api].parse({**BODY, "messages": [{"role": "user", "content": "a"}, turn]}, Notes())
    assert asked.turns[1].parts[0] == thought


def test_an_answer_that_failed_is_a_failure() -> None:
    reader = FORMATS["responses"].reader(name_call)
    [event] = EventReader().push(write_data({"type": "response.failed", "response": {"error": {"message": "no"}}}))
    with pytest.raises(RemoteError, match="no"):
        [*reader.push(event)]
