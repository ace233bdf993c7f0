"""Reasoning is free until it is closed, then the grammar holds; whatever was asked or rolled back in between."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat.speaking import byte_tokenizer
from tests.engine.tiny import make_request
from tests.properties import examples

from hotloop.backends.sampler import is_allowed
from hotloop.core.grammar import Grammar, json_schema
from hotloop.core.reasoning import Reasoning
from hotloop.engine.grammar.matcher import Grammars, Matcher, masks_of
from hotloop.engine.grammar.reasoning import ReasoningCounter, ReasoningMatcher, open_matcher
from hotloop.models.tokenizer import Tokenizer

PLAIN = byte_tokenizer()
SPECIAL = byte_tokenizer("<think>", "</think>")
GRAMMARS = {tokenizer: Grammars(tokenizer, tokenizer.vocab_size) for tokenizer in (PLAIN, SPECIAL)}
OBJECT = json_schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
PROSE = Grammar("lark", "start: /(?s:.*)/")
[EOS_ID] = PLAIN.eos_ids


def limits(tokenizer: Tokenizer, *, is_open: bool = False, max_tokens: int | None = None) -> Reasoning:
    opening, closing, gap = (tuple(tokenizer.encode(text)) for text in ("<think>", "</think>", "\n\n"))
    ending = tuple(tokenizer.encode("\n</think>\n\n"))
    return Reasoning(opening, closing, ending, gap, is_open, max_tokens)


def make(grammar: Grammar | None, tokenizer: Tokenizer = PLAIN, **limited: int | bool | None) -> Matcher:
    reasoning = limits(tokenizer, **limited)  # type: ignore[arg-type]
    grammars = GRAMMARS[tokenizer]
    return ReasoningMatcher(reasoning, grammars.compiler, grammars.matcher(grammar) if grammar else None)


def say(matcher: Matcher, text: str, tokenizer: Tokenizer = PLAIN) -> str:
    """The text as far as it may be said; what is forced is said as well."""
    said: list[int] = []
    for token_id in tokenizer.encode(text):
        while (forced := matcher.forced()) and forced[0] != token_id:
            assert matcher.advance(forced[0])
            said.append(forced[0])
        if not matcher.advance(token_id):
            break
        said.append(token_id)
    return tokenizer.decode(said, keep_special=True)


@pytest.mark.parametrize("tokenizer", [PLAIN, SPECIAL])
def test_the_grammar_begins_where_the_reasoning_ends(tokenizer: Tokenizer) -> None:
    whole = '<think>not {"n" JSON</think>\n\n{"n": 1}'
    assert say(make(OBJECT, tokenizer), whole, tokenizer) == whole
    opened = whole.removeprefix("<think>")
    assert say(make(OBJECT, tokenizer, is_open=True), opened, tokenizer) == opened
    assert say(make(OBJECT, tokenizer), '{"n": 1}', tokenizer) == '{"n": 1}'
    assert say(make(OBJECT, tokenizer), "Hello", tokenizer) == ""
    cut = say(make(OBJECT, tokenizer, is_open=True), 'a</think>\n\n{"m": 1}', tokenizer)
    assert cut == 'a</think>\n\n{"n": 1}'[: len(cut)]


def test_an_opening_that_is_none_is_the_answer_s_own() -> None:
    matcher = make(PROSE)
    assert say(matcher, "<thin air>") == "<thin air>"
    assert matcher.is_complete
    assert say(make(OBJECT), "<thin air>") == "<think> air>"  # no object begins so: the opening was forced


def test_the_gap_is_forced_and_what_the_grammar_forces_behind_it() -> None:
    matcher = make(OBJECT, is_open=True)
    assert matcher.forced() == []
    say(matcher, "a</think>")
    assert PLAIN.decode(matcher.forced()).startswith('\n\n{"n": ')


@pytest.mark.parametrize("grammar", [None, OBJECT])
def test_a_budget_forces_the_closing(grammar: Grammar | None) -> None:
    matcher = make(grammar, is_open=True, max_tokens=3)
    say(matcher, "abc")
    assert PLAIN.decode(matcher.forced()).startswith("\n</think>\n\n" + ('{"n"' if grammar else ""))
    assert not matcher.allows(PLAIN.encode("d")[0])
    assert PLAIN.decode(make(grammar, is_open=True, max_tokens=0).forced()).startswith("\n</think>\n\n")
    at_once = make(grammar, max_tokens=0)
    assert PLAIN.decode(at_once.forced()).startswith('{"n"' if grammar else "")


def test_reasoning_does_not_end_an_answer_that_must_follow() -> None:
    assert not make(OBJECT, is_open=True).allows(EOS_ID)
    assert make(None, is_open=True, max_tokens=9).allows(EOS_ID)


def test_an_ending_closes_the_reasoning_and_completes_the_answer() -> None:
    matcher = make(OBJECT, is_open=True)
    say(matcher, "abc</th")
    ending = matcher.ending(50)
    assert ending is not None
    assert PLAIN.decode(ending).startswith('ink>\n\n{"n"')
    assert matcher.closes(ending[0])
    assert matcher.ending(5) is None
    for token_id in ending:
        assert matcher.advance(token_id)
    assert matcher.is_complete


def test_who_is_guided_by_what() -> None:
    grammars = GRAMMARS[PLAIN]
    assert open_matcher(make_request([1]), grammars) is None
    assert open_matcher(make_request([1], reasoning=limits(PLAIN)), grammars) is None
    assert open_matcher(make_request([1], reasoning=limits(PLAIN, max_tokens=0)), grammars) is None
    limited = make_request([1], reasoning=limits(PLAIN, max_tokens=5))
    assert isinstance(open_matcher(limited, grammars), ReasoningMatcher)
    assert limited.is_guided
    assert not make_request([1], reasoning=limits(PLAIN)).is_guided
    assert isinstance(
        open_matcher(make_request([1], grammar=OBJECT, reasoning=limits(PLAIN)), grammars), ReasoningMatcher
    )


TEXTS = ("<think>a</think>\n\n{", "<thi", "</think>", "ab", '{"n": 12}', "\n", "<think>")


@settings(max_examples=examples(150))
@given(
    st.sampled_from([None, OBJECT, PROSE]),
    st.booleans(),
    st.sampled_from([None, 0, 3, 20]),
    st.lists(st.sampled_from(TEXTS), max_size=5),
    st.integers(0, 1000),
)
def test_questions_and_rollbacks_change_nothing(
    grammar: Grammar | None, is_open: bool, max_tokens: int | None, texts: list[str], seed: int
) -> None:
    rng = random.Random(seed)
    asked, plain = (make(grammar, is_open=is_open, max_tokens=max_tokens) for _ in range(2))
    for token_id in PLAIN.encode("".join(texts)):
        forced = asked.forced()
        mask = masks_of([asked])[0]
        assert is_allowed(mask, token_id) == asked.allows(token_id)
        for tried in (token_id, *forced[:1], rng.randrange(256)):
            if asked.advance(tried):
                asked.mask()
                num_more = sum(asked.advance(each) for each in PLAIN.encode(rng.choice(TEXTS)))
                asked.rollback(num_more)
                asked.rollback(1)
        assert asked.forced() == forced
        assert asked.is_complete == plain.is_complete
        assert asked.advance(token_id) == plain.advance(token_id)
        if forced:  # so that the walk goes on
            assert asked.forced() == plain.forced()
            if asked.forced():
                next_id = asked.forced()[0]
                assert asked.advance(next_id) == plain.advance(next_id) is True
        if plain.has_ended:
            break
    assert asked.mask().tolist() == plain.mask().tolist()


@pytest.mark.parametrize(
    ("text", "is_open", "num_reasoning"),
    [
        ("<think>ab</think>cd", False, 1 + 2 + 8),
        ("ab</think>cd", True, 2 + 8),
        ("so <think> is a mark\n<think>a</think>b", False, 1 + 1 + 8),
        ("ab", False, 0),
        ("ab", True, 2),
    ],
)
def test_reasoning_tokens_are_counted(text: str, is_open: bool, num_reasoning: int) -> None:
    counter = ReasoningCounter(limits(PLAIN, is_open=is_open), PLAIN)
    assert sum(counter.push(token_id) for token_id in PLAIN.encode(text)) == num_reasoning


def test_special_marks_are_counted_everywhere_and_never_spelt() -> None:
    counter = ReasoningCounter(limits(SPECIAL), SPECIAL)
    spelt = [token_id for char in "</think>" for token_id in SPECIAL.encode(char)]
    token_ids = [*SPECIAL.encode("so <think>a"), *spelt, *SPECIAL.encode("</think>b")]
    assert sum(map(counter.push, token_ids)) == 1 + 1 + 8 + 1
