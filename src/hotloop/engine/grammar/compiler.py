"""From the text of a grammar to llguidance's parser over a model's own tokens.

Grammars come from strangers: their size, the time and the memory of a compilation are bounded, and whatever is wrong
with one is a `RequestError` of one line. Nothing here keeps what was compiled, nor walks through it.
"""

import json
import re
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from hotloop.backends.sampler import is_allowed
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar
from hotloop.engine.grammar.ending import Endings
from hotloop.engine.grammar.trial import Trial, build, is_plain
from hotloop.models.tokenizer import Tokenizer

MAX_GRAMMAR_BYTES = 256 * 1024
# What is written where a new grammar is rehearsed, what leads on between texts, and what ends one.
_SAMPLE = "The quick 12 Brown foxes, jumps-over a_lazy dog. (x@y.org/a?b=c) 2024-01-02T03:04:05Z naïve {}; "
_OPENERS = (",", ", ", ', "', '"')
_CLOSERS = ('"', '",', '"}', "\n", "<")
_TEXT_TOKENS = 16
_MAX_REHEARSED = 64  # tokens
_MAX_REHEARSAL_S = 0.3
_MARKER = b"\xff"  # llguidance's mark of a special token: no text, being UTF-8, can spell it


class Compiler:
    """A vocabulary prepared for matching. Building one takes a third of a second; it can be used by all threads."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = frozenset(i for i in tokenizer.eos_ids if i < vocab_size)
        if not self.eos_ids:
            raise RequestError("this model has no end-of-sequence token, which a grammar needs", param="grammar")
        self.eos_id = max(self.eos_ids)  # vocabularies add the end of a turn after the end of a text
        self.token_bytes = [marked_bytes(tokenizer, i) for i in range(vocab_size)]
        spelling = _Spelling(tokenizer, self.token_bytes, self.eos_id)
        self._inner = LLTokenizer(
            TokenizerWrapper(spelling), eos_token=[self.eos_id, *sorted(self.eos_ids - {self.eos_id})]
        )
        self.num_mask_words = (self._inner.vocab_size + 31) // 32
        spelling.inner = self._inner
        special = {i: tokenizer.token_text(i) for i in range(vocab_size) if tokenizer.is_special(i)}
        self._trial = Trial(vocab_size, special, self.eos_ids)
        named = {text: [token_id] for token_id, text in special.items()}
        self._sample, self._letter = self.spell(_SAMPLE), self.spell("x")[:1]
        self._openers, self._closers = (
            [ids[0] for text in texts if (ids := self.spell(text))] for texts in (_OPENERS, _CLOSERS)
        )
        self.endings = Endings(lambda text: named.get(text) or self.spell(text), self.eos_ids, special)

    def spell(self, text: str) -> list[int]:
        return list(self._inner.tokenize_str(text))

    def compile(self, grammar: Grammar) -> LLMatcher:
        size = len(grammar.text.encode("utf-8", "surrogatepass"))
        if size > MAX_GRAMMAR_BYTES:
            reason = f"the grammar has {size:,} bytes; at most {MAX_GRAMMAR_BYTES:,} are taken"
            raise RequestError(reason, param="grammar")
        if is_plain(grammar):
            return self.build(grammar)
        self._trial.run(grammar)
        matcher = self.build(grammar)
        error = self._rehearse(matcher.deep_copy())
        if error:
            raise RequestError(f"the grammar is too complex: an answer failed with {error}", param="grammar")
        return matcher

    def _rehearse(self, walker: LLMatcher) -> str:
        """Write the beginning of an answer, text wherever text may stand; the error it fails with, if it does."""
        until_s = time.thread_time() + _MAX_REHEARSAL_S
        sample = deque(self._sample)
        for step in range(_MAX_REHEARSED):
            run = walker.compute_ff_tokens()
            mask = np.frombuffer(walker.compute_bitmask(), np.uint8)
            if walker.is_error() or walker.is_stopped() or time.thread_time() > until_s:
                break
            is_text = any(is_allowed(mask, token_id) for token_id in self._letter)
            ahead = self._openers if not is_text else self._closers if step % _TEXT_TOKENS == 0 else []
            words = [token_id for token_id in (*ahead, *sample) if is_allowed(mask, token_id)]
            taken = run or words[:1] or np.flatnonzero(np.unpackbits(mask, bitorder="little"))[:1].tolist()
            if not taken or walker.try_consume_tokens(taken) < len(taken):
                break
            sample.rotate(-1)
        return first_line(walker.get_error()) if walker.is_error() else ""

    def build(self, grammar: Grammar) -> LLMatcher:
        """Another parser of a grammar that has been compiled before."""
        try:
            matcher = build(self._inner, grammar)
        except ValueError as error:
            raise RequestError(f"the grammar is wrong: {first_line(str(error))}", param="grammar") from None
        if matcher.is_error():
            raise RequestError(_reason(grammar, matcher.get_error()), param="grammar")
        return matcher

    def outline(self, grammar: Grammar) -> LLMatcher | None:
        """A parser of the same JSON without what bounds its strings and numbers, and takes the most room; it takes all
        that the grammar takes. None if the grammar has no JSON in it."""
        text = _outline(grammar)
        try:
            return None if text is None else self.build(replace(grammar, text=text))
        except RequestError:
            return None


_EMBEDDED = re.compile(r"%json (?=\{)")
_BOUNDS = {"format", "maxLength", "minLength", "multipleOf", "pattern", "patternProperties"}
_BOUNDS |= {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"}
_NAMED = {"$defs", "definitions", "properties"}
_VALUES = {"const", "enum", "required", "x-guidance"}


def _outline(grammar: Grammar) -> str | None:
    if grammar.kind == "json_schema":
        return json.dumps(_unbounded(json.loads(grammar.text)))
    parts, end = [], 0
    with suppress(ValueError):  # a caller's own grammar may only look like it
        for match in _EMBEDDED.finditer(grammar.text):
            if match.end() > end:
                schema, next_end = json.JSONDecoder().raw_decode(grammar.text, match.end())
                parts += [grammar.text[end : match.end()], json.dumps(_unbounded(schema))]
                end = next_end
    return "".join([*parts, grammar.text[end:]]) if parts else None


def _unbounded(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_unbounded(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    left = _BOUNDS | ({"additionalProperties"} if "patternProperties" in schema else set())
    return {key: _unbounded_part(key, part) for key, part in schema.items() if key not in left}


def _unbounded_part(key: str, part: Any) -> Any:
    if key in _VALUES:
        return part
    return {name: _unbounded(each) for name, each in part.items()} if key in _NAMED else _unbounded(part)


class _Spelling:
    """What llguidance asks of a tokenizer: the bytes of its tokens, and how the model spells a text with them."""

    def __init__(self, tokenizer: Tokenizer, token_bytes: list[bytes], eos_id: int) -> None:
        self.tokens = token_bytes
        self.special_token_ids: list[int] = []
        self.eos_token_id = eos_id
        self.bos_token_id = tokenizer.bos_id
        self.inner: LLTokenizer | None = None
        self._encode = tokenizer.encode
        # SentencePiece vocabularies put a space in front of a text, but never between a line's end and what follows.
        self._lead = "" if self._bytes(tokenizer.encode("a")) == b"a" else "\n"
        self._lead_ids = tokenizer.encode(self._lead)

    def __call__(self, text: str) -> list[int]:
        ids = self._encode(self._lead + text)
        rest = ids[len(self._lead_ids) :]
        if ids[: len(self._lead_ids)] == self._lead_ids and self._bytes(rest) == text.encode():
            return rest
        # The model's tokenizer would change the text (Unicode's forms) or see special tokens in it.
        assert self.inner is not None
        return self.inner.greedy_tokenize(text)

    def _bytes(self, ids: list[int]) -> bytes:
        return b"".join(self.tokens[i] if i < len(self.tokens) else _MARKER for i in ids)


def marked_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """The bytes of a token; a special one's no other token can spell."""
    if tokenizer.is_special(token_id):
        return _MARKER + tokenizer.token_text(token_id).encode()
    return tokenizer.token_bytes(token_id)


