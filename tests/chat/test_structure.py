"""The structure that is asked for, and calls beside it, become one grammar."""

import pytest
from tests.engine.tiny import TOKENIZER

from hotloop.chat.formats import choose_format
from hotloop.chat.structure import Structure, constrain, either, parse_constraint
from hotloop.chat.tools import Calling, ToolChoice
from hotloop.core.config import ToolFormatName
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar, json_schema
from hotloop.core.message import Tool
from hotloop.engine.grammar.matcher import Grammars
from hotloop.models.template import ChatTemplate

TEMPLATE = ChatTemplate("{{ tools }}", bos_token="", eos_token="")
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def test_json_does_not_go_with_calls_that_look_the_same() -> None:
    asked = parse_constraint([Structure("response_format", "json_object")])
    calling = Calling(allowed=(Tool("f"),))
    with pytest.raises(RequestError, match="response_format cannot be given together with tools"):
        constrain(asked, calling, choose_format(TEMPLATE, TOKENIZER, "llama3"))


@pytest.mark.parametrize("name", ["generic", "hermes", "qwen3_coder"])
def test_calls_or_json_in_every_format(name: ToolFormatName) -> None:
    tool_format = choose_format(TEMPLATE, TOKENIZER, name)
    tools = (Tool("weather", "", WEATHER), Tool("clock"))
    calls = tool_format.grammar(tools, ToolChoice("required"))
    grammar = either(calls, json_schema(WEATHER))
    matcher = Grammars(TOKENIZER, TOKENIZER.vocab_size).matcher(grammar)
    assert all(matcher.advance(token_id) for token_id in TOKENIZER.encode('{"city": "Rome", "days": 1}'))
    assert matcher.is_complete
    assert not matcher.advance(TOKENIZER.encode("x")[0])


def test_equal_choices_are_the_same_shape() -> None:
    found = parse_constraint([Structure("choice", "choice", ["a", "b", "a"])])
    assert found
    assert found == parse_constraint([Structure("choice", "choice", ["a", "b"])])
    assert found.grammar == Grammar("lark", 'start: "a" | "b"')


def test_nothing_asked_for_is_nothing() -> None:
    assert parse_constraint([]) is None
    with pytest.raises(RequestError, match="regex and grammar cannot be given together"):
        parse_constraint([Structure("regex", "regex", "a"), Structure("grammar", "grammar", "b")])
