"""From a conversation to the tokens the model reads.

The model's own template words the prompt and its own tokenizer cuts it; nothing here knows either format, a wire or an
engine. `Prompt` is all that is known about a prompt before it becomes a request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotloop.chat.formats import ToolFormat
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Tool
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads: the tokens, and the text they were cut from."""

    token_ids: Sequence[int]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Everything a chat prompt depends on."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    is_answer_next: bool = True
    """Whether the prompt ends where the assistant's answer begins."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More variables for the template, such as `enable_thinking`."""


def chat_prompt(
    conversation: Conversation,
    template: ChatTemplate | None,
    tokenizer: Tokenizer,
    tool_format: ToolFormat | None = None,
) -> Prompt:
    """The conversation in the model's own words. Raises RequestError where the model has no template, or it refuses.

    The format words tools and calls where the template does not; None leaves everything to the template.
    """
    if template is None:
        raise RequestError("this model has no chat template: use /v1/completions", param="messages")
    messages, tools = conversation.messages, conversation.tools
    if tool_format:
        messages, tools = tool_format.prepare(messages, tools)
    text = template.render(
        messages,
        tools=tools,
        add_generation_prompt=conversation.is_answer_next,
        extra=conversation.extra,
    )
    return Prompt(tokenizer.encode(text), text)


def text_prompt(text: str, tokenizer: Tokenizer, *, has_bos: bool = True) -> Prompt:
    """Plain text, as a completion continues it; it begins as the model wants a text to begin, unless told otherwise."""
    return Prompt(tokenizer.encode(text, add_bos=has_bos and tokenizer.wants_bos), text)


def token_prompt(token_ids: Sequence[int], tokenizer: Tokenizer, *, param: str = "prompt") -> Prompt:
    """Tokens a client has cut itself. Raises RequestError where the model has no such token."""
    for token_id in token_ids:
        if not 0 <= token_id < tokenizer.vocab_size:
            raise RequestError(f"{param}: the model has no token {token_id}", param=param)
    return Prompt(token_ids, tokenizer.decode(token_ids, keep_special=True))
