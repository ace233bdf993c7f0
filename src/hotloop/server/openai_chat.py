"""`/v1/chat/completions`: the body it takes, the conversation that is in it, and the words it answers with."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hotloop.chat.prompt import Conversation
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Role, Tool, ToolCall
from hotloop.core.request import SamplingParams, TokenEvent, TokenLogprob
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.openai_render import Json, clamp
from hotloop.server.openai_wire import MAX_TOP_LOGPROBS, GenerateBody, parse_sampling


class PartBody(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class CalledBody(msgspec.Struct, kw_only=True):
    name: str
    arguments: str = "{}"


class ToolCallBody(msgspec.Struct, kw_only=True):
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledBody


class MessageBody(msgspec.Struct, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[PartBody] | None = None
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None


Messages = Annotated[list[MessageBody], Meta(min_length=1)]


class FunctionBody(msgspec.Struct, kw_only=True):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(msgspec.Struct, kw_only=True):
    type: Literal["function"] = "function"
    function: FunctionBody


class FormatBody(msgspec.Struct, kw_only=True):
    type: str


class ChatBody(GenerateBody, kw_only=True):
    messages: Messages
    tools: list[ToolBody] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: FormatBody | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


def parse_messages(bodies: Sequence[MessageBody]) -> tuple[Message, ...]:
    return tuple(_parse_message(i, body) for i, body in enumerate(bodies))


def parse_tools(bodies: Sequence[ToolBody] | None) -> tuple[Tool, ...]:
    functions = [body.function for body in bodies or ()]
    return tuple(Tool(body.name, body.description or "", body.parameters or {}) for body in functions)


def parse_chat(body: ChatBody) -> Conversation:
    """The conversation of a request that is to be answered. Raises RequestError for what cannot be promised yet."""
    if body.response_format and body.response_format.type != "text":
        raise RequestError(
            f"response_format {body.response_format.type!r} is not supported yet", param="response_format"
        )
    if body.tool_choice not in (None, "none", "auto"):
        choice = body.tool_choice if isinstance(body.tool_choice, str) else "of a named function"
        raise RequestError(f"tool_choice {choice!r} is not supported yet: use 'auto' or 'none'", param="tool_choice")
    return Conversation(
        messages=parse_messages(body.messages),
        tools=() if body.tool_choice == "none" else parse_tools(body.tools),
        extra=body.chat_template_kwargs or {},
    )


def parse_chat_sampling(body: ChatBody, vocab_size: int) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return parse_sampling(
        body,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        logprobs=body.top_logprobs or 0 if body.logprobs else None,
        vocab_size=vocab_size,
    )


def _parse_message(index: int, body: MessageBody) -> Message:
    role: Role = "system" if body.role == "developer" else body.role
    return Message(
        role=role,
        content=_parse_content(index, body.content),
        name=body.name,
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, call.function.arguments) for call in body.tool_calls or ()
        ),
        tool_call_id=body.tool_call_id,
    )


def _parse_content(index: int, content: str | list[PartBody] | None) -> str:
    if not isinstance(content, list):
        return content or ""
    return "\n".join(_parse_part(f"messages[{index}].content[{j}]", part) for j, part in enumerate(content))


def _parse_part(place: str, part: PartBody) -> str:
    text = {"text": part.text, "refusal": part.refusal}.get(part.type)
    if text is None:
        raise RequestError(f"{place}: content of type {part.type!r} is not supported, only text is", param=place)
    return text


class ChatWording:
    """A choice is a message from the assistant."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, *, has_logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs

    def whole(self, index: int, event: TokenEvent) -> Json:
        message = {"role": "assistant", "content": event.text, "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": self._render_logprobs(event.logprobs),
            "finish_reason": event.finish_reason,
            "stop_reason": event.stop_match,
        }

    def opening(self, index: int) -> Json:
        return _chunk(index, {"role": "assistant", "content": "", "refusal": None})

    def delta(self, index: int, event: TokenEvent) -> Json:
        return _chunk(index, {"content": event.text}, self._render_logprobs(event.logprobs))

    def closing(self, index: int, event: TokenEvent) -> Json:
        return {**_chunk(index, {}), "finish_reason": event.finish_reason, "stop_reason": event.stop_match}

    def _render_logprobs(self, logprobs: Sequence[TokenLogprob]) -> Json | None:
        if not self._has_logprobs:
            return None
        content = [
            {
                **self._render_token(logprob.token_id, logprob.logprob),
                "top_logprobs": [self._render_token(*top) for top in logprob.top],
            }
            for logprob in logprobs
        ]
        return {"content": content, "refusal": None}

    def _render_token(self, token_id: int, logprob: float) -> Json:
        token_bytes = self._tokenizer.token_bytes(token_id)
        return {
            "token": self._tokenizer.token_text(token_id),
            "logprob": clamp(logprob),
            "bytes": list(token_bytes) or None,
        }


def _chunk(index: int, delta: Json, logprobs: Json | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
