"""Answers under a grammar: always of its language, and the same whether or not steps were saved on the way."""

import json
import re
from functools import cache
from typing import Any

import jsonschema
import pytest
from llguidance import LLParserLimits
from tests.engine.drafting.test_speculation import Oracle
from tests.engine.tiny import (
    EOS_ID,
    PROMPTS,
    TOKENIZER,
    Listener,
    make_engine,
    make_request,
    until_idle,
)

from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar, json_schema
from hotloop.core.request import FinishReason, SamplingParams
from hotloop.engine.engine import Completion, Engine
from hotloop.engine.grammar import trial
from hotloop.engine.grammar.compiler import Compiler

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit", "kelvin"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "bb"]}, "maxItems": 3},
    },
    "required": ["city", "unit", "days", "tags"],
    "additionalProperties": False,
}
GRAMMAR = json_schema(SCHEMA)
SAMPLINGS = [
    SamplingParams(temperature=0, max_tokens=300),
    SamplingParams(temperature=1, seed=3, max_tokens=300),
    SamplingParams(temperature=2, seed=4, top_k=40, frequency_penalty=1.0, max_tokens=300),
]


def answer(engine: Engine, sampling: SamplingParams, grammar: Grammar = GRAMMAR, prompt: int = 0) -> Completion:
    return engine.generate(PROMPTS[prompt], sampling, grammar=grammar)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "penalised"])
def test_forcing_saves_steps_and_changes_no_token(sampling: SamplingParams) -> None:
    with make_engine(forced_tokens=True, drafts=False) as quick, make_engine(forced_tokens=False, drafts=False) as slow:
        forced, plain = answer(quick, sampling), answer(slow, sampling)
        until_idle(quick)
    assert forced.token_ids == plain.token_ids
    assert forced.text == plain.text
    jsonschema.validate(json.loads(forced.text), SCHEMA)
    assert forced.finish_reason == plain.finish_reason == FinishReason.STOP
    assert plain.usage.num_forced == 0
    assert plain.usage.num_steps == plain.usage.num_output
    assert forced.usage.num_forced > 20
    assert forced.usage.num_steps == forced.usage.num_sampled


@cache
def plain_answers(number: int) -> dict[tuple[int, ...], Completion]:
    """Under one of the samplings."""
    with make_engine(forced_tokens=False, drafts=False) as slow:
        return {tuple(prompt): slow.generate(prompt, SAMPLINGS[number], grammar=GRAMMAR) for prompt in PROMPTS}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("forced_tokens", [True, False])
@pytest.mark.parametrize("error_rate", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("number", range(len(SAMPLINGS)), ids=["greedy", "sampled", "penalised"])
def test_drafts_and_grammar_together_change_no_token(number: int, error_rate: float, forced_tokens: bool) -> None:
    sampling, plain = SAMPLINGS[number], plain_answers(number)
    oracle = Oracle({prompt: done.token_ids for prompt, done in plain.items()}, error_rate)
    requests = [make_request(prompt, f"r{i}", sampling=sampling, grammar=GRAMMAR) for i, prompt in enumerate(PROMPTS)]
    listener = Listener()
    with make_engine(drafter=oracle, num_blocks=120, forced_tokens=forced_tokens) as engine:
        engine.submit(requests, listener)
        listener.wait(*(request.id for request in requests))
        until_idle(engine)
    for request in requests:
        done = plain[tuple(request.prompt_ids)]
        last = listener.last(request.id)
        assert tuple(listener.token_ids(request.id)) == done.token_ids
        assert last.usage.num_output == done.usage.num_output
        assert last.finish_reason == FinishReason.STOP
        jsonschema.validate(json.loads("".join(event.text for event in listener.events[request.id])), SCHEMA)


def test_logprobs_are_given_for_forced_tokens_too() -> None:
    with make_engine() as engine:
        done = answer(engine, SamplingParams(temperature=0, max_tokens=300, logprobs=1))
        without = answer(engine, SamplingParams(temperature=0, max_tokens=300))
    assert done.token_ids == without.token_ids
    assert [logprob.token_id for logprob in done.logprobs] == list(done.token_ids)
    assert done.usage.num_forced == 0 < without.usage.num_forced


def test_a_forced_answer_takes_one_step() -> None:
    with make_engine() as engine:
        done = answer(engine, SamplingParams(max_tokens=50), Grammar("lark", 'start: "yes, of course"'))
    assert (done.text, done.finish_reason) == ("yes, of course", FinishReason.STOP)
    assert done.usage.num_steps == 1
    assert done.usage.num_output == len("yes, of course") + 1


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 14])
def test_a_forced_answer_is_cut_where_the_room_ends(max_tokens: int) -> None:
    with make_engine() as engine:
        done = answer(engine, SamplingParams(max_tokens=max_tokens), Grammar("lark", 'start: "yes, of course"'))
    assert done.text == "yes, of course"[:max_tokens]
    assert (done.finish_reason, done.usage.num_output) == (FinishReason.LENGTH, max_tokens)


