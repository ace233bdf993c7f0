"""Building llguidance's parser, and trying that first in a process that can be killed.

llguidance bounds a step of matching, but not every compilation: a few intersected patterns can keep it busy for
minutes, and a thread cannot be stopped. A grammar that could do so is compiled in a child first, under limits of the
operating system, with a vocabulary of bytes. The child imports little, being started for each trial.
"""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from hotloop.core.errors import Overloaded, RequestError, Unavailable
from hotloop.core.grammar import Grammar
from hotloop.core.rewrite import EXACT_FORMATS

MAX_CPU_S = 1
MAX_MEMORY_BYTES = 1 << 30  # of addresses, most of which are never used
MAX_WAIT_S = 20.0
MAX_QUEUE_S = 2.0
# llguidance's own limits keep a step below 20 ms or so, which the engine's thread waits for; patterns as usual as
# ^.{1,255}$ need that much. A state takes 1 or 2 kB.
LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)

_WRAPPERS: Mapping[str, Callable[[str], str]] = {
    "json_schema": LLMatcher.grammar_from_json_schema,
    "regex": LLMatcher.grammar_from_regex,
    "lark": LLMatcher.grammar_from_lark,
}
_MAX_PLAIN_BYTES = 16 * 1024
# What turns into intersected, subtracted, counted or dividing expressions, which is where the time goes; and a number
# at or below the least that 64 bits hold, whose sign llguidance turns round for ever, until the stack ends the process.
_COSTLY = re.compile(
    r'"(?:pattern|patternProperties|multipleOf)"|[&~]|%regex|%lark|\{\s*\d|\{\s*,|\\u00|-\d{19}|-[\d.]+[eE][+\d]'
)
# What looks so and is quick: anything without a certain word, and characters of one class counted.
_QUICK = re.compile(
    r"/\(\?s:\.\*\)/ & ~/\(\?s:\.\*\)(?:\\.|[^\\/()*+?{}\n])*\(\?s:\.\*\)/|(?<=\])\{\d{1,3}(?:,\d{1,3})?\}"
)


_MAX_NESTED = 24  # so there are some thousands of copies at most
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/')
_DEFINITION = re.compile(r"^\s*(?=[?!]?\w[^:\n]*:)", re.MULTILINE)
_TERMINAL = re.compile(r"\b_*[A-Z][A-Z0-9_]*\b")

_OWN_PATTERNS = [f'"pattern":{json.dumps(pattern)}' for pattern in EXACT_FORMATS.values()]


def build(vocabulary: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """The parser at its beginning; in error if the grammar is wrong, cannot begin, or cannot take a token back."""
    matcher = LLMatcher(vocabulary, _WRAPPERS[grammar.kind](grammar.text), log_level=0, limits=LIMITS)
    if matcher.is_error():
        return matcher
    probe = matcher.deep_copy()
    num_taken = probe.try_consume_tokens(probe.compute_ff_tokens())
    bits = probe.compute_bitmask()
    first = next((8 * i + (byte & -byte).bit_length() - 1 for i, byte in enumerate(bits) if byte), None)
    if first is not None and not probe.is_stopped():
        num_taken += probe.try_consume_tokens([first])
    probe.rollback(num_taken)
    return probe if probe.is_error() else matcher


def is_plain(grammar: Grammar) -> bool:
    """Whether a grammar is small and has nothing in it that could take long."""
    if grammar.kind == "regex" or len(grammar.text) > _MAX_PLAIN_BYTES:
        return False
    text = grammar.text
    for pattern in _OWN_PATTERNS:
        text = text.replace(pattern, "")
    if grammar.kind == "lark" and _num_nested(text) > _MAX_NESTED:
        return False
    return not _COSTLY.search(_QUICK.sub("", text))


def _num_nested(lark: str) -> int:
    """How often a terminal is named in the definition of another one: each place has a copy of all that is in it."""
    definitions = _DEFINITION.split(_LITERAL.sub("", lark))
    return sum(len(_TERMINAL.findall(each)) - 1 for each in definitions if _TERMINAL.match(each))


class Trial:
    """Tries grammars for one vocabulary, two at a time."""

    def __init__(self, vocab_size: int, special: Mapping[int, str], eos_ids: Iterable[int]) -> None:
        self._vocabulary = {"vocab_size": vocab_size, "special": dict(special), "eos_ids": sorted(eos_ids)}
        self._places = threading.BoundedSemaphore(2)

    def run(self, grammar: Grammar) -> None:
        """Returns if the grammar compiles, or fails to, in good time. Raises `RequestError` if it does neither."""
        task = json.dumps(self._vocabulary | {"kind": grammar.kind, "text": grammar.text})
        if not self._places.acquire(timeout=MAX_QUEUE_S):
            raise Overloaded("too many large grammars are being compiled")
        try:
            child = [sys.executable, "-P", "-m", "hotloop.engine.grammar.trial"]
            code = subprocess.run(child, input=task.encode(), capture_output=True, timeout=MAX_WAIT_S).returncode
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            self._places.release()
        if code in (-signal.SIGINT, -signal.SIGTERM):  # which is not the grammar's doing
            raise Unavailable("the process that tries a grammar was told to end")
        if code:
            reason = f"the grammar is too complex: it takes more than {MAX_CPU_S} s, or too much memory, to compile"
            raise RequestError(reason, param="grammar")


class _ByteVocabulary:
    """What llguidance asks of a tokenizer: special tokens at their ids, no other words, and the bytes behind."""

    special_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __init__(self, vocab_size: int, special: Mapping[str, str], eos_ids: list[int]) -> None:
        self._num_words = vocab_size
        self.eos_token_id = eos_ids[0]
        self.tokens = [b""] * vocab_size + [bytes([byte]) for byte in range(256)]
        for token_id, name in special.items():
            self.tokens[int(token_id)] = b"\xff" + name.encode()

    def __call__(self, text: str) -> list[int]:
        return [self._num_words + byte for byte in text.encode()]


def main() -> None:
    """The child: ends well if it ends at all."""
    import resource  # noqa: PLC0415 - not on every system, and not needed by the parent

    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    with contextlib.suppress(ValueError, OSError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    task = json.load(sys.stdin)
    words = _ByteVocabulary(task["vocab_size"], task["special"], task["eos_ids"])
    vocabulary = LLTokenizer(TokenizerWrapper(words), eos_token=task["eos_ids"])
    try:
        build(vocabulary, Grammar(task["kind"], task["text"]))
    except ValueError:
        return


if __name__ == "__main__":
    main()
