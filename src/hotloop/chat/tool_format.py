"""What there is to know of a family's way with tool calls: a grammar, a parser, and how to ask its template.

Each grammar lets the model write prose until the family's opening, unless a call is required; from the opening on it
must write calls, and after them nothing. Prose may go on only behind a call that a tool's name alone gives away, which
nobody is told, and behind any call if no tool is strict. Each parser reads what its grammar lets pass, and more.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from hotloop.chat import lark
from hotloop.chat.stream import CallParser
from hotloop.chat.tools import ToolChoice
from hotloop.core.config import ToolFormatName
from hotloop.core.grammar import Grammar
from hotloop.core.message import Message, Tool
from hotloop.models.tokenizer import Tokenizer

Turns = tuple[Message, ...]
Tools = tuple[Tool, ...]


class ToolFormat(ABC):
    """One family's way with tools. The tools and the choice it is given have passed `check_tools`."""

    name: ClassVar[ToolFormatName]
    opening: ClassVar[str]

    def __init__(self, tokenizer: Tokenizer, source: str = "") -> None:
        """`source` is the model's chat template."""
        self._tokenizer = tokenizer
        self.keep_special = lark.special_id(self.opening, tokenizer) is not None
        """Whether its markers are special tokens, so that the text must show them."""

    def prepare(self, messages: Turns, tools: Tools) -> tuple[Turns, Tools]:
        """What the template is given in their place."""
        return messages, tools

    def as_written(self, text: str) -> str:
        """A prompt with the calls in it as the model writes them, where the template has other words for them."""
        return text

    def grammar(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        """What an answer that may hold calls must look like. A tool that is not strict has a name, too, and JSON
        arguments."""
        chosen = choice.select(tools)
        can_go_on = choice.mode == "auto" and choice.is_parallel and not any(tool.is_strict for tool in chosen)
        return Grammar("lark", "\n".join(self.rules(chosen, replace(choice, can_go_on=can_go_on))))

    def wrap(self, grammar: Grammar) -> Grammar:
        """The grammar of an answer that is no call, with what the family has around it."""
        return grammar

    @abstractmethod
    def rules(self, chosen: Sequence[Tool], choice: ToolChoice) -> list[str]:
        """The first is where an answer begins."""

    @abstractmethod
    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        """For one answer. A family that writes values without quotes tells their types from the tools."""