TEXT = json_schema(
    {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["text", "n"]}
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shortcuts", [True, False])
@pytest.mark.parametrize("max_tokens", [30, 70, 90, 130])
def test_an_answer_is_completed_in_the_room_there_is(max_tokens: int, shortcuts: bool) -> None:
    with make_engine() as engine:
        sampling = SamplingParams(temperature=1, seed=1, max_tokens=max_tokens, shortcuts=shortcuts)
        done = answer(engine, sampling, TEXT)
        plain = answer(engine, SamplingParams(temperature=1, seed=1, max_tokens=max_tokens), TEXT)
    assert done.finish_reason == FinishReason.LENGTH
    assert max_tokens - 2 - max_tokens // 32 <= done.usage.num_output <= max_tokens, "nothing is cut before it must be"
    assert json.loads(done.text).keys() == {"text", "n"}
    assert done.token_ids == plain.token_ids


def test_what_fits_is_not_cut() -> None:
    with make_engine() as engine:
        whole = answer(engine, SamplingParams(temperature=1, seed=1, max_tokens=300))
        num_tokens = len(whole.token_ids)
        for max_tokens in range(num_tokens + num_tokens // 32, num_tokens + 20):
            done = answer(engine, SamplingParams(temperature=1, seed=1, max_tokens=max_tokens))
            assert (done.token_ids, done.finish_reason) == (whole.token_ids, FinishReason.STOP)
        cut = answer(engine, SamplingParams(temperature=1, seed=1, max_tokens=num_tokens - 1))
    assert cut.finish_reason == FinishReason.LENGTH
    jsonschema.validate(json.loads(cut.text), SCHEMA)


def test_what_may_end_anywhere_uses_all_its_room() -> None:
    with make_engine() as engine:
        for max_tokens in (10, 100, 400):
            sampling = SamplingParams(temperature=1, seed=1, max_tokens=max_tokens, logit_bias={EOS_ID: -100})
            done = answer(engine, sampling, Grammar("regex", "[a-z]*"))
            assert (done.finish_reason, done.usage.num_output) == (FinishReason.LENGTH, max_tokens)


def test_the_model_chooses_however_little_room_there_is() -> None:
    grammar = Grammar("lark", 'start: "affirmative" | "negative" | "perhaps"')
    with make_engine() as engine:
        for max_tokens in (12, 16, 200):
            found = {
                answer(engine, SamplingParams(temperature=2, seed=seed, max_tokens=max_tokens), grammar).text
                for seed in range(40)
            }
            assert found == {"affirmative", "negative", "perhaps"}


def test_a_part_there_is_no_room_for_is_not_begun() -> None:
    grammar = Grammar("lark", 'start: item ("; " item)*\nitem: /[a-c]{6}/')
    with make_engine() as engine:
        for max_tokens in range(7, 40):
            sampling = SamplingParams(temperature=1, seed=max_tokens, max_tokens=max_tokens, logit_bias={0: -100})
            assert re.fullmatch("[a-c]{6}(; [a-c]{6})*", answer(engine, sampling, grammar).text)


def test_a_part_whose_choice_does_not_fit_ends_the_answer() -> None:
    grammar = Grammar("lark", 'start: item ("; " item)*\nitem: "x: " ("ab" | "much longer than that")')
    with make_engine() as engine:
        for max_tokens in range(6, 60):
            sampling = SamplingParams(temperature=1, seed=max_tokens, max_tokens=max_tokens, logit_bias={EOS_ID: -100})
            done = answer(engine, sampling, grammar)
            assert re.fullmatch("(x: (ab|much longer than that)(; |$))+(x: )?", done.text) or not done.text.count(";")
            assert done.finish_reason == FinishReason.LENGTH


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.long
def test_an_answer_whose_grammar_fails_is_closed(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "LIMITS", LLParserLimits(max_lexer_states=1000, verbose_errors=False))
    words = {"type": "string", "pattern": r"^(?:\S+\s+){0,49}\S+$", "maxLength": 400}
    grammar = json_schema({"type": "array", "items": {"type": "object", "properties": {"a": words}}, "minItems": 9})
    with make_engine() as engine:
        done = answer(engine, SamplingParams(temperature=temperature, max_tokens=900, seed=1), grammar)
    assert done.finish_reason == FinishReason.LENGTH
    assert len(json.loads(done.text)) >= 9


@pytest.mark.sampled(3)
@pytest.mark.parametrize("can_force", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 2, 900])
def test_a_grammar_that_fails_behind_a_token_ends_its_request_alone(
    can_force: bool, max_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parser has no room for what may follow a 1, and says so only when it has to take it. It is taken unrehearsed:
    a rehearsal would have refused it, but does not write all that a model may."""
    monkeypatch.setattr(Compiler, "_rehearse", lambda *_: "")
    grammar = Grammar("lark", "start: " + " | ".join(f'"{i}"' for i in range(2500)))
    one = SamplingParams(temperature=0, max_tokens=max_tokens, logit_bias={TOKENIZER.encode("1")[0]: 100})
    with make_engine(forced_tokens=can_force) as engine:
        other, request = Listener(), make_request([1, 2, 3], sampling=SamplingParams(max_tokens=40, ignore_eos=True))
        engine.submit([request], other)
        assert answer(engine, one, grammar).finish_reason == FinishReason.LENGTH
        other.wait(request.id)
        assert other.last(request.id).finish_reason == FinishReason.LENGTH
        assert answer(engine, SamplingParams(temperature=0, max_tokens=300)).finish_reason == FinishReason.STOP


def test_what_is_cut_is_whole_where_spaces_are_free() -> None:
    grammar = Grammar("lark", 'start: %json {"type": "object", "x-guidance": {"whitespace_flexible": true}}')
    with make_engine() as engine:
        for seed in range(0, 60, 2):
            done = answer(engine, SamplingParams(temperature=1, seed=seed, max_tokens=100 + seed), grammar)
            assert isinstance(json.loads(done.text), dict), done.text


def test_a_regex_and_its_end() -> None:
    with make_engine() as engine:
        for seed in range(10):
            done = answer(
                engine, SamplingParams(temperature=1, seed=seed, max_tokens=40), Grammar("regex", "[a-c]{2,5}")
            )
            assert re.fullmatch("[a-c]{2,5}", done.text)
            assert done.finish_reason == FinishReason.STOP


def test_an_end_the_grammar_demands_is_not_ignored() -> None:
    with make_engine() as engine:
        sampling = SamplingParams(temperature=1, max_tokens=40, ignore_eos=True, min_tokens=20)
        assert answer(engine, sampling, Grammar("regex", "[a-c]{2}")).finish_reason == FinishReason.STOP


@pytest.mark.parametrize(("kind", "text"), [("lark", "start: ["), ("regex", "(("), ("json_schema", "[1")])
def test_a_wrong_grammar_is_refused_before_it_reaches_the_loop(kind: Any, text: str) -> None:
    with make_engine() as engine, pytest.raises(RequestError):
        answer(engine, SamplingParams(max_tokens=4), Grammar(kind, text))


def test_grammars_are_compiled_once_for_all_requests_of_a_shape() -> None:
    with make_engine() as engine:
        for _ in range(3):
            answer(engine, SamplingParams(temperature=0, max_tokens=20))
        stats = engine.stats()
    assert (stats.num_grammar_misses, stats.num_grammar_hits) == (1, 2)
    assert stats.usage.num_forced + stats.usage.num_sampled == stats.usage.num_output


def test_tokens_of_the_byte_tokenizer_are_bytes() -> None:
    assert len(TOKENIZER.encode("yes, of course")) == len("yes, of course")
