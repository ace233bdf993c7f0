"""Models of every family, as far as tests need them: tokens that are bytes, and the family's own words beside."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tokenizers import Tokenizer as InnerTokenizer
from tokenizers import decoders, models, pre_tokenizers

from hotloop.chat.formats import (
    GenericFormat,
    GraniteFormat,
    HermesFormat,
    LlamaFormat,
    MistralFormat,
)
from hotloop.chat.gemma_calls import GemmaFormat
from hotloop.chat.named_formats import DeepSeekFormat, KimiFormat
from hotloop.chat.stream import CallParser
from hotloop.chat.tool_format import ToolFormat
from hotloop.chat.tools import ToolChoice
from hotloop.chat.xml_calls import DsmlFormat, GlmFormat, MiniMaxFormat, QwenCoderFormat
from hotloop.core import stream
from hotloop.core.message import Tool
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
GLM = byte_tokenizer("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
MINIMAX = byte_tokenizer("<minimax:tool_call>", "</minimax:tool_call>")
DEEPSEEK = byte_tokenizer(
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    )
)
KIMI = byte_tokenizer(
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"),
)
GRANITE = byte_tokenizer("<|tool_call|>", "<|/tool_call|>")
GEMMA = byte_tokenizer(
    "<|tool_call>", "<tool_call|>", '<|"|>', "<start_function_call>", "<end_function_call>", "<escape>"
)

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
    "glm": (GlmFormat(QWEN), QWEN),
    "glm_special": (GlmFormat(GLM), GLM),
    "glm_47": (GlmFormat(PLAIN, "</arg_key><arg_value>"), PLAIN),
    "glm_47_special": (GlmFormat(GLM, "</arg_key><arg_value>"), GLM),
    "minimax": (MiniMaxFormat(PLAIN), PLAIN),
    "minimax_special": (MiniMaxFormat(MINIMAX), MINIMAX),
    "deepseek_v32": (DsmlFormat(PLAIN), PLAIN),
    "deepseek_v4": (DsmlFormat(PLAIN, "tool_calls>"), PLAIN),
    "deepseek": (DeepSeekFormat(PLAIN), PLAIN),
    "deepseek_special": (DeepSeekFormat(DEEPSEEK), DEEPSEEK),
    "deepseek_fenced": (DeepSeekFormat(PLAIN, "```json"), PLAIN),
    "deepseek_fenced_special": (DeepSeekFormat(DEEPSEEK, "```json"), DEEPSEEK),
    "kimi": (KimiFormat(PLAIN), PLAIN),
    "kimi_special": (KimiFormat(KIMI), KIMI),
    "granite": (GraniteFormat(PLAIN), PLAIN),
    "granite_special": (GraniteFormat(GRANITE), GRANITE),
    "granite_phi_special": (GraniteFormat(GRANITE, "<|/tool_call|>"), GRANITE),
    "gemma": (GemmaFormat(PLAIN), PLAIN),
    "gemma_special": (GemmaFormat(GEMMA), GEMMA),
    "gemma_function": (GemmaFormat(PLAIN, "<start_function_call>"), PLAIN),
    "gemma_function_special": (GemmaFormat(GEMMA, "<start_function_call>"), GEMMA),
}


@dataclass
class Heard:
    """What a stream of events comes to. Fails on events that contradict each other."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list, compare=False)
    thought: str = ""
    """That is not closed yet."""
    _order: list[tuple[str, Any]] = field(default_factory=list)

    def hear(self, events: list[stream.StreamEvent]) -> "Heard":
        for event in events:
            match event:
                case stream.TextDelta(text):
                    assert text
                    assert not self.thought, "a text within a thought"
                    self.text += text
                    before = self._order.pop()[1] if self._order and self._order[-1][0] == "text" else ""
                    self._order.append(("text", before + text))
                case stream.ThoughtDelta(text):
                    assert text
                    self.thought += text
                case stream.ThoughtClosed(thought):
                    assert thought.text == self.thought
                    self._order.append(("thought", self.thought))
                    self.thought = ""
                case stream.CallOpened(index, call_id, name):
                    assert not self.thought, "a call within a thought"
                    assert index == len(self.calls)
                    self._order.append(("call", index))
                    self.calls.append((name, ""))
                    self.ids.append(call_id)
                case stream.CallDelta(index, arguments):
                    assert arguments
                    assert index == len(self.calls) - 1
                    assert index not in self.closed
                    self.calls[index] = (self.calls[index][0], self.calls[index][1] + arguments)
                case stream.CallClosed(index):
                    assert index == len(self.calls) - 1
                    self.closed.append(index)
        return self

    def check(self, text: str, calls: list[tuple[str, str]] | None) -> None:
        """Whether it says this; None is one call that was cut off."""
        assert self.text == text
        if calls is None:
            assert (len(self.calls), self.closed) == (1, [])
        else:
            assert (self.calls, self.closed) == (calls, list(range(len(calls))))

    @property
    def parts(self) -> list[tuple[str, Any]]:
        """Texts, thoughts and calls, in their order."""
        assert not self.thought, "a thought that was never closed"
        return [self.calls[value] if kind == "call" else (kind, value) for kind, value in self._order]

    @property
    def parsed(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def hear(parser: CallParser, *pieces: str, is_cut: bool = False) -> Heard:
    heard = Heard()
    for piece in pieces:
        heard.hear(parser.push(piece))
    heard.hear(parser.finish(is_cut=is_cut))
    assert parser.num_calls == len(heard.calls)
    return heard


def hear_cut_anywhere(make_parser: Callable[[], CallParser], answer: str) -> Heard:
    """What the whole answer says; the same must be heard however it is cut."""
    whole = hear(make_parser(), answer)
    for pieces in (answer, *([answer[:i], answer[i:]] for i in range(len(answer)))):
        assert hear(make_parser(), *pieces) == whole
    return whole


@cache
def _compiler(name: str) -> Compiler:
    tokenizer = FORMATS[name][1]
    return Compiler(tokenizer, tokenizer.vocab_size)


class Language:
    """The answers a format's grammar lets pass."""

    def __init__(self, name: str, tools: tuple[Tool, ...], choice: ToolChoice) -> None:
        self.format, self._tokenizer = FORMATS[name]
        self._matcher = _compiler(name).compile(self.format.grammar(tools, choice))

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


class Quoted(str):
    """A string between tags that is written as JSON."""


TAGGED = ("qwen3", "glm", "minimax", "deepseek_v")
"""How the names of families begin that write strings without quotes, between tags."""


def write_call(name: str, tool: str, arguments: dict[str, Any]) -> str:
    """One call as a family writes it, with what stands around a single one."""
    text = to_json(arguments)
    family = name.split("_")[0]
    if name.startswith(TAGGED):
        return write_tags(name, tool, arguments)
    if family == "llama3":
        return f'{{"name": "{tool}", "parameters": {text}}}'
    if name == "mistral":
        return f'[TOOL_CALLS] [{{"name": "{tool}", "arguments": {text}}}]'
    if family == "mistral":
        return f"[TOOL_CALLS]{tool}{'[CALL_ID]abc123XYZ' if name == 'mistral_ids' else ''}[ARGS]{text}"
    if family == "deepseek":
        is_fenced = "fenced" in name
        head, tail = (
            (f"function<｜tool▁sep｜>{tool}\n```json\n", "\n```") if is_fenced else (f"{tool}<｜tool▁sep｜>", "")
        )
        call = f"<｜tool▁call▁begin｜>{head}{text}{tail}<｜tool▁call▁end｜>"
        return f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"
    if family == "granite":
        return f'<|tool_call|>[{{"name": "{tool}", "arguments": {text}}}]' + "<|/tool_call|>" * ("phi" in name)
    if family == "gemma":
        marks = ("<start_function_call>", "<end_function_call>", "<escape>")
        opening, closing, quote = marks if "function" in name else ("<|tool_call>", "<tool_call|>", '<|"|>')
        return f"{opening}call:{tool}{write_gemma(arguments, quote)}{closing}"
    if family == "kimi":
        call = f"<|tool_call_begin|>functions.{tool}:0<|tool_call_argument_begin|>{text}<|tool_call_end|>"
        return f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {text}}}\n</tool_call>'


