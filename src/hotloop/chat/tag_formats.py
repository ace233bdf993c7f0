"""Families of models that write a tool call in tags. What tells them apart is a table, in `xml_calls`."""

from collections.abc import Sequence
from typing import ClassVar

from hotloop.chat import lark
from hotloop.chat.stream import CallParser
from hotloop.chat.tool_format import ToolFormat
from hotloop.chat.tools import ToolChoice
from hotloop.chat.xml_calls import DSML, GLM, MINIMAX, QWEN_CODER, TagMarks, XmlCallParser, tag_rules
from hotloop.core.config import ToolFormatName
from hotloop.core.errors import ConfigError
from hotloop.core.message import Tool
from hotloop.models.tokenizer import Tokenizer


class TagFormat(ToolFormat):
    marks: TagMarks
    joiner: str = "\n"
    """What stands between two calls that each have an opening."""

    def rules(self, chosen: Sequence[Tool], choice: ToolChoice, tokenizer: Tokenizer) -> list[str]:
        marks = self.marks
        head = lark.spell(tokenizer, marks.gap, marks.function) if marks.function else ""
        tail = lark.spell(tokenizer, marks.gap if marks.function else "", marks.closing)
        again = head if marks.is_block else f"{tail} {lark.spell(tokenizer, self.joiner, marks.opening)} {head}"
        more = f"( {again} call )* " if choice.is_parallel else ""
        behind_name = f"call {more}{tail}"
        others = {marks.function: behind_name} if marks.function else None
        return [
            *lark.start(f"{head} {behind_name}", marks.opening, choice, tokenizer, others=others),
            f"call: {lark.functions(chosen)}",
            *tag_rules(chosen, marks, tokenizer),
        ]

    def parser(self, tools: Sequence[Tool] = ()) -> CallParser:
        return XmlCallParser(self.marks, tools)


class QwenCoderFormat(TagFormat):
    """`<tool_call>` with a `<function=name>` and its `<parameter=key>`s inside: Qwen 3 Coder and its kin."""

    name: ClassVar[ToolFormatName] = "qwen3_coder"
    marks = QWEN_CODER
    opening = marks.opening


class GlmFormat(TagFormat):
    """`<tool_call>name`, then `<arg_key>`s and `<arg_value>`s: GLM 4.5 and later; from 4.7 on without line breaks."""

    name: ClassVar[ToolFormatName] = "glm"
    marks = GLM
    opening = marks.opening

    def __init__(self, tokenizer: Tokenizer, source: str = "") -> None:
        super().__init__(tokenizer, source)
        if "</arg_key><arg_value>" in source:
            self.marks = GLM._replace(gap="")
            self.joiner = ""


class MiniMaxFormat(TagFormat):
    """`<minimax:tool_call>` with `<invoke name="...">`s inside, and their `<parameter name="...">`s: MiniMax M2."""

    name: ClassVar[ToolFormatName] = "minimax"
    marks = MINIMAX
    opening = marks.opening


class DsmlFormat(TagFormat):
    """The same in DeepSeek's own tags, which say what is a string: DeepSeek V3.2, and V4 with another outer tag."""

    name: ClassVar[ToolFormatName] = "deepseek_v32"
    marks = DSML
    opening = marks.opening

    def __init__(self, tokenizer: Tokenizer, source: str = "") -> None:
        super().__init__(tokenizer, source)
        if tokenizer.has_special(tokenizer.encode(self.opening)):
            raise ConfigError("tool_format 'deepseek_v32' cannot work: a part of its tags is a special token")
        if "function_calls>" not in source and "tool_calls>" in source:
            self.marks = DSML._replace(opening="<｜DSML｜tool_calls>", closing="</｜DSML｜tool_calls>")
