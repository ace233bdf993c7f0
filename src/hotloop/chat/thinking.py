"""How each family of models marks what it thinks, and which of these a model does.

A thought stands between two marks. The first is written by the model, or by the template at the end of the prompt.
What space belongs around the marks, and by which variables thinking is switched, is read from the template.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hotloop.core.config import ThinkingFormatName
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Thought
from hotloop.core.thinking import Thinking
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer

_THOUGHT, _ANSWER = "Hmmmm", "Aaaah"
# The variables by which templates switch thinking, and what they call on and off.
_SWITCHES: dict[str, tuple[Any, Any]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "thinking_mode": ("enabled", "disabled"),
}


@dataclass(frozen=True, slots=True)
class ThinkingFormat:
    """One family's marks."""

    name: ThinkingFormatName
    opening: str
    closing: str
    has_channels: bool = False
    """Whether an answer is made of messages with headers, of which thoughts are one kind."""
    tail: str = ""
    """The space that the template has before the closing."""
    gap: str = ""
    """What it has between the closing and the answer."""
    is_special: bool = False
    """Whether a mark is a special token, so that the text must show it, and cannot spell it by chance."""
    is_opened_by_template: bool = False

    def is_open_in(self, prompt: str) -> bool:
        """Whether an answer to this prompt begins inside a thought."""
        return prompt[-200:].rstrip().endswith(self.opening.rstrip())

    def limit(self, prompt: str, tokenizer: Tokenizer, max_tokens: int | None) -> Thinking:
        return Thinking(
            opening_ids=tuple(tokenizer.encode(self.opening)),
            closing_ids=tuple(tokenizer.encode(self.closing)),
            ending_ids=tuple(tokenizer.encode(self.tail + self.closing + self.gap)),
            gap_ids=tuple(tokenizer.encode(self.gap)),
            is_open=self.is_open_in(prompt),
            max_tokens=max_tokens,
        )


HARMONY = ThinkingFormat(
    "harmony",
    "<|channel|>analysis<|message|>",
    "<|end|>",
    has_channels=True,
    gap="<|start|>assistant",
)
# The first that a template speaks of is the model's.
_FORMATS: dict[str, ThinkingFormat] = {
    each.name: each
    for each in (
        HARMONY,
        ThinkingFormat("gemma", "<|channel>thought\n", "<channel|>"),
        ThinkingFormat("minimax", "<mm:think>", "</mm:think>"),
        ThinkingFormat("mistral", "[THINK]", "[/THINK]"),
        ThinkingFormat("think", "<think>", "</think>"),
    )
}


def choose_thinking(
    template: ChatTemplate | None, tokenizer: Tokenizer, name: ThinkingFormatName = "auto"
) -> ThinkingFormat | None:
    """The format of this name, or the one that template and vocabulary speak of; None if the model does not think."""
    if name == "off" or template is None:
        return None
    if name != "auto":
        return _fit(_FORMATS[name], template, tokenizer)
    spoken = [each for each in _FORMATS.values() if _is_spoken(each, template.source)]
    known = [each for each in _FORMATS.values() if _is_known(each, tokenizer)]
    return _fit((spoken or known)[0], template, tokenizer) if spoken or known else None


def thinking_variables(source: str, *, is_wanted: bool | None, effort: str | None = None) -> Mapping[str, Any]:
    """What a template is told so that its model thinks, or does not; None: as it does by itself."""
    switches = {} if is_wanted is None else {name: pair[not is_wanted] for name, pair in _SWITCHES.items()}
    if effort:
        switches["reasoning_effort"] = effort
    return {name: value for name, value in switches.items() if re.search(rf"\b{name}\b", source)}


def _is_spoken(thinking: ThinkingFormat, source: str) -> bool:
    if thinking.has_channels:
        return "<|channel|>" in source and "<|message|>" in source
    return any(mark.strip() in source for mark in (thinking.opening, thinking.closing))


def _is_known(thinking: ThinkingFormat, tokenizer: Tokenizer) -> bool:
    return all(len(tokenizer.encode(mark)) == 1 for mark in (thinking.opening, thinking.closing))


def _fit(thinking: ThinkingFormat, template: ChatTemplate, tokenizer: Tokenizer) -> ThinkingFormat:
    """The format, with what can be found out about it by trying the template."""
    is_special = tokenizer.has_special(tokenizer.encode(thinking.opening + thinking.closing))
    opened = _render(template, Message("user", "."), is_answer_next=True)
    fitted = replace(thinking, is_special=is_special, is_opened_by_template=thinking.is_open_in(opened))
    if thinking.has_channels:
        return fitted
    said = _render(template, Message("user", "."), Message("assistant", _ANSWER, thoughts=(Thought(_THOUGHT),)))
    around = re.search(rf"{_THOUGHT}(\s*){re.escape(thinking.closing)}(\s*){_ANSWER}", said)
    return replace(fitted, tail=around[1], gap=around[2]) if around else fitted


def _render(template: ChatTemplate, *messages: Message, is_answer_next: bool = False) -> str:
    try:
        return template.render(messages, add_generation_prompt=is_answer_next)
    except RequestError:
        return ""
