"""The body `/v1/responses` takes, and what in it is about the answer. Items and tools have files of their own.

Beside OpenAI's fields it takes the ones this server has for completions: `top_k`, `seed`, `stop`, `priority` and so on.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hotloop.core.errors import RequestError
from hotloop.core.request import SamplingParams
from hotloop.core.schema import json_schema
from hotloop.server.openai.structure import (
    Constraint,
    JsonObjectFormat,
    Name,
    TextFormat,
    blaming,
    parse_constraint,
)
from hotloop.server.openai.wire import MAX_TOP_LOGPROBS, GenerateBody, parse_sampling

LOGPROBS = "message.output_text.logprobs"

_MAX_METADATA = 16


class FlatSchemaFormat(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", tag="json_schema"):
    name: Name
    schema: dict[str, Any]
    strict: bool | None = None
    description: str | None = None


class TextBody(msgspec.Struct, kw_only=True):
    format: TextFormat | JsonObjectFormat | FlatSchemaFormat | None = None


class ResponsesBody(GenerateBody, kw_only=True):
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextBody | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=_MAX_METADATA)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    safety_identifier: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    conversation: Any = None
    prompt: Any = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False


def check_body(body: ResponsesBody) -> None:
    """Refuse what would otherwise be lost without a word."""
    refusals = (
        ("conversation", body.conversation is not None, "is not supported: use previous_response_id"),
        ("prompt", body.prompt is not None, "is not supported: send the instructions themselves"),
        ("n", body.num_choices != 1, "must be 1: a response is one answer"),
        ("background", body.background and body.stream, "cannot be given together with stream"),
        ("background", body.background and not body.is_stored, "needs store: nobody could ask for the response"),
    )
    for param, is_refused, reason in refusals:
        if is_refused:
            raise RequestError(f"{param} {reason}", param=param)


def parse_response_sampling(body: ResponsesBody, vocab_size: int, *, keep_special: bool) -> SamplingParams:
    has_logprobs = LOGPROBS in (body.include or ()) or body.top_logprobs is not None
    return parse_sampling(
        body,
        max_tokens=body.max_output_tokens,
        logprobs=body.top_logprobs or 0 if has_logprobs else None,
        vocab_size=vocab_size,
        keep_special=keep_special,
    )


def parse_shape(body: ResponsesBody) -> Constraint | None:
    """What an answer that is not a call must look like."""
    asked = parse_constraint(body)
    form = body.text.format if body.text else None
    if form is None or isinstance(form, TextFormat):
        return asked
    if asked:
        raise RequestError(f"text.format and {asked.param} cannot be given together", param=asked.param)
    with blaming("text.format"):
        return Constraint(
            "text.format", json_schema(form.schema if isinstance(form, FlatSchemaFormat) else {"type": "object"})
        )
