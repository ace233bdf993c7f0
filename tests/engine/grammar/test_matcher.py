"""Grammars over tokens: what may come, what must come, and back again exactly."""

import json
import threading
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.engine.tiny import EOS_ID, TOKENIZER, VOCAB_SIZE
from tests.models.tiny import tiny_tokenizer
from tests.properties import examples
from tokenizers import Tokenizer as InnerTokenizer
from tokenizers import decoders, models, normalizers

from hotloop.backends.sampler import apply_mask, is_allowed
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar, json_schema
from hotloop.engine.grammar.matcher import Grammars, Matcher, masks_of
from hotloop.models.tokenizer import Tokenizer

WORDS = Tokenizer(tiny_tokenizer())
BYTES = Grammars(TOKENIZER, VOCAB_SIZE)
WORDY = Grammars(WORDS, WORDS.vocab_size + 50)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 7},
        "role": {"enum": ["quick brown fox", "quick lazy dog"]},
        "tags": {
            "type": "array",
            "items": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        },
    },
    "required": ["name", "age", "role", "tags"],
    "additionalProperties": False,
}
CALL = 'start: "<tool_call>\\n" obj "\\n</tool_call>"\nobj: %json ' + json_schema(PERSON).text
CODER = 'start: "<function=f>\\n" value "</function>"\nvalue[suffix="\\n</parameter>\\n"]: /(?s:.*)/'
GRAMMARS = [
    json_schema(PERSON),
    json_schema({"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 3}]}}),
    Grammar("lark", CALL),
    Grammar("lark", 'start: "a" <|im_start|> /[a-z ]*/ ("b" | <|im_start|>)'),
    Grammar("regex", "(quick|brown)+( fox)?"),
]


def allowed_ids(matcher: Matcher) -> list[int]:
    return np.flatnonzero(np.unpackbits(matcher.mask(), bitorder="little")).tolist()


def take(matcher: Matcher, token_ids: list[int]) -> None:
    for token_id in token_ids:
        assert matcher.advance(token_id)


def written(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    return tokenizer.decode([i for i in token_ids if i not in tokenizer.eos_ids], keep_special=True)


def snapshot(matcher: Matcher) -> tuple[bytes, list[int], bool]:
    return matcher.mask().tobytes(), matcher.forced(), matcher.is_complete


def random_walk(data: st.DataObject, matcher: Matcher, max_tokens: int) -> list[int]:
    path: list[int] = []
    while len(path) < max_tokens:
        ids = allowed_ids(matcher)
        if not ids:
            break
        path.append(data.draw(st.sampled_from(ids)))
        assert matcher.allows(path[-1])
        assert matcher.advance(path[-1])
        if path[-1] in WORDS.eos_ids:
            break
    return path


@settings(max_examples=examples(60))
@given(st.data(), st.sampled_from(GRAMMARS))
def test_what_is_rolled_back_never_was(data: st.DataObject, grammar: Grammar):
    matcher, other = WORDY.matcher(grammar), WORDY.matcher(grammar)
    path = random_walk(data, matcher, 12)
    cut = data.draw(st.integers(0, len(path)))
    take(other, path[:cut])
    here = snapshot(other)
    matcher.rollback(len(path) - cut)
    assert snapshot(matcher) == here
    detour = random_walk(data, matcher, 6)
    matcher.rollback(len(detour))
    assert snapshot(matcher) == here
    take(matcher, path[cut:])
    assert matcher.error is None


def somewhere(data: st.DataObject, grammar: Grammar) -> Matcher:
    """A matcher some tokens into its grammar."""
    matcher = WORDY.matcher(grammar)
    random_walk(data, matcher, data.draw(st.integers(0, 12)))
    return matcher


@settings(max_examples=examples(60))
@given(st.data(), st.sampled_from(GRAMMARS))
def test_forced_tokens_are_the_only_ones_the_mask_allows(data: st.DataObject, grammar: Grammar):
    matcher = somewhere(data, grammar)
    run = matcher.forced()
    for i, token_id in enumerate(run):
        assert matcher.forced() == run[i:]
        assert allowed_ids(matcher) == [token_id]
        assert matcher.advance(token_id)
    assert matcher.is_complete or allowed_ids(matcher)


@settings(max_examples=examples(40))
@given(st.data(), st.sampled_from(GRAMMARS))
def test_a_single_token_and_the_mask_agree(data: st.DataObject, grammar: Grammar):
    matcher = somewhere(data, grammar)
    mask = matcher.mask()
    for token_id in range(WORDS.vocab_size + 50):
        assert matcher.allows(token_id) == is_allowed(mask, token_id)
    assert not matcher.allows(-1)
    assert not matcher.allows(10**6)


@settings(max_examples=examples(40))
@given(st.data(), st.sampled_from([g for g in GRAMMARS if g.kind != "lark"]))
def test_an_ending_completes_what_was_begun(data: st.DataObject, grammar: Grammar):
    matcher = BYTES.matcher(grammar)
    random_walk(data, matcher, data.draw(st.integers(0, 40)))
    here = snapshot(matcher)
    ending = matcher.ending(400)
    assert snapshot(matcher) == here
    assert ending is not None
    take(matcher, ending)
    assert matcher.is_complete


BEGUN = [
    "",
    '{"na',
    '{"name": "Jo',
    '{"name": "Jo\\',
    '{"name": "\\u00',
    '{"name": "", "age": 1',
    '{"name": "}", "age": 8, "role": "quick l',
    '{"name": "", "age": 9, "role": "quick lazy dog", "tags": [{"x": -',
]


@pytest.mark.parametrize("begun", BEGUN)
def test_an_ending_of_json_is_json(begun: str):
    matcher = BYTES.matcher(json_schema(PERSON))
    take(matcher, TOKENIZER.encode(begun))
    person = json.loads(begun + TOKENIZER.decode(matcher.ending(300)))
    assert list(person) == ["name", "age", "role", "tags"]
    assert person["age"] >= 7


def test_an_ending_closes_tags_too():
    matcher = BYTES.matcher(Grammar("lark", CODER))
    take(matcher, TOKENIZER.encode('<function=f>\nsay "hello'))
    assert TOKENIZER.decode(matcher.ending(100)) == "\n</parameter>\n</function>"
    matcher = BYTES.matcher(Grammar("lark", CALL))
    take(matcher, TOKENIZER.encode('<tool_call>\n{"name": "x'))
    assert TOKENIZER.decode(matcher.ending(300)).endswith("}\n</tool_call>")


def test_an_ending_that_does_not_fit_is_none():
    assert BYTES.matcher(json_schema(PERSON)).ending(5) is None
    assert BYTES.matcher(json_schema({"type": "string", "minLength": 1000})).ending(50) is None


def test_what_the_schema_knows_is_forced_up_to_the_end():
    matcher = BYTES.matcher(json_schema(PERSON))
    assert TOKENIZER.decode(matcher.forced()) == '{"name": "'
    take(matcher, matcher.forced())
    take(matcher, TOKENIZER.encode('J"'))
    assert TOKENIZER.decode(matcher.forced()) == ', "age": '
    whole = BYTES.matcher(json_schema({"const": {"a": [1, "x"]}}))
    assert TOKENIZER.decode(whole.forced()) == '{"a": [1, "x"]}'
    assert whole.forced()[-1] == EOS_ID
    take(whole, whole.forced())
    assert whole.is_complete
    assert allowed_ids(whole) == whole.forced() == []


def test_the_end_can_be_taken_back():
    matcher = BYTES.matcher(Grammar("regex", "a+"))
    take(matcher, TOKENIZER.encode("aa"))
    here = snapshot(matcher)
    take(matcher, [EOS_ID])
    assert not matcher.advance(EOS_ID)
    matcher.rollback(1)
    assert snapshot(matcher) == here
    matcher.rollback(2)
    assert not matcher.is_complete


def test_a_refused_token_changes_nothing():
    matcher = BYTES.matcher(json_schema(PERSON))
    here = snapshot(matcher)
    for token_id in (EOS_ID, *TOKENIZER.encode("x"), 10**6):
        assert not matcher.advance(token_id)
    assert snapshot(matcher) == here
    assert matcher.error is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", ["<|im_end|>", "a <|im_start|> b", "e\u0301", "\0", "日本"])
def test_words_that_look_special_are_spelled(text: str):
    for grammars, tokenizer in ((BYTES, TOKENIZER), (WORDY, WORDS)):
        *run, end = grammars.matcher(json_schema({"const": text})).forced()
        assert end in tokenizer.eos_ids
        assert not any(tokenizer.is_special(token_id) for token_id in run)
        assert json.loads(tokenizer.decode(run)) == text


def test_a_vocabulary_that_begins_texts_with_a_space_is_forced_without_one():
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *'{"nam:', '{"', "na", '":']
    merges = [("{", '"'), ("n", "a"), ('"', ":")]
    inner = InnerTokenizer(models.BPE(dict(zip(pieces, range(300), strict=False)), merges, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    inner.add_special_tokens(pieces[:3])
    tokenizer = Tokenizer(inner, eos_ids=[2])
    schema = {
        "type": "object",
        "properties": {"na": {"type": "null"}},
        "required": ["na"],
        "additionalProperties": False,
    }
    matcher = Grammars(tokenizer, tokenizer.vocab_size).matcher(json_schema(schema))
    assert [tokenizer.token_text(token_id) for token_id in matcher.forced()[:3]] == ['{"', "na", '":']


def test_rows_beyond_the_vocabulary_are_never_allowed():
    matcher = WORDY.matcher(Grammar("regex", "(?s:.*)"))
    assert max(allowed_ids(matcher)) < WORDS.vocab_size
    row = np.zeros(WORDS.vocab_size + 50, np.float32)
    apply_mask(row, matcher.mask())
    assert np.flatnonzero(row > -1).tolist() == allowed_ids(matcher)


def test_a_mask_only_ever_lowers_logits():
    row = np.array([-5, 3, 7.5, -np.inf, 2, 2, 2, 2, 2, 9], np.float32)
    apply_mask(row, np.array([0b00001011, 0b10], np.uint8))
    assert row.tolist() == [-5, 3, -np.inf, -np.inf, *[-np.inf] * 5, 9]


def test_a_shape_is_compiled_once_and_the_oldest_is_let_go():
    grammars = Grammars(TOKENIZER, VOCAB_SIZE, max_bytes=150 << 10)  # two small ones
    first, second, third = (Grammar("lark", f'start: "{word}"') for word in "abc")
    for grammar in (first, first, second, first, third, first, second):
        take(grammars.matcher(grammar), TOKENIZER.encode(grammar.text[-2]))
    assert (grammars.num_hits, grammars.num_misses) == (3, 4)
    grammars.prepare(Grammar("lark", f'start: "{"x" * 1000}"'))  # takes as much as both
    grammars.matcher(second)
    assert grammars.num_misses == 6


@pytest.mark.parametrize("grammars", [BYTES, WORDY], ids=["bytes", "words"])
def test_a_matcher_goes_on_from_what_is_begun(grammars: Grammars):
    """As one that has taken it, but for what can be rolled back; the grammar is compiled once."""
    tokenizer = TOKENIZER if grammars is BYTES else WORDS
    whole = Grammar("lark", 'start: "quick" " brown" (" fox" | " dog")')
    grammars.matcher(whole)
    num_misses = grammars.num_misses
    begun = grammars.matcher(replace(whole, begun="quick br"))
    assert grammars.num_misses == num_misses
    assert written(tokenizer, begun.forced()).startswith("own")
    assert grammars.matcher(replace(whole, begun="quick brown fox")).is_complete
    for wrong in ("slow", "quick brown fox jumps"):
        with pytest.raises(RequestError, match="does not match its grammar"):
            grammars.matcher(replace(whole, begun=wrong))


def test_threads_share_a_compilation():
    grammars = Grammars(TOKENIZER, VOCAB_SIZE)
    matchers: list[Matcher] = []
    threads = [
        threading.Thread(target=lambda: matchers.append(grammars.matcher(json_schema(PERSON)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (grammars.num_hits, grammars.num_misses) == (7, 1)
    assert len({tuple(matcher.forced()) for matcher in matchers}) == 1


REFUSED: list[tuple[Any, str]] = [
    ({"not": {}}, "no value at all"),
    ({"not": {"pattern": "x"}}, "'not'"),
    ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
    ({"if": {"pattern": "x"}, "then": {"maxLength": 3}}, "'if'"),
    ({"oneOf": [{"type": "string"}, {"pattern": "x"}]}, "'oneOf'"),
    ({"$ref": "#/$defs/none"}, "'$ref'"),
    ({"$ref": "http://127.0.0.1:9/remote.json"}, "'$ref'"),
    ({"$ref": "#"}, "no answer at all"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"enum": []}, "no value at all"),
    ({"type": "object", "properties": {"a": {}}, "minProperties": 3}, "'minProperties'"),
    ({"type": "object", "minProperties": 2}, "'minProperties'"),  # {"a": 1, "a": 1} has one
    ({"type": "object", "properties": {"a": {}}, "required": ["a"], "minProperties": 3}, "'minProperties'"),
    ({"patternProperties": {"^a": {}}, "additionalProperties": False, "minProperties": 2}, "'minProperties'"),
    ({"type": "object", "not": {"maxProperties": 1}}, "'not'"),
    ({"patternProperties": {"a": {}, "b": {}}}, "'patternProperties'"),
    ({"const": "\ud800"}, "schema"),
    ({"enum": ["x" * 1000] * 300}, "bytes"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "too complex"),
]


@pytest.mark.parametrize(("schema", "words"), REFUSED)
def test_a_schema_that_cannot_be_kept_to_is_refused_by_name(schema: Any, words: str):
    with pytest.raises(RequestError) as raised:
        BYTES.matcher(json_schema(schema))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.param == "grammar"


@pytest.mark.parametrize(
    "text",
    ["", "start: (", "start: nobody", "start: <[99999]>", "start: x\nx[max_tokens=3]: /.*/", 'start: "a"{1000000}'],
)
def test_a_wrong_lark_grammar_is_refused(text: str):
    with pytest.raises(RequestError) as raised:
        BYTES.matcher(Grammar("lark", text))
    assert "\n" not in str(raised.value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 9_999_991},
        {"allOf": [{"type": "string", "pattern": f".*{chr(97 + i)}.*{chr(98 + i)}.*"} for i in range(24)]},
    ],
)
def test_a_schema_that_would_never_be_done_is_given_up(schema: Any):
    with pytest.raises(RequestError, match="too complex"):
        BYTES.matcher(json_schema(schema))


HOSTILE: list[Any] = [
    {"type": "array", "minItems": 10**6},
    {"type": "string", "maxLength": 10**9},
    {"type": "string", "pattern": "^(a+)+$"},
    {"type": "string", "pattern": "((a{1,100}){1,100}){1,100}"},
    {"enum": [f"value {i}" for i in range(3000)]},
    {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
    {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 9}, "b": {"type": ["string", "null"]}}, "$ref": "#/$defs/a"},
]


@pytest.mark.parametrize("schema", HOSTILE)
def test_a_schema_that_only_looks_large_works(schema: Any):
    matcher = BYTES.matcher(json_schema(schema))
    for _ in range(20):
        ids = allowed_ids(matcher)
        if not ids:
            break
        take(matcher, ids[-1:])
    assert matcher.error is None


def test_a_model_without_an_end_cannot_be_bound():
    inner = tiny_tokenizer()
    endless = Tokenizer(type(inner).from_str(inner.to_str().replace("<|im_end|>", "<|im_less|>")))
    assert not endless.eos_ids
    with pytest.raises(RequestError, match="no end-of-sequence token"):
        Grammars(endless, endless.vocab_size).matcher(Grammar("regex", "a"))


def test_the_masks_of_many_are_those_of_each() -> None:
    """Of grammars that leave a choice, that force something, that have ended, and that have failed."""
    grammars = Grammars(TOKENIZER, VOCAB_SIZE)
    texts = ["[a-z]+", "abc", "[ab]?", "(yes|no)", "[0-9]{3}"]
    matchers = [grammars.matcher(Grammar("regex", text)) for text in 4 * texts]
    matchers[7].advance(TOKENIZER.encode("a")[0])
    matchers[2].advance(EOS_ID)
    matchers[15].error = "too many states"
    wanted = [matcher.mask().tolist() for matcher in matchers]
    assert [mask.tolist() for mask in masks_of(matchers)] == wanted
    assert [mask.tolist() for mask in masks_of(matchers[:3])] == wanted[:3]
    assert masks_of([]) == []
