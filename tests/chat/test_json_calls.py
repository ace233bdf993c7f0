"""Calls that are JSON objects, read as they come: whole, broken, and cut anywhere."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat.speaking import FORMATS, Heard, hear

from hotloop.chat.stream import CallDelta, CallOpened, StreamEvent, TextDelta

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F = [("f", '{"a": 1}')]


def read(name: str, answer: str) -> Heard:
    """What the whole answer says; the same must be heard however it is cut."""
    whole = hear(FORMATS[name][0].parser(), answer)
    assert (letters := hear(FORMATS[name][0].parser(), *answer)).calls == whole.calls
    assert (letters.text, letters.closed) == (whole.text, whole.closed)
    for i in range(1, len(answer)):
        halves = hear(FORMATS[name][0].parser(), answer[:i], answer[i:])
        assert (halves.text, halves.calls, halves.closed) == (whole.text, whole.calls, whole.closed)
    return whole


@pytest.mark.parametrize(
    ("name", "answer", "text", "calls"),
    [
        ("hermes", "", "", []),
        ("hermes", " Hello. \n", " Hello. \n", []),
        ("hermes", CALL, "", F),
        ("hermes", f"Sure!\n{CALL}\n", "Sure!", F),
        ("hermes", f"Sure!\n\n{CALL}", "Sure!\n", F),
        ("hermes", f"\n\n{CALL}\n{CALL}  ", "", F * 2),
        ("hermes", f"{CALL}\n so. ", "so. ", F),
        ("hermes", CALL.replace("\n", ""), "", F),
        ("hermes", CALL.removesuffix("\n</tool_call>"), "", F),
        ("hermes", CALL.removesuffix("l>"), "", F),
        ("hermes", CALL.removesuffix("}\n</tool_call>"), "", F),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", F),
        ("hermes", '<tool_call>{"id": 3, "name": "f", "parameters": {"a": 1}, "x": []}</tool_call>', "", F),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", F),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "}</tool_call>\\""}}</tool_call>', "", None),
        ("hermes", '<tool_call>\n{"name": "a"}\n{"name": "b"}\n</tool_call>', "", [("a", "{}"), ("b", "{}")]),
        ("hermes", "a <tool_call> b", "a <tool_call> b", []),
        ("hermes", "a < b <tool_", "a < b <tool_", []),
        ("hermes", '<tool_call>\n{oops}\n</tool_call> ', '<tool_call>\n{oops}\n</tool_call> ', []),
        ("hermes", f"<tool_call>{CALL}", "<tool_call>", F),
        ("hermes", '<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}', '<tool_call>{"name": "f", "arguments": [1]}', []),
        ("hermes", '\n<tool_call>{"name": "f", "arg', '\n<tool_call>{"name": "f", "arg', []),
        ("llama3", '{"name": "f", "parameters": {"a": 1}}', "", F),
        ("llama3", ' {"type": "function", "name": "f", "parameters": {"a": 1}} ', "", F),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", F),
        ("llama3", 'Sure. <|python_tag|>{"name": "f", "arguments": {"a": 1}}', "Sure. ", F),
        ("llama3", '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}', "", [*F, ("g", "{}")]),
        ("llama3", '{"name": "f", "parameters": {"a": 1}};', "", F),
        ("llama3", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
        ("llama3", '{"type": "object", "name": "f", "parameters": {}}', None, []),
        ("llama3", '{"age": 3, "name": "f", "parameters": {}}', None, []),
        ("llama3", 'It is {"name": "f", "parameters": {}}', None, []),
        ("llama3", "{}", "{}", []),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', "", F),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]', "", F),
        ("mistral", '[TOOL_CALLS] {"name": "f", "arguments": {"a": 1}}', "", F),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]', "", [*F, ("g", "{}")]),
        ("mistral", 'Hm.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{}', "Hm.", [*F, ("g", "{}")]),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{"a": 1}', "", F),
        ("mistral", "[TOOL_CALLS] [oops]", "[TOOL_CALLS] [oops]", []),
        ("mistral", "[TOOL_CALLS]what is this?", "[TOOL_CALLS]what is this?", []),
        ("mistral", "[1, 2] [TOOL", "[1, 2] [TOOL", []),
    ],
)  # fmt: skip
def test_an_answer(name: str, answer: str, text: str | None, calls: list[tuple[str, str]] | None) -> None:
    heard = read(name, answer)
    assert heard.text == (answer if text is None else text)
    if calls is not None:
        assert heard.calls == calls
    assert heard.closed == list(range(len(heard.calls)))


def test_a_call_that_is_cut_off_is_opened_and_never_closed() -> None:
    heard = read("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "x')
    assert (heard.calls, heard.closed, heard.text) == ([("f", '{"a": "x')], [], "")


def test_arguments_come_as_they_are_written() -> None:
    parser = FORMATS["hermes"][0].parser()
    events: list[StreamEvent] = []
    for piece in ("Well", "\n<tool", '_call>\n{"name": "f"', ', "arguments": ', '{"a": "b', "c"):
        events += parser.push(piece)
    assert events[0] == TextDelta("Well")
    assert isinstance(events[1], CallOpened)
    assert events[2:] == [CallDelta(0, '{"a": "b'), CallDelta(0, "c")]


def test_every_call_has_its_own_id() -> None:
    heard = hear(FORMATS["hermes"][0].parser(), CALL * 3)
    assert len(set(heard.ids)) == 3
    assert all(re.fullmatch("call_[0-9a-f]{24}", call_id) for call_id in heard.ids)


WORDS = '<tool_call> </tool_call> [TOOL_CALLS] <|python_tag|> [ARGS] [CALL_ID] }} null "name" "parameters"'
PIECES = st.sampled_from([*WORDS.split(), '{"name": "f"', ', "arguments": {', *'"\\{}[],;: \na1'])


@settings(deadline=None)
@given(st.sampled_from(["hermes", "llama3", "mistral"]), st.lists(PIECES, max_size=25), st.data())
def test_nothing_breaks_a_parser_and_no_cut_matters(name: str, pieces: list[str], data: st.DataObject) -> None:
    answer = "".join(pieces)
    whole = hear(FORMATS[name][0].parser(), answer)
    places = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=5)))
    cut = [answer[i:j] for i, j in zip([0, *places], [*places, len(answer)], strict=True)]
    heard = hear(FORMATS[name][0].parser(), *cut)
    assert (heard.text, heard.calls, heard.closed) == (whole.text, whole.calls, whole.closed)
    if not whole.calls:
        assert whole.text == answer


def test_text_made_to_be_read_again_and_again_is_read_in_time() -> None:
    answer = '<tool_call>{"a": ["' * 3000 + "x"
    assert hear(FORMATS["hermes"][0].parser(), answer).text == answer
