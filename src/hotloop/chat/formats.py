"""Which of the families a model belongs to, told once from its chat template and its vocabulary."""

import re
from collections.abc import Sequence
from typing import Protocol

from hotloop.chat import lark
from hotloop.chat.families import (
    PYTHON_TAG,
    TOOL_CALLS,
    GenericFormat,
    HermesFormat,
    LlamaFormat,
    MistralFormat,
    QwenCoderFormat,
    Tools,
    Turns,
)
from hotloop.chat.stream import CallParser
from hotloop.chat.tools import ToolChoice
from hotloop.chat.xml_calls import CALL, FUNCTION, PARAMETER
from hotloop.core.config import ToolFormatName
from hotloop.core.errors import ConfigError
from hotloop.core.grammar import Grammar
from hotloop.core.message import Tool
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer


class ToolFormat(Protocol):
    """One family's way with tools. The tools and the choice it is given have passed `check_tools`."""

    @property
    def name(self) -> str: ...

    @property
    def keep_special(self) -> bool:
        """Whether its markers are special tokens, so that the text must show them."""
        ...

    def prepare(self, messages: Turns, tools: Tools) -> tuple[Turns, Tools]:
        """What the template is given in their place."""
        ...

    def grammar(self, tools: Sequence[Tool], choice: ToolChoice, tokenizer: Tokenizer) -> Grammar | None:
        """What the answer must look like. None: anything goes."""
        ...

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        """For one answer. A family that writes values without quotes tells their types from the tools."""
        ...


def choose_format(template: ChatTemplate | None, tokenizer: Tokenizer, name: ToolFormatName = "auto") -> ToolFormat:
    """The format of this name, or the one the template speaks. Raises ConfigError for one that cannot work here."""
    source = template.source if template else ""
    has_marker = lark.special_id(TOOL_CALLS, tokenizer) is not None
    if name == "auto":
        name = _detect(source, has_marker=has_marker)
    elif name != "generic" and not _takes_tools(source):
        raise ConfigError(f"tool_format {name!r} cannot work: the model's chat template takes no tools; use 'generic'")
    if name == "mistral" and not has_marker:
        raise ConfigError(f"tool_format 'mistral' cannot work: the model has no token {TOOL_CALLS}")
    return _make(name, source, tokenizer)


def _detect(source: str, *, has_marker: bool) -> ToolFormatName:
    if not _takes_tools(source):
        return "generic"
    if FUNCTION in source and PARAMETER in source:
        return "qwen3_coder"
    if CALL in source and re.search(r'"arguments\\?"', source):
        return "hermes"
    if TOOL_CALLS in source and has_marker:
        return "mistral"
    if PYTHON_TAG in source or ('"parameters": ' in source and "ipython" in source):
        return "llama3"
    return "generic"


def _takes_tools(source: str) -> bool:
    return re.search(r"\btools\b", source) is not None


def _make(name: ToolFormatName, source: str, tokenizer: Tokenizer) -> ToolFormat:
    if name == "hermes":
        return HermesFormat(tokenizer)
    if name == "llama3":
        return LlamaFormat(tokenizer, is_single="single tool-calls" in source)
    if name == "mistral":
        return MistralFormat(source)
    if name == "qwen3_coder":
        return QwenCoderFormat(tokenizer)
    return GenericFormat(tokenizer, has_system="System role not supported" not in source)
