"""Calls that are JSON objects, read as they come: whole, broken, and cut anywhere."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat.speaking import FORMATS, Heard, hear, hear_cut_anywhere

from hotloop.chat.stream import CallsOnly
from hotloop.core.message import Tool
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, StreamEvent, TextDelta

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F = [("f", '{"a": 1}')]
PRETTY = '{\n  "name": "f",\n  "arguments": {\n    "a": 1\n  }\n}'
FENCED = f"```json\n{PRETTY}\n```"
G = [("f", '{\n    "a": 1\n  }')]
TOOLS = (Tool("f"), Tool("fg"))


def read(name: str, answer: str, tools: tuple[Tool, ...] = ()) -> Heard:
    return hear_cut_anywhere(lambda: FORMATS[name][0].parser(tools), answer)


@pytest.mark.parametrize(
    ("name", "answer", "text", "calls"),
    [
        ("hermes", "", "", []),
        ("hermes", " Hello. \n", " Hello. \n", []),
        ("hermes", CALL, "", F),
        ("hermes", f"Sure!\n{CALL}\n", "Sure!", F),
        ("hermes", f"Sure!\n\n{CALL}", "Sure!\n", F),
        ("hermes", f"\n\n{CALL}\n{CALL}  ", "", F * 2),
        ("hermes", f"{CALL}\n so. ", "", F),
        ("hermes", f"Hm. {CALL}\n</tool_call>\n{CALL} <tool_call>", "Hm. ", F * 2),
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
        ("hermes", CALL.removesuffix("</tool_call>") + CALL, "", F * 2),
        ("hermes", '<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}', '<tool_call>{"name": "f", "arguments": [1]}', []),
        ("hermes", '\n<tool_call>{"name": "f", "arg', '\n<tool_call>{"name": "f", "arg', []),
        ("hermes", '<tool_call>\n{{"name": "f", "arguments": {"a": 1}}}\n</tool_call>', "", F),
        ("hermes", '<tool_call>\n{{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", F),
        ("hermes", '<tool_call>\n{ {"name": "f", "arguments": { {"a": 1}}} }\n</tool_call>', "", [("f", '{ "a": 1}')]),
        ("hermes", '<tool_call>\n{{"name": "f", "arguments": {{"a": 1}}}}\n</tool_call>', "", F),
        ("hermes", '<tool_call>{{"arguments": {{"a": 1}}, "name": "f"}}</tool_call>', "", F),
        ("hermes", '<tool_call>{"name": "f", "arguments": {{"a": 1}}}\n</tool_call>', "", F),
        ("hermes", '<tool_call>\n{{"name": "f"}}\n{{"name": "g"}}\n</tool_call>', "", [("f", "{}"), ("g", "{}")]),
        ("hermes", '<tool_call>{{{"name": "f"}}}', None, []),
        ("llama3", '{{"name": "f", "parameters": {"a": 1}}}', "", F),
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
        ("granite", 'Hm.<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]', "Hm.", [*F, ("g", "{}")]),
        ("granite", '<tool_call> [{"name": "f", "arguments": {"a": 1}}]', "", F),
        ("granite", "<|tool_call|>[1]", None, []),
        ("deepseek", 'Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end', "Hm.", F),
        ("deepseek", '<｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```{"a": 1}\n```', "", F),
        ("deepseek", '<｜tool▁call▁begin｜>function<｜tool▁sep｜>{"a": 1}', "", [("function", '{"a": 1}')]),
        ("deepseek", '<｜tool▁calls▁begin｜>{"name": "f", "arguments": {"a": 1}}<｜tool▁calls▁end｜>', "", F),
        ("deepseek", "<｜tool▁calls▁begin｜> is a mark, no call", None, []),
        ("deepseek", "a <｜tool▁sep｜> b <｜tool", None, []),
        ("kimi", '<|tool_calls_section_begin|> <|tool_call_begin|> f:0 <|tool_call_argument_begin|> {"a": 1}', "", F),
        ("kimi", 'So: <|tool_call_begin|>f<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|> done', "So: ", F),
        ("kimi", '<|tool_call_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{"a": 1}', "", F),
        ("kimi", '<|tool_call_begin|>f:0{"a": 1}<|tool_call_end|><|tool_call_begin|>f:1{"a": 1}', "", F * 2),
        ("kimi", "<|tool_calls_section_begin|><|tool_calls_section_end|> so?", None, []),
    ],
)  # fmt: skip
def test_an_answer(name: str, answer: str, text: str | None, calls: list[tuple[str, str]] | None) -> None:
    heard = read(name, answer)
    assert heard.text == (answer if text is None else text)
    if calls is not None:
        assert heard.calls == calls
    assert heard.closed == list(range(len(heard.calls)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["hermes", "hermes_special", "generic", "llama3"])
@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        (FENCED, "", G),
        (FENCED.replace("json", ""), "", G),
        (f"```json\n{{{PRETTY}}}\n```", "", G),
        (FENCED.replace("arguments", "parameters"), "", G),
        ('```json{"name":"f","arguments":{"a": 1}}```', "", F),
        ('```\t{\r\n"name" : "f" , "arguments" : {"a": 1} } ```\n', "", F),
        (f"Sure:\n{FENCED}\nThis calls f.", "Sure:", G),
        (f"{FENCED}\n{FENCED}\n\n{FENCED}", "", G * 3),
        (f"```json\n{PRETTY}\n{PRETTY}\n```", "", G * 2),
        (f"`{FENCED}`", "`", G),
        (FENCED.replace('"f"', '"fg"'), "", [("fg", G[0][1])]),
        (FENCED.removesuffix("```"), "", G),
        (FENCED.removesuffix("`"), "", G),
        (FENCED.removesuffix("\n}\n```"), "", G),
        (FENCED.removesuffix("\n```") + " or so", "", G),
        (FENCED.replace("```", "x", 1) + " {", None, []),
        (FENCED.replace('"f"', '"g"'), None, []),
        (FENCED.replace('"f"', '"Alice"').replace("arguments", "friends"), None, []),
        (FENCED.replace('"f",', '"f"'), None, []),
        (FENCED.replace("arguments", "argument"), None, []),
        (FENCED.replace("json", " json"), None, []),
        (FENCED.replace("json", "python"), None, []),
        (FENCED.replace("{\n    ", "[").replace("\n  }", "]"), None, []),
        ('```json\n{"names": []}\n```', None, []),
        ("```json\n[1, 2]\n```\n``", None, []),
        ('```json\n{"name": "f", "argum', None, []),
        (f"It is {PRETTY}", None, []),
    ],
    ids=str,
)
def test_a_fenced_object_that_names_a_tool_is_a_call(
    name: str, answer: str, text: str | None, calls: list[tuple[str, str]]
) -> None:
    heard = read(name, answer, TOOLS)
    assert (heard.text, heard.calls) == (answer if text is None else text, calls)
    assert heard.closed == list(range(len(calls)))
    assert (nobody := read(name, answer)).text + str(nobody.calls) == answer + "[]"


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        (PRETTY, "", G),
        (f"\n {PRETTY}\n", "", G),
        ("{" + PRETTY + "}", "", G),
        ("{" + PRETTY + "}\n</tool_call>", "", G),
        (f"{PRETTY}\n{PRETTY}", "", G * 2),
        (f"{PRETTY}\n{FENCED}\n{CALL}", "", [*G, *G, *F]),
        (f"{PRETTY}, or not\n</tool_call>", "", G),
        (f'{PRETTY}\n{{"name": "g"}}', "", G),
        (f"- {PRETTY}", None, []),
        (PRETTY.replace('"f"', '"Alice"'), None, []),
        ('{"name": "Alice", "age": 3} ', None, []),
        ('{"name": "f"}', None, []),
        ('{"answer": 42}', None, []),
        ("{}", None, []),
    ],
    ids=str,
)
def test_where_the_answer_begins_no_fence_is_needed(
    answer: str, text: str | None, calls: list[tuple[str, str]]
) -> None:
    heard = read("hermes", answer, TOOLS)
    assert (heard.text, heard.calls) == (answer if text is None else text, calls)
    assert heard.closed == list(range(len(calls)))
    if CALL not in answer:
        assert read("hermes", answer).text == answer


def test_json_is_held_back_only_while_it_may_be_a_call() -> None:
    parser = FORMATS["hermes"][0].parser(TOOLS)
    assert parser.push('See:\n```json\n{"name": "') == [TextDelta("See:")]
    assert parser.push("A") == [TextDelta('\n```json\n{"name": "A')]
    assert parser.push('lice"}\n``') == [TextDelta('lice"}')]
    assert parser.push("` so") == [TextDelta("\n``` so")]


def test_arguments_in_a_fence_come_as_they_are_written() -> None:
    parser = FORMATS["hermes"][0].parser(TOOLS)
    assert parser.push('```json\n{"name": "fg", "arguments":') == []
    [opened, begun] = parser.push(' {\n "a"')
    assert isinstance(opened, CallOpened)
    assert (opened.name, begun) == ("fg", CallDelta(0, '{\n "a"'))
    assert parser.push(': "```') == [CallDelta(0, ': "```')]
    assert parser.push('"}') == [CallDelta(0, '"}')]
    assert parser.push("\n}\n```") == [CallClosed(0)]
    assert parser.finish() == []


def test_a_call_that_is_cut_off_is_opened_and_never_closed() -> None:
    heard = read("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "x')
    assert (heard.calls, heard.closed, heard.text) == ([("f", '{"a": "x')], [], "")


@pytest.mark.parametrize(
    ("name", "answer", "text"),
    [
        ("hermes", 'Hm.\n<tool_call>\n{"name": "f", "arg', "Hm."),
        ("hermes", "Hm. <tool_call>", "Hm. "),
        ("hermes", "Hm. <tool_", "Hm. <tool_"),
        ("hermes", 'Hm.\n```json\n{"name": "f"', 'Hm.\n```json\n{"name": "f"'),
        ("mistral", "Hm. [TOOL_CALLS]get_", "Hm. "),
        ("kimi", "Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.g", "Hm."),
        ("deepseek", "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>fu", "Hm."),
        ("glm", "Hm.<tool_call>f<arg_key>a</arg", "Hm."),
        ("qwen3_coder", "Hm. <tool_call>\n<function=f>\n<para", "Hm. "),
    ],
)
def test_half_a_call_in_an_answer_that_was_cut_is_not_text(name: str, answer: str, text: str) -> None:
    def settle(*, is_cut: bool) -> str:
        parser = FORMATS[name][0].parser(TOOLS)
        return Heard().hear(parser.push(answer) + parser.finish(is_cut=is_cut)).text

    assert (settle(is_cut=True).rstrip(), settle(is_cut=False)) == (text.rstrip(), answer)


@pytest.mark.parametrize("answer", ['<tool_call>\n{"name": "f", "arg', "<tool_", "{", "prose"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_an_answer_that_must_be_calls_has_no_text(answer: str, is_cut: bool) -> None:
    parser = CallsOnly(FORMATS["hermes"][0].parser(TOOLS))
    assert parser.push(answer) + parser.finish(is_cut=is_cut) == []
    assert hear(CallsOnly(FORMATS["hermes"][0].parser(TOOLS)), CALL, answer).calls == F


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


WORDS = '{{ <tool_call> </tool_call> [TOOL_CALLS] <|python_tag|> [ARGS] [CALL_ID] }} null "name" "parameters"'
WORDS += " <｜tool▁calls▁begin｜> <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜> function f:0 functions. f"
WORDS += " <|tool_calls_section_begin|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|>"
FENCES = '``` ```json "f", "arguments":'
PIECES = st.sampled_from(
    [
        *WORDS.split(),
        *FENCES.split(),
        '```json\n{"name": "f", "arguments": {',
        '{"name": "f"',
        ', "arguments": {',
        *'"\\{}[],;: \na1',
    ]
)


@given(
    st.sampled_from(["hermes", "llama3", "mistral", "deepseek", "kimi", "granite"]),
    st.lists(PIECES, max_size=25),
    st.data(),
)
def test_nothing_breaks_a_parser_and_no_cut_matters(name: str, pieces: list[str], data: st.DataObject) -> None:
    answer = "".join(pieces)
    tools = data.draw(st.sampled_from([(), TOOLS]))
    whole = hear(FORMATS[name][0].parser(tools), answer)
    places = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=5)))
    cut = [answer[i:j] for i, j in zip([0, *places], [*places, len(answer)], strict=True)]
    heard = hear(FORMATS[name][0].parser(tools), *cut)
    assert heard == whole
    if not whole.calls:
        assert whole.text == answer


def test_text_made_to_be_read_again_and_again_is_read_in_time() -> None:
    answer = '<tool_call>{"a": ["' * 3000 + '```json\n{"name": "' * 300 + "```" + " " * 3000 + "x"
    tools = [Tool(f"f{i}") for i in range(100)]
    assert hear(FORMATS["hermes"][0].parser(tools), answer).text == answer
