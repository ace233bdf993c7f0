"""Answers that are cut can be closed, whatever pattern their strings follow."""

import json
import re

import pytest
from tests.engine.tiny import TOKENIZER, VOCAB_SIZE

from hotloop.core.grammar import json_schema
from hotloop.engine.grammar.ending import find_hints
from hotloop.engine.grammar.matcher import Grammars

GRAMMARS = Grammars(TOKENIZER, VOCAB_SIZE)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^.*\.(png|jpg)$",
        r"^s3://.+/.+\.parquet$",
        r"^\s*def \w+\(.*\):\s*$",
        r"end$",
        r"^SELECT .* FROM .*;$",
        r"^[A-Z]{2}-\d{4}$",
        r"^(ab|cd)+!$",
    ],
)
def test_an_ending_spells_the_words_of_a_pattern(pattern: str):
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "p": {"type": "string", "pattern": pattern}}}
    for begun in ("", '{"a": "x', '{"a": "x", "p": "'):
        matcher = GRAMMARS.matcher(json_schema({**schema, "required": ["a", "p"]}))
        assert all(matcher.advance(token_id) for token_id in TOKENIZER.encode(begun))
        ending = matcher.ending(200)
        assert ending is not None
        assert re.search(pattern, json.loads(begun + TOKENIZER.decode(ending))["p"])


def test_hints_are_the_words_of_patterns():
    schema = {"properties": {"a": {"pattern": r"^ab?c+[xy]de{2}f\.(png|jp\\g)$"}, "b": {"pattern": "x"}}}
    assert find_hints(json_schema(schema).text) == ("a", "c", "de", "f.", "png", "jp\\\\g", "x")
    assert find_hints(r'start: "pattern":"\q"') == ()
