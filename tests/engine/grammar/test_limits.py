"""Grammars that reach their limits: in one text, in the texts of many, or in every answer."""

import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLParserLimits
from tests.engine.grammar.test_matcher import BYTES, WORDS, WORDY, allowed_ids, take
from tests.engine.tiny import EOS_ID, TOKENIZER, VOCAB_SIZE

from hotloop.backends.sampler import is_allowed
from hotloop.core.errors import RequestError, Unavailable
from hotloop.core.grammar import Grammar, json_schema
from hotloop.engine.grammar import trial
from hotloop.engine.grammar.matcher import Grammars

WORDS_OF_A_LINE = {"type": "string", "pattern": r"^(?:\S+\s+){0,49}\S+$", "maxLength": 500}
LINE = {"type": "object", "properties": {"n": {"type": "integer"}, "a": WORDS_OF_A_LINE}, "required": ["n", "a"]}


def lines(num: int) -> list[str]:
    draw = random.Random(1)
    words = (["".join(draw.choices("abcdefgh.,-(8", k=draw.randint(1, 9))) for _ in range(40)] for _ in range(num))
    return [" ".join(each) for each in words]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("grammars", [BYTES, WORDY])
def test_a_grammar_is_not_used_up_by_the_texts_of_many(grammars: Grammars):
    """Nor by one text, where a token is looked at alone and no mask is made."""
    for line in lines(8):
        matcher = grammars.matcher(json_schema(LINE))
        text = f'{{"n": 1, "a": "{line}"}}'
        take(matcher, (TOKENIZER if grammars is BYTES else WORDS).encode(text))
        assert matcher.is_complete
        assert not matcher.is_cut


def test_a_parser_that_failed_is_renewed():
    grammars = Grammars(TOKENIZER, VOCAB_SIZE)
    grammars.prepare(json_schema(LINE))
    parser = grammars.matcher(json_schema(LINE))
    text = TOKENIZER.encode(f'{{"n": 1, "a": "{lines(1)[0]}"}}')
    take(parser, text[:100])
    parser._inner.consume_token(EOS_ID)  # which it does not take
    assert parser._inner.is_error()
    parser._run = None
    take(parser, text[100:])
    assert (parser.is_complete, parser.is_cut) == (True, False)
    parser.rollback(len(text))
    take(parser, text)


def test_an_answer_whose_grammar_fails_is_closed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(trial, "LIMITS", LLParserLimits(max_lexer_states=1000, verbose_errors=False))
    call = f'start: "f " obj "!"\nobj: %json {json_schema(LINE).text}'
    for grammar, head, tail in ((json_schema(LINE), "", ""), (Grammar("lark", call), "f ", "!")):
        matcher = Grammars(TOKENIZER, VOCAB_SIZE).matcher(grammar)
        text = head + f'{{"n": 1, "a": "{lines(1)[0]}"}}'
        path: list[int] = []
        for token_id in TOKENIZER.encode(text):
            if matcher.is_cut or not is_allowed(matcher.mask(), token_id):
                break
            take(matcher, [token_id])
            path.append(token_id)
        assert matcher.is_cut
        run = matcher.forced()
        assert run[-1] == EOS_ID
        assert matcher.ending(100) == run[:-1]
        take(matcher, run)
        assert matcher.has_ended
        whole = TOKENIZER.decode([*path, *run[:-1]])
        written = json.loads(whole.removeprefix(head).removesuffix(tail))
        assert written["n"] == 1
        assert text[len(head) :].startswith(json.dumps(written)[:-2])
        matcher.rollback(len(run) + 5)
        assert not matcher.is_cut
    assert "an answer ends after" in caplog.text


def test_an_answer_that_cannot_be_closed_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trial, "LIMITS", LLParserLimits(max_lexer_states=1000, verbose_errors=False))
    matcher = Grammars(TOKENIZER, VOCAB_SIZE).matcher(Grammar("regex", r"(?:[^ ]+ +){0,49}[^ ]{1,400}"))
    for token_id in TOKENIZER.encode(lines(1)[0]):
        if not matcher.advance(token_id):
            break
    assert allowed_ids(matcher) == [EOS_ID]
    assert matcher.is_cut


LONG = pytest.mark.long


@pytest.mark.parametrize("required", [["n", "a"], pytest.param(["n"], marks=LONG), pytest.param([], marks=LONG)])
def test_a_grammar_that_fails_in_an_answer_is_refused(required: list[str]):
    odd = {"type": "integer", "multipleOf": 99_991, "minimum": 3, "maximum": 10**15}
    whole: Any = {"type": "object", "properties": {"n": {"type": "null"}, "a": odd}, "required": required}
    whole["additionalProperties"] = False
    for schema in (odd, whole, {"type": "array", "items": whole}):
        with pytest.raises(RequestError, match="too complex"):
            WORDY.prepare(json_schema(schema))


def test_a_trial_that_was_told_to_end_says_nothing_of_its_grammar():
    """As all processes of a service are when it stops."""
    slow = json_schema(
        {"allOf": [{"type": "string", "pattern": f".*{chr(97 + i)}.*{chr(98 + i)}.*"} for i in range(24)]}
    )
    children = Path(f"/proc/{os.getpid()}/task")
    with ThreadPoolExecutor() as pool:
        known = find_children(children)
        tried = pool.submit(BYTES.compiler.compile, slow)
        while not (new := find_children(children) - known):
            assert not tried.done()
        os.kill(new.pop(), signal.SIGTERM)
        with pytest.raises(Unavailable, match="told to end"):
            tried.result(60)


def test_terminals_that_double_are_tried_first():
    """A few hundred bytes take seconds, in which no other thread of the process runs."""
    doubling = "start: R0\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(22)) + '\nR22: "b"'
    for text in (doubling, doubling.replace(" R", "\n  | R"), doubling.replace(": ", ':(/x/ ":"\n')):
        assert not trial.is_plain(Grammar("lark", text))
    with pytest.raises(RequestError, match="too complex"):
        BYTES.prepare(Grammar("lark", doubling))
    rules = "start: " + " ".join(f"r{i}" for i in range(60)) + "".join(f'\nr{i}: A B "x"' for i in range(60))
    assert trial.is_plain(Grammar("lark", f'{rules}\nA: "a" B\nB: /b/'))


def find_children(tasks: Path) -> set[int]:
    texts = (path.read_text() for path in tasks.glob("*/children"))
    return {int(pid) for text in texts for pid in text.split()}


@pytest.mark.parametrize("least", ["-9223372036854775808", "-9223372036854775807", "-92233720368547758.08e2", "-1E+19"])
def test_a_number_that_ends_the_compiling_process_does_not_end_ours(least: str):
    schema = f'{{"type": "integer", "minimum": -1e+40, "maximum": {least}}}'
    for grammar in (Grammar("json_schema", schema), Grammar("lark", f"start: %json {schema}")):
        assert not trial.is_plain(grammar)
        with pytest.raises(RequestError, match="too complex"):
            BYTES.prepare(grammar)
    for schema in ('{"const": -922337203685477}', '{"minimum": 0.5, "maximum": 1e3}'):
        assert trial.is_plain(Grammar("json_schema", schema))
