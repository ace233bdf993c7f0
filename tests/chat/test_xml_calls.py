"""Calls that are tags become JSON as they come, each value of the type its schema asks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat.speaking import Heard, hear, hear_cut_anywhere

from hotloop.chat.tag_values import ValueKind, resolve, to_json, types_of, value_kind
from hotloop.chat.xml_calls import DSML, GLM, MINIMAX, QWEN_CODER, TagMarks, XmlCallParser
from hotloop.core.message import Tool
from hotloop.core.stream import CallDelta

TOOL = Tool(
    "f",
    parameters={
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "integer"},
            "b": {"type": "boolean"},
            "maybe": {"type": ["string", "null"]},
            "list": {"type": "array", "items": {"type": "string"}},
            "color": {"$ref": "#/$defs/Color"},
            "short": {"type": "string", "maxLength": 3},
        },
        "$defs": {"Color": {"enum": ["red", "true"]}},
    },
)


def write(*parameters: str, name: str = "f") -> str:
    return f"<tool_call>\n<function={name}>\n{''.join(parameters)}</function>\n</tool_call>"


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def read(answer: str) -> Heard:
    return hear_cut_anywhere(lambda: XmlCallParser(QWEN_CODER, [TOOL]), answer)


@pytest.mark.parametrize(
    ("key", "written", "json"),
    [
        ("s", "Paris", '"Paris"'),
        ("s", "", '""'),
        ("s", "\n", '"\\n"'),
        ("s", "\n a\n\n", '"\\n a\\n\\n"'),
        ("s", 'say "hi"\\', '"say \\"hi\\"\\\\"'),
        ("s", "12", '"12"'),
        ("s", "null", '"null"'),
        ("s", "if a </param> b <parameter=x> </function> </tool_call>", None),
        ("n", "12", "12"),
        ("n", "twelve", '"twelve"'),
        ("b", "True", "true"),
        ("b", "false", "false"),
        ("maybe", "null", "null"),
        ("maybe", "None", "null"),
        ("maybe", "nullify", '"nullify"'),
        ("maybe", "nu", '"nu"'),
        ("maybe", "", '""'),
        ("list", '["a", "</parameter>"]', '["a", "</parameter>"]'),
        ("color", "true", '"true"'),
        ("short", '"abc"', '"abc"'),
        ("short", "12", '"12"'),
        ("other", "12", "12"),
        ("other", "a b", '"a b"'),
        ("other", "NaN", '"NaN"'),
    ],
)
def test_a_value(key: str, written: str, json: str | None) -> None:
    heard = read(write(parameter(key, written)))
    assert heard.text == ""
    assert heard.closed == [0]
    [(name, arguments)] = heard.parsed
    assert (name, list(arguments)) == ("f", [key])
    if json is None:
        assert arguments == {key: written}
    else:
        assert heard.calls[0][1] == f'{{"{key}": {json}}}'


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        (write(), "", [("f", "{}")]),
        (write(name="unknown"), "", [("unknown", "{}")]),
        (f"Sure.\n{write()}\n{write(parameter('n', '1'))}\n", "Sure.", [("f", "{}"), ("f", '{"n": 1}')]),
        (write(parameter("s", "a"), parameter("n", "2")), "", [("f", '{"s": "a", "n": 2}')]),
        (write(parameter("s", "a"), "well, ", parameter("n", "2")), "", [("f", '{"s": "a", "n": 2}')]),
        (write(parameter("n", "1")).removeprefix("<tool_call>\n"), "", [("f", '{"n": 1}')]),
        (write(parameter("n", "1")).removesuffix("\n</tool_call>"), "", [("f", '{"n": 1}')]),
        ("<tool_call><function=f><parameter=n>1</parameter></function></tool_call>", "", [("f", '{"n": 1}')]),
        ("<tool_call>\nno</tool_call>", "<tool_call>\nno</tool_call>", []),
        ("<tool_call>\n<function=f>\nno", "<tool_call>\n<function=f>\nno", []),
        ("a <function", "a <function", []),
        ("<function=>", "<function=>", []),
    ],
)
def test_an_answer(answer: str, text: str, calls: list[tuple[str, str]]) -> None:
    heard = read(answer)
    assert (heard.text, heard.calls) == (text, calls)
    assert heard.closed == list(range(len(calls)))


def test_a_call_that_is_cut_off_is_never_closed_and_its_json_stays_open() -> None:
    heard = read("<tool_call>\n<function=f>\n<parameter=s>\nrm -r /tmp")
    assert (heard.calls, heard.closed) == ([("f", '{"s": "rm -r /tmp')], [])


def test_a_string_comes_as_it_is_written() -> None:
    parser = XmlCallParser(QWEN_CODER, [TOOL])
    parser.push("<tool_call>\n<function=f>\n<parameter=s>\n")
    assert parser.push("abc") == [CallDelta(0, '"abc')]
    assert parser.push('d"\n') == [CallDelta(0, 'd\\"')]
    assert parser.push("</parameter>") == [CallDelta(0, '"')]


VALUES = ["\n", " ", *'"\\[]<>a', "null", "s", "list"]


def words_of(marks: TagMarks) -> list[str]:
    """The family's own words, whole and with a name or key in them."""
    begun = [f"{marks.function}f{marks.name_end}", *(f"{marks.parameter}{key}{marks.key_end}" for key in ("s", "list"))]
    typed = [f'{marks.parameter}list" string="{flag}{marks.key_end}' for flag in ("true", "false")]
    own = (*marks[:7], marks.value_opening, marks.pad + marks.end_parameter)
    return [word for word in (*own, *begun, *(typed if marks.has_types else [])) if word]


