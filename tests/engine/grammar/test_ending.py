"""Answers that are cut can be closed, whatever pattern their strings follow."""

import json
import re

import pytest
from tests.engine.tiny import TOKENIZER, VOCAB_SIZE

from hotloop.core.grammar import json_schema
from hotloop.engine.grammar.ending import NO_HINTS, find_hints
from hotloop.engine.grammar.matcher import Grammars
from hotloop.engine.grammar.sample import make_sample

FOLLOWED = [
    ({"pattern": r"^(?:\S+\s+){3,49}\S+$"}, "one two three four five"),
    ({"pattern": r"^[^@]+@[^@]+\.[a-z]{2,}$"}, "joe@mail.example.com"),
    ({"pattern": r"^<[a-z]+>.*</[a-z]+>$"}, "<b>text</b>"),
    ({"pattern": r"^.*[0-9]{5}.*[A-Z]{5}.*$"}, "ab12345cdABCDEfg"),
    ({"pattern": r'^".*"$'}, '"quoted"'),
    ({"pattern": r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"}, "aGVsbG8gd29ybGQ="),
    ({"pattern": r"^(GET|POST) /[a-z/]* HTTP/1\.[01]$"}, "POST /a/b HTTP/1.1"),
    ({"format": "date-time"}, "2024-01-02T03:04:05Z"),
    ({"format": "email"}, "joe.doe@mail.example.org"),
    ({"format": "uri"}, "https://a.example/b?c=d#e"),
    ({"format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000"),
    ({"format": "duration"}, "P1DT2H30M"),
    ({"format": "ipv4"}, "192.168.10.25"),
]

GRAMMARS = Grammars(TOKENIZER, VOCAB_SIZE)


@pytest.mark.sampled(3)
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
    hints = find_hints(json_schema(schema).text)
    assert hints.words == ("a", "c", "de", "f.", "png", "jp\\\\g", "x")
    assert hints.samples == ("acxdeef.png", "x")
    assert find_hints(r'start: "pattern":"\q"') == NO_HINTS


@pytest.mark.parametrize(("schema", "text"), FOLLOWED, ids=str)
@pytest.mark.sampled(4)
def test_a_string_is_closed_wherever_it_is_cut(schema: dict[str, str], text: str):
    whole = {"type": "object", "properties": {"a": {"type": "string", **schema}, "b": {"type": "null"}}}
    grammar = json_schema({**whole, "required": ["a", "b"]})
    written = json.dumps({"a": text, "b": None})
    for end in range(len('{"a": "'), len(written)):
        matcher = GRAMMARS.matcher(grammar)
        token_ids = TOKENIZER.encode(written[:end])
        assert all(map(matcher.advance, token_ids))
        ending = matcher.ending(120)
        assert ending is not None, written[:end]
        assert all(map(matcher.advance, ending))
        assert matcher.is_complete
        closed = json.loads(TOKENIZER.decode([*token_ids, *ending]))
        assert re.search(schema.get("pattern", ""), closed["a"])


@pytest.mark.parametrize(
    ("pattern", "sample"),
    [
        (r"^[^a0]x{2,}(?:ab|c)?\d\S.$", "Axx0aa"),
        (r"(ab|cd){2}[é-ü]", "ababé"),
        (r"((a{60}){60}){60}", "a" * 64),
        (r"[^\W\d]", "a"),
    ],
)
def test_a_sample_follows_its_pattern(pattern: str, sample: str):
    assert make_sample(pattern) == sample


@pytest.mark.parametrize("pattern", ["(", "(" * 400, r"\p{L}", "(?=a)b", "[[a]", "a{99999999999999}"])
def test_what_cannot_be_read_has_no_sample(pattern: str):
    with pytest.raises(ValueError, match=r"."):
        make_sample(pattern)