# What llguidance says, and what it means to the schema's author. The first that matches counts.
_REASONS = (
    (r"Unimplemented keys: \[(.*)\]", "the schema uses {0}, which is not supported"),
    (r"oneOf constraints are not supported", "'oneOf' with cases that may overlap is not supported"),
    (r"min/maxProperties only supported", "'minProperties' and 'maxProperties' allow no optional properties"),
    (r"patternProperty regexes (/.*/ and /.*/) are not disjoint", "'patternProperties' may not overlap, but {0} do"),
    (r"patternProperty regexes (/.*/ and /.*/)", "'patternProperties' {0} may overlap, which is not supported"),
    (r"circular references with sibling keys .*: (.*)", "a circular '$ref' may have no keywords beside it: {0}"),
    (r"Resource '(.*)' is not present", "'$ref' to another document is not supported: {0}"),
    (r"(?:Pointer|Anchor) '(.*)' does not exist", "'$ref' leads nowhere: {0}"),
    (r"rollback not supported", "'max_tokens' and 'stop' in a grammar are not supported"),
    (r"NoExtensionBias", "the grammar allows no answer at all"),
    (
        r"Current row has|Too many items|lexer error|[Ff]uel exhausted|Unable to determine",
        "the grammar is too complex: {error}",
    ),
    (r"(?:float|integer) range: (.*)", "'minimum' and 'maximum' cannot be kept to: {0}"),
    (r"Unsatisfiable schema: (.*)", "the schema allows no value at all: {0}"),
    (r"(?s)regex parse error:.*error: (.*)", "a regular expression cannot be used: {0}"),
)


def _reason(grammar: Grammar, error: str) -> str:
    for pattern, meaning in _REASONS:
        match = re.search(pattern, error)
        if match:
            return first_line(meaning.format(*(g.replace('"', "'") for g in match.groups()), error=first_line(error)))
    noun = {"json_schema": "schema", "regex": "regular expression", "lark": "grammar"}[grammar.kind]
    return f"the {noun} cannot be used: {first_line(error)}"


def first_line(text: str) -> str:
    """Enough of an error to act on; the rest of it shows the parser's own state."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "it failed")
    return line if len(line) <= 300 else line[:299] + "…"
