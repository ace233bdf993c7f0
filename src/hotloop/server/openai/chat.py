"""`/v1/chat/completions`: the body it takes, and what is in it: a conversation, tools, and what the answer may be."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from hotloop.chat.formats import ToolFormat
from hotloop.chat.prompt import Conversation
from hotloop.chat.tools import ToolChoice
from hotloop.core.errors import RequestError
from hotloop.core.message import Message
from hotloop.core.request import SamplingParams
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.calling import Calling, make_calling
from hotloop.server.openai.structure import Constraint, blaming, either
from hotloop.server.openai.wire import MAX_TOP_LOGPROBS, GenerateBody, parse_sampling
from hotloop.server.turns import Turns
from hotloop.wire.chat import parse
from hotloop.wire.field import Field
from hotloop.wire.policy import Notes

# Formats whose calls begin like any JSON: an answer in JSON could not be told from them.
_UNMARKED = frozenset({"llama3"})

Messages = Annotated[list[Any], Meta(min_length=1)]


class ChatBody(GenerateBody, kw_only=True):
    messages: Messages
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    generate: bool | None = None

    @property
    def is_reading(self) -> bool:
        """Whether the prompt is only to be read, so that it is known when it comes again and goes on."""
        return self.generate is False


def parse_messages(bodies: Sequence[Any]) -> tuple[Message, ...]:
    given = Field({"messages": bodies}).need("messages")
    return tuple(Turns(parse.parse_messages(given, Notes())).messages)


def parse_calling(body: ChatBody, *, is_strict: bool) -> Calling:
    """`is_strict` is for the tools that do not say themselves whether their schema must be followed."""
    about = {"tools": body.tools, "tool_choice": body.tool_choice, "parallel_tool_calls": body.parallel_tool_calls}
    given = Field(about)
    tools, choice = parse.parse_tools(given), parse.parse_choice(given)
    return make_calling(tools, choice, is_strict=is_strict, schema_field="function.parameters")


def constrain(
    asked: Constraint | None, calling: Calling, tool_format: ToolFormat, tokenizer: Tokenizer
) -> Constraint | None:
    """What the answer must look like: calls, what the body asks for, or either of them."""
    if not calling.is_possible:
        return asked
    if asked is None or calling.is_certain:
        with blaming("tools"):
            grammar = tool_format.grammar(calling.allowed, calling.choice, tokenizer)
        return Constraint("tools", grammar) if grammar else None
    if asked.grammar.kind != "json_schema" or tool_format.name in _UNMARKED:
        reason = f"{asked.param} cannot be given together with tools, unless tool_choice is 'none'"
        raise RequestError(reason, param=asked.param)
    with blaming("tools"):
        calls = tool_format.grammar(calling.allowed, replace(calling.choice, mode="required"), tokenizer)
    assert calls, "calls that must come have a grammar"
    return Constraint(asked.param, either(calls, asked.grammar))


def each_tool(calling: Calling, tool_format: ToolFormat, tokenizer: Tokenizer) -> Iterator[Constraint]:
    """Calls of each tool by itself, under the tool's own place in the body."""
    for tool in calling.allowed:
        param = calling.place(tool)
        with blaming(param):
            grammar = tool_format.grammar([tool], ToolChoice("required", tool.name), tokenizer)
        assert grammar, "calls that must come have a grammar"
        yield Constraint(param, grammar)


def parse_chat_sampling(body: ChatBody, vocab_size: int, *, keep_special: bool = False) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return parse_sampling(
        body,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        logprobs=body.top_logprobs or 0 if body.logprobs else None,
        vocab_size=vocab_size,
        keep_special=keep_special,
    )


def parse_conversation(body: ChatBody, calling: Calling) -> Conversation:
    """Tools that may not be called stay in the prompt, so that what was read of it before is still good."""
    return Conversation(
        messages=parse_messages(body.messages),
        tools=calling.tools,
        is_answer_next=not body.is_reading,
        extra=body.chat_template_kwargs or {},
    )