def write_gemma(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        keys = sorted(value, key=str.lower)
        return "{" + ",".join(f"{key}:{write_gemma(value[key], quote)}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(write_gemma(item, quote) for item in value) + "]"
    return to_json(value)


def write_tags(name: str, tool: str, arguments: dict[str, Any]) -> str:
    values = {key: value if isinstance(value, str) else to_json(value) for key, value in arguments.items()}
    if name.startswith("qwen3"):
        parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        return f"<tool_call>\n<function={tool}>\n{parameters}</function>\n</tool_call>"
    if name.startswith("glm"):
        gap = "" if "47" in name else "\n"
        pairs = (f"<arg_key>{key}</arg_key>{gap}<arg_value>{value}</arg_value>{gap}" for key, value in values.items())
        return f"<tool_call>{tool}{gap}{''.join(pairs)}</tool_call>"
    if name.startswith("minimax"):
        parameters = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in values.items())
        return f'<minimax:tool_call>\n<invoke name="{tool}">\n{parameters}</invoke>\n</minimax:tool_call>'
    kinds = {key: isinstance(value, str) and not isinstance(value, Quoted) for key, value in arguments.items()}
    heads = {key: f'parameter name="{key}" string="{str(is_string).lower()}"' for key, is_string in kinds.items()}
    inner = "".join(f"<｜DSML｜{heads[key]}>{value}</｜DSML｜parameter>\n" for key, value in values.items())
    outer = "tool_calls" if name == "deepseek_v4" else "function_calls"
    return f'<｜DSML｜{outer}>\n<｜DSML｜invoke name="{tool}">\n{inner}</｜DSML｜invoke>\n</｜DSML｜{outer}>'


def write_fenced(tool: str, arguments: dict[str, Any], space: str = "\n  ", head: str = "```json\n") -> str:
    """A call that a tool's name alone makes one, with this space wherever the model is free to choose it."""
    opening = f'{{{space}"name":{space}"{tool}"{space},{space}"arguments"{space}: '
    return f"{head}{opening}{to_json(arguments)}" + ("\n}\n```" if head else "}")


def join_calls(name: str, calls: list[str]) -> str:
    opening, closing, joiner = _around(name)
    inner = (call.removeprefix(opening).removesuffix(closing) for call in calls)
    return opening + joiner.join(inner) + closing


def _around(name: str) -> tuple[str, str, str]:
    """What a family writes once around several calls, and what between them."""
    family = name.split("_")[0]
    if name == "mistral":
        return "[TOOL_CALLS] [", "]", ", "
    if family == "minimax":
        return "<minimax:tool_call>", "\n</minimax:tool_call>", ""
    if name.startswith("deepseek_v"):
        outer = "tool_calls" if name == "deepseek_v4" else "function_calls"
        return f"<｜DSML｜{outer}>", f"\n</｜DSML｜{outer}>", ""
    if family == "deepseek":
        return "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "\n" if "fenced" in name else ""
    if family == "granite":
        return "<|tool_call|>[", "]" + "<|/tool_call|>" * ("phi" in name), ", "
    if family == "gemma":
        return "", "", ""
    if family == "kimi":
        return "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", ""
    return "", "", {"llama3": "; ", "mistral": ""}.get(family, "" if "glm_47" in name else "\n")