@pytest.mark.parametrize("marks", [QWEN_CODER, GLM, MINIMAX, DSML], ids=lambda marks: marks.opening)
@given(data=st.data())
def test_nothing_breaks_the_parser_and_no_cut_matters(marks: TagMarks, data: st.DataObject) -> None:
    answer = "".join(data.draw(st.lists(st.sampled_from([*words_of(marks), *VALUES]), max_size=25)))
    whole = hear(XmlCallParser(marks, [TOOL]), answer)
    places = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=5)))
    cut = [answer[i:j] for i, j in zip([0, *places], [*places, len(answer)], strict=True)]
    heard = hear(XmlCallParser(marks, [TOOL]), *cut)
    assert heard == whole
    if not whole.calls:
        assert whole.text == answer


GLM_ARGS = "<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n"
INVOKE = '<invoke name="f">\n<parameter name="n">1</parameter>\n</invoke>'
DSML_X = '<｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter>'
DSML_N = f'<｜DSML｜invoke name="f">\n{DSML_X}\n</｜DSML｜invoke>'


@pytest.mark.parametrize(
    ("marks", "answer", "text", "calls"),
    [
        (GLM, f"<tool_call>f\n{GLM_ARGS}</tool_call>", "", [("f", '{"n": 1}')]),
        (GLM, f"Hm.\n<tool_call>\nf\n{GLM_ARGS}</tool_call>\n", "Hm.", [("f", '{"n": 1}')]),
        (GLM, "<tool_call>f</tool_call><tool_call>g \n</tool_call>", "", [("f", "{}"), ("g", "{}")]),
        (GLM, f"<tool_call>f {GLM_ARGS} and {GLM_ARGS}", "", None),
        (
            GLM,
            "<tool_call>f<arg_key>s</arg_key><arg_value>\n a\n</arg_value></tool_call>",
            "",
            [("f", '{"s": "\\n a\\n"}')],
        ),
        (GLM, "<tool_call> is how a call begins.", "<tool_call> is how a call begins.", []),
        (GLM, '<tool_call>\n{"name": "f"}', '<tool_call>\n{"name": "f"}', []),
        (MINIMAX, f"<minimax:tool_call>\n{INVOKE}\n{INVOKE}\n</minimax:tool_call>", "", [("f", '{"n": 1}')] * 2),
        (MINIMAX, f"Sure.\n{INVOKE}{INVOKE} Done.", "Sure.", [("f", '{"n": 1}')] * 2),
        (MINIMAX, f"{INVOKE}<minimax:tool_call>{INVOKE}", "", [("f", '{"n": 1}')] * 2),
        (MINIMAX, '<invoke name="">', '<invoke name="">', []),
        (DSML, f"Hm.\n\n<｜DSML｜function_calls>\n{DSML_N}\n</｜DSML｜function_calls>", "Hm.\n", [("f", '{"x": 1}')]),
        (DSML, DSML_N.replace("false", "true"), "", [("f", '{"x": "1"}')]),
        (DSML, DSML_N.replace(' string="false"', ""), "", [("f", '{"x": 1}')]),
    ],
)
def test_an_answer_in_other_tags(marks: TagMarks, answer: str, text: str, calls: list[tuple[str, str]] | None) -> None:
    hear_cut_anywhere(lambda: XmlCallParser(marks, [TOOL]), answer).check(text, calls)


@pytest.mark.parametrize(
    ("schema", "kind", "types"),
    [
        ({"type": "string", "description": "x", "format": "date"}, "raw", {"string"}),
        ({"type": ["string"]}, "raw", {"string"}),
        ({"type": "string", "pattern": "a"}, "json", {"string"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "nullable", {"string", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "json", {"string", "integer"}),
        ({"enum": ["a", "b"]}, "choice", {"string"}),
        ({"const": "a"}, "choice", {"string"}),
        ({"enum": ["a", 1]}, "json", {"string", "integer"}),
        ({"enum": ["a", "</parameter>"]}, "json", {"string"}),
        ({}, "json", None),
        (True, "json", None),
    ],
)
def test_how_a_value_is_written(schema: object, kind: ValueKind, types: set[str] | None) -> None:
    assert value_kind(schema) is kind
    assert types_of(schema) == types


def test_references_that_lead_nowhere_stay() -> None:
    root = {"$defs": {"A": {"$ref": "#/$defs/A"}, "B": {"type": "null"}}}
    assert resolve({"$ref": "#/$defs/B"}, root)["type"] == "null"
    for ref in ("#/$defs/A", "#/$defs/C", "#", "other", 7):
        assert resolve({"$ref": ref}, root)["$ref"] == ref


def test_a_value_is_json_where_its_type_allows_it() -> None:
    assert to_json("1", {"number"}) == "1"
    assert to_json("1", {"number", "string"}) == "1"
    assert to_json("1", {"string"}) == '"1"'
    assert to_json("None", None) == '"None"'
    assert to_json("[" * 100_000, {"array"}).startswith('"')


def test_a_parameter_may_refer_to_another() -> None:
    root = {"properties": {"a": {"type": "boolean"}, "b": {"$ref": "#/properties/a", "description": "the same"}}}
    assert resolve(root["properties"]["b"], root) == {"type": "boolean"}
