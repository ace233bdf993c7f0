"""Tools that are not strict: whatever a model tries, a call names a tool of the request, and its arguments are JSON.

A random model writes pieces of every family's calls, of tools that there are and that there are not, with arguments
that are JSON and that are not. What its grammar does not take, it replaces by something the grammar does take.
"""

import json
import random
from functools import cache
from typing import Any

import pytest
from tests.chat.speaking import FORMATS, byte_tokenizer, hear, write_call, write_fenced

from hotloop.chat.formats import HarmonyFormat
from hotloop.chat.tool_format import ToolFormat
from hotloop.chat.tools import ToolChoice
from hotloop.core.message import Tool
from hotloop.engine.grammar.matcher import Grammars, Matcher
from hotloop.models.tokenizer import Tokenizer

ODD_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]}, "c": {"type": "string"}}}
TOOLS = tuple(Tool(name, "", ODD_SCHEMA, is_strict=False) for name in ("f", "look_up", "mcp.git-log"))
NAMES = [tool.name for tool in TOOLS]
HARMONY_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
HARMONY = byte_tokenizer(*HARMONY_MARKS)
ALL: dict[str, tuple[ToolFormat, Tokenizer]] = {**FORMATS, "harmony": (HarmonyFormat(HARMONY), HARMONY)}
# Words that open, close or stand within the calls of any family, and what JSON is and is not made of.
PIECES = [
    *("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=a>\n", "\n</parameter>\n", "<arg_key>"),
    *("</arg_key>", "<arg_value>", "</arg_value>", '<invoke name="', '<parameter name="', "</invoke>", "[TOOL_CALLS]"),
    *("<|python_tag|>", "[ARGS]", "<|tool_call|>", "<|tool_call_begin|>functions.", "<|tool_call_section_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_calls_section_begin|>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<|tool_call>call:", "<start_function_call>call:", '<|"|>', "<escape>", "```json\n", "```", *HARMONY_MARKS),
    *('{"name": "', '", "arguments": ', '{"type": "function", "name": "', '"parameters": {', '{"', '"', ":", ", "),
    *("{", "}", "[", "]", "{{", "}}", "null", "tru", "1e5", "NaN", "\\", "\n", " ", "\x1c", "é", "to=functions."),
    *NAMES,
    *("run_shell", "f2", "look", "x"),
]
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"a": 1, "b": "x", "c": "text"},
    {"a": "one", "b": ["<"], "new": {"deep": [None, 0.5]}},
    {"c": "</parameter>\n}} <tool_call> [ARGS]"},
]


@cache
def _grammars(name: str) -> Grammars:
    tokenizer = ALL[name][1]
    return Grammars(tokenizer, tokenizer.vocab_size)


class RandomModel:
    """Writes answers under a grammar."""

    def __init__(self, name: str, seed: int) -> None:
        self._name, self._random = name, random.Random(f"{name} {seed}")
        self._format, self._tokenizer = ALL[name]

    def write(self, choice: ToolChoice) -> str:
        matcher = _grammars(self._name).matcher(self._format.grammar(TOOLS, choice))
        path: list[int] = []
        for _ in range(self._random.randint(1, 6)):
            for token_id in self._plan():
                taken = token_id if matcher.advance(token_id) else self._otherwise(matcher)
                if taken in self._tokenizer.eos_ids:
                    return self._tokenizer.decode(path, keep_special=True)
                path.append(taken)
        ending = matcher.ending(2000)
        assert ending is not None, self._tokenizer.decode(path, keep_special=True)
        return self._tokenizer.decode([*path, *ending], keep_special=True)

    def _plan(self) -> list[int]:
        """What it would write next, its marks as special tokens or spelt out."""
        draw = self._random
        text = draw.choice(PIECES)
        if draw.random() < 0.4:
            tool, arguments = draw.choice([*NAMES, "run_shell", "f2"]), draw.choice(ARGUMENTS)
            text = write_fenced(tool, arguments) if draw.random() < 0.2 else self._call(tool, arguments)
            for _ in range(draw.choice((0, 0, 1, 3))):
                at = draw.randrange(len(text))
                text = text[:at] + draw.choice(["", *PIECES]) + text[at + draw.randint(0, 4) :]
        if draw.random() < 0.7:
            return self._tokenizer.encode(text)
        return [token_id for char in text for token_id in self._tokenizer.encode(char)]

    def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        if self._name == "harmony":
            head = f"<|channel|>commentary to=functions.{tool} <|constrain|>json<|message|>"
            return f"{head}{json.dumps(arguments)}<|call|>"
        return write_call(self._name, tool, arguments)

    def _otherwise(self, matcher: Matcher) -> int:
        mask = matcher.mask()
        allowed = [i for i in range(self._tokenizer.vocab_size) if mask[i >> 3] >> (i & 7) & 1]
        assert allowed, matcher.error
        plain = [i for i in allowed if self._tokenizer.token_bytes(i).isascii()]
        token_id = self._random.choice(plain or allowed)
        assert matcher.advance(token_id)
        return token_id


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ALL)
def test_names_and_arguments_are_right_whatever_the_model_tries(name: str, num_random_calls: int) -> None:
    """`--random-calls N`: how many calls all families together are to be heard of."""
    num_wanted, num_heard, seed = max(4, num_random_calls // len(ALL)), 0, 0
    while num_heard < num_wanted:
        seed += 1
        choice = random.Random(seed).choice(
            [ToolChoice(), ToolChoice(), ToolChoice(is_parallel=False), ToolChoice("required")]
        )
        answer = RandomModel(name, seed).write(choice)
        heard = hear(ALL[name][0].parser(TOOLS), answer)
        for tool, arguments in heard.calls:
            assert tool in NAMES, answer
            assert isinstance(json.loads(arguments), dict), answer
        assert len(heard.closed) == len(heard.calls), answer
        num_heard += len(heard.calls)


@pytest.mark.parametrize("name", ALL)
def test_prose_is_free(name: str) -> None:
    """Whatever is no opening may be written, in these characters."""
    tool_format, tokenizer = ALL[name]
    matcher = _grammars(name).matcher(tool_format.grammar(TOOLS, ToolChoice()))
    head = "<|channel|>final<|message|>" if name == "harmony" else ""
    prose = 'Is `{"a": [1` < <b>5</b>?\n```py\nprint({"x": 1})\n```\n{"name": "run_shell", … [TOOL <tool_cal é\\'
    assert all(matcher.advance(token_id) for token_id in tokenizer.encode(head + prose))
    assert matcher.is_complete
