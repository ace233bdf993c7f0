"""Models of every family, as far as tests need them: tokens that are bytes, and the family's own words beside."""

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tokenizers import Tokenizer as InnerTokenizer
from tokenizers import decoders, models, pre_tokenizers

from hotloop.chat.formats import (
    GenericFormat,
    HermesFormat,
    LlamaFormat,
    MistralFormat,
    QwenCoderFormat,
    ToolFormat,
)
from hotloop.chat.stream import CallParser
from hotloop.chat.tools import ToolChoice
from hotloop.core.message import Tool
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, StreamEvent, TextDelta
from hotloop.engine.grammar.compiler import Compiler
from hotloop.models.tokenizer import Tokenizer


def byte_tokenizer(*special: str, verbatim: tuple[str, ...] = ()) -> Tokenizer:
    """A token is a byte; special words, and words that are one token and yet plain text, beside."""
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = InnerTokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|im_end|>", *special])
    inner.add_tokens(list(verbatim))
    return Tokenizer(inner)


PLAIN = byte_tokenizer()
QWEN = byte_tokenizer(verbatim=("<tool_call>", "</tool_call>"))
HERMES = byte_tokenizer("<|im_start|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
LLAMA = byte_tokenizer("<|python_tag|>")
MISTRAL = byte_tokenizer("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

FORMATS: dict[str, tuple[ToolFormat, Tokenizer]] = {
    "hermes": (HermesFormat(QWEN), QWEN),
    "hermes_special": (HermesFormat(HERMES), HERMES),
    "generic": (GenericFormat(PLAIN), PLAIN),
    "llama3": (LlamaFormat(LLAMA), LLAMA),
    "llama3_plain": (LlamaFormat(PLAIN), PLAIN),
    "mistral": (MistralFormat(MISTRAL, "[TOOL_CALLS] ["), MISTRAL),
    "mistral_args": (MistralFormat(MISTRAL, "[TOOL_CALLS]f[ARGS]"), MISTRAL),
    "mistral_ids": (MistralFormat(MISTRAL, "[TOOL_CALLS]f[CALL_ID]1[ARGS]"), MISTRAL),
    "qwen3_coder": (QwenCoderFormat(QWEN), QWEN),
    "qwen3_coder_special": (QwenCoderFormat(HERMES), HERMES),
}


@dataclass
class Heard:
    """What a stream of events comes to. Fails on events that contradict each other."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)

    def hear(self, events: list[StreamEvent]) -> "Heard":
        for event in events:
            match event:
                case TextDelta(text):
                    assert text
                    self.text += text
                case CallOpened(index, call_id, name):
                    assert index == len(self.calls)
                    self.calls.append((name, ""))
                    self.ids.append(call_id)
                case CallDelta(index, arguments):
                    assert arguments
                    assert index == len(self.calls) - 1
                    assert index not in self.closed
                    self.calls[index] = (self.calls[index][0], self.calls[index][1] + arguments)
                case CallClosed(index):
                    assert index == len(self.calls) - 1
                    self.closed.append(index)
        return self

    @property
    def parsed(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def hear(parser: CallParser, *pieces: str) -> Heard:
    heard = Heard()
    for piece in pieces:
        heard.hear(parser.push(piece))
    heard.hear(parser.finish())
    assert parser.num_calls == len(heard.calls)
    return heard


@cache
def _compiler(name: str) -> Compiler:
    tokenizer = FORMATS[name][1]
    return Compiler(tokenizer, tokenizer.vocab_size)


class Language:
    """The answers a format's grammar lets pass."""

    def __init__(self, name: str, tools: tuple[Tool, ...], choice: ToolChoice) -> None:
        self.format, self._tokenizer = FORMATS[name]
        grammar = self.format.grammar(tools, choice, self._tokenizer)
        assert grammar is not None
        self._matcher = _compiler(name).compile(grammar)

    def accepts(self, answer: str) -> bool:
        """Whether this is a whole answer; special tokens written in it are taken as such."""
        matcher = self._matcher.deep_copy()
        token_ids = self._tokenizer.encode(answer)
        return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())

    def accepts_bytes(self, answer: str) -> bool:
        """The same, with every marker spelt out in characters."""
        matcher = self._matcher.deep_copy()
        token_ids = [token_id for char in answer for token_id in self._tokenizer.encode(char)]
        return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write_call(name: str, tool: str, arguments: dict[str, Any]) -> str:
    """One call as a family writes it, with what stands around a single one."""
    text = to_json(arguments)
    family = name.split("_")[0]
    if name.startswith("qwen3"):
        values = (value if isinstance(value, str) else to_json(value) for value in arguments.values())
        lines = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in zip(arguments, values, strict=True))
        parameters = "".join(lines)
        return f"<tool_call>\n<function={tool}>\n{parameters}</function>\n</tool_call>"
    if family == "llama3":
        return f'{{"name": "{tool}", "parameters": {text}}}'
    if name == "mistral":
        return f'[TOOL_CALLS] [{{"name": "{tool}", "arguments": {text}}}]'
    if family == "mistral":
        return f"[TOOL_CALLS]{tool}{'[CALL_ID]abc123XYZ' if name == 'mistral_ids' else ''}[ARGS]{text}"
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {text}}}\n</tool_call>'


def write_fenced(tool: str, arguments: dict[str, Any], space: str = "\n  ", head: str = "```json\n") -> str:
    """A call that a tool's name alone makes one, with this space wherever the model is free to choose it."""
    opening = f'{{{space}"name":{space}"{tool}"{space},{space}"arguments"{space}: '
    return f"{head}{opening}{to_json(arguments)}" + ("\n}\n```" if head else "}")


def join_calls(name: str, calls: list[str]) -> str:
    if name == "mistral":
        return "[TOOL_CALLS] [" + ", ".join(call[len("[TOOL_CALLS] [") : -1] for call in calls) + "]"
    return {"llama3": "; ", "mistral": ""}.get(name.split("_")[0], "\n").join(calls)
