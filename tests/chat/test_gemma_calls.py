"""Gemma's own way with values becomes JSON as it comes; what its grammar cannot say is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat.speaking import FORMATS, Language, hear, hear_cut_anywhere, write_call

from hotloop.chat.gemma_calls import GEMMA_4, GemmaCallParser
from hotloop.chat.tools import ToolChoice
from hotloop.core.errors import RequestError
from hotloop.core.message import Tool
from hotloop.core.stream import CallDelta

Q = GEMMA_4.quote


def write(arguments: str, name: str = "f") -> str:
    return f"<|tool_call>call:{name}{arguments}<tool_call|>"


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        (write("{}"), "", [("f", "{}")]),
        (f"Hm.\n{write('{}')}{write('{a:1}', 'g.h')} so.", "Hm.", [("f", "{}"), ("g.h", '{"a": 1}')]),
        (write(f"{{a:{Q}x{Q}, b : -1.5,c:true}}"), "", [("f", '{"a": "x", "b": -1.5, "c": true}')]),
        (write(f'{{a:{Q}say "hi",}}]\\\n{Q}}}'), "", [("f", '{"a": "say \\"hi\\",}]\\\\\\n"}')]),
        (write(f"{{a:[{Q}x{Q},[],{{}},[1,null]]}}"), "", [("f", '{"a": ["x", [], {}, [1, null]]}')]),
        (write(f"{{a:{{b:{Q}{Q},c:{{d:[]}}}},e:2}}"), "", [("f", '{"a": {"b": "", "c": {"d": []}}, "e": 2}')]),
        (write(f"{{{Q}a b{Q}:None,c:True}}"), "", [("f", '{"a b": null, "c": true}')]),
        (write("{a:Paris, France}"), "", None),
        (write("{a:Paris,b:}"), "", [("f", '{"a": "Paris", "b": null}')]),
        ("<|tool_call>call:f{a:1}", "", [("f", '{"a": 1}')]),
        ("<|tool_call>call:f{a:[1", "", None),
        ("<|tool_call> is a mark", "<|tool_call> is a mark", []),
        ("<|tool_call>f{a:1}", "<|tool_call>f{a:1}", []),
        ("a <|tool_ca", "a <|tool_ca", []),
    ],
)
def test_an_answer(answer: str, text: str, calls: list[tuple[str, str]] | None) -> None:
    hear_cut_anywhere(lambda: GemmaCallParser(GEMMA_4), answer).check(text, calls)


def test_a_string_comes_as_it_is_written() -> None:
    parser = GemmaCallParser(GEMMA_4)
    parser.push(f"<|tool_call>call:f{{a:{Q}")
    assert parser.push("abc<|") == [CallDelta(0, "abc")]
    assert parser.push('b"') == [CallDelta(0, '<|b\\"')]
    assert parser.push(f"{Q}}}")[0] == CallDelta(0, '"}')


PIECES = st.sampled_from(
    [*GEMMA_4, "call:", "f", "{", "}", "[", "]", ",", ":", "a", "1", "null", " ", "\n", '"', "\\", "<|"]
)


@given(st.lists(PIECES, max_size=25), st.data())
def test_nothing_breaks_the_parser_and_no_cut_matters(pieces: list[str], data: st.DataObject) -> None:
    answer = "".join(["<|tool_call>call:f{"] * data.draw(st.integers(0, 1)) + pieces)
    whole = hear(GemmaCallParser(GEMMA_4), answer)
    places = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=5)))
    cut = [answer[i:j] for i, j in zip([0, *places], [*places, len(answer)], strict=True)]
    heard = hear(GemmaCallParser(GEMMA_4), *cut)
    assert heard == whole
    for index in whole.closed:
        assert isinstance(whole.parsed[index][1], dict)
    if not whole.calls:
        assert whole.text == answer


NESTED = {
    "type": "object",
    "properties": {
        "z": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
        "Kind": {"enum": ["", 'a "b"', 3, None]},
        "any": {},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]},
        "map": {"type": "object", "additionalProperties": {"type": ["boolean", "null"]}},
    },
    "required": ["z"],
    "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}},
}


@pytest.mark.parametrize("name", ["gemma", "gemma_special", "gemma_function"])
@pytest.mark.parametrize(
    ("arguments", "is_accepted"),
    [
        ({"z": []}, True),
        ({"z": [{"x": 1.5}, {}, {"y": 2}]}, True),
        ({"any": {"a": [None, "<b>"]}, "either": "x", "Kind": 'a "b"', "map": {"k": True, "l": None}, "z": []}, True),
        ({"either": 3, "Kind": None, "z": []}, True),
        ({"Kind": "", "z": [{"x": 1, "y": 2}]}, True),
        ({}, False),
        ({"z": [{"w": 1}]}, False),
        ({"z": {}}, False),
        ({"Kind": "b", "z": []}, False),
        ({"either": -1, "z": []}, False),
        ({"map": {"k": 1}, "z": []}, False),
    ],
)
def test_a_schema_is_kept_to(name: str, arguments: dict[str, Any], is_accepted: bool) -> None:
    tool = Tool("f", parameters=NESTED)
    answer = write_call(name, "f", arguments)
    assert Language(name, (tool,), ToolChoice("required")).accepts(answer) is is_accepted
    assert hear(FORMATS[name][0].parser([tool]), *answer).parsed == [("f", arguments)]


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"a": {"type": "string", "pattern": "x"}}, "'pattern'"),
        ({"a": {"allOf": [{"type": "string"}]}}, "'allOf'"),
        ({"a:b": {"type": "string"}}, "'a:b'"),
        ({"a": {"enum": [[1]]}}, "to choose from"),
        ({"a": {"enum": [Q]}}, "cannot say"),
        ({"a": {"type": "array", "maxItems": 3}}, "'maxItems'"),
        ({"a": {"$ref": "#/properties/a/items"}}, "ref"),
    ],
)
def test_what_cannot_be_said_is_refused(schema: dict[str, Any], complaint: str) -> None:
    tool_format, _ = FORMATS["gemma"]
    tool = Tool("f", parameters={"type": "object", "properties": schema})
    with pytest.raises(RequestError, match=complaint):
        tool_format.grammar((tool,), ToolChoice())


def test_a_schema_that_is_part_of_itself_is_refused() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    tool = Tool("f", parameters={"properties": {"a": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}})
    with pytest.raises(RequestError, match="nested so deep"):
        FORMATS["gemma"][0].grammar((tool,), ToolChoice())
